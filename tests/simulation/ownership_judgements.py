"""Judgements of the operator's programs in the model of ownership; `ownership_model` has when they judge."""

from __future__ import annotations

from simulation import ownership_rules as rules
from simulation.ownership_rules import Chain, Fence, Lock, Save

ONE = "M1"  # the migration that is rolled back


def later_owner(one: Chain, two: Chain, memory: Chain, returning: bool) -> bool:
    """Return whether a record names a later owner, as `ownership_records.refuse_later_owner` does."""
    for chain in filter(None, (one, two, memory)):
        head = chain[-1]
        ours = head.migration == ONE
        if (head.epoch >= 2 and not ours) or (head.epoch > 2 and not returning):
            return True
    return False


def known_chain(one: Chain, two: Chain, memory: Chain) -> Chain | None:
    """Return the longest chain of a machine and both hosts; None where there are two histories."""
    chains = [chain for chain in (memory, one, two) if chain]
    longest = max(chains, key=len, default=())
    return longest if all(longest[: len(chain)] == chain for chain in chains) else None


def returned_fence(fence: Fence, saves: tuple[Save, ...]) -> Fence | None:
    """Return the fence of a source that a rollback returns to; None where a later migration has the run."""
    if (fence.epoch, fence.owner) == (3, "A"):
        return fence
    if (fence.epoch, fence.owner) != (2, "B") or fence.sealed is None:
        return None
    own = [step for step, epoch, _, _ in saves if epoch < 2]
    return rules.rolled_back(fence, "A", max([fence.sealed, *own]))


def may_have_started(lock: Lock | None, memory: Chain, number: str) -> bool:
    """Return whether another process may have started the target, by the source's lock."""
    if lock is None or lock.released or lock.migration != ONE:
        return True
    if not lock.allowed:
        return any((link.migration, link.epoch) == (ONE, 2) for link in memory)
    return lock.allowed != number
