"""Judgement of a run's copies: the owner's, and claims.

A host can show any fence, any chain that an operator has signed, and any number of steps. It cannot sign. So the
longest signed chain, from any host or from this machine's memory, says who owns the run; what a host shows beyond it is
a claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.ownership import memory
from midstream.ownership.judgement import CLAIM, FORMER, OWNER, UNSIGNED, Judgement, Standing
from midstream.ownership.operator_key import accepted_keys
from midstream.ownership.signed_chain import CheckedChain, check_chain
from midstream_core import records


class ShownCopy(Protocol):
    """Records that a host shows of a run."""

    @property
    def host(self) -> str: ...
    @property
    def fence(self) -> records.Fence | None: ...
    @property
    def ownership(self) -> str: ...


@dataclass(frozen=True)
class HostCopy:
    """Records that one host shows of a run."""

    host: str
    fence: records.Fence | None
    ownership: str


@dataclass(frozen=True)
class OwnerJudge:
    """Judges copies of a run by signatures, fleet file and memory."""

    fleet: Fleet

    def judge(self, run_id: str, copies: Sequence[ShownCopy]) -> Judgement:
        """Judge the copies of a run, one for each host that shows it."""
        try:
            keys, remembered = accepted_keys(self.fleet), memory.recall(run_id)
        except MidstreamError as error:
            problem = str(error)
            return Judgement(run_id, None, {copy.host: Standing(CLAIM, problem) for copy in copies}, problem=problem)
        if not keys and remembered is None and not any(copy.ownership for copy in copies):
            return Judgement(run_id, None, {copy.host: Standing(UNSIGNED) for copy in copies})
        checked = {copy.host: check_chain(copy.ownership, run_id, keys) for copy in copies}
        if remembered is not None:
            checked = {host: _known(checked_chain, remembered.chain) for host, checked_chain in checked.items()}
        valid = [checked_chain.chain for checked_chain in checked.values() if checked_chain.chain is not None]
        if remembered is not None:
            valid.append(remembered.chain)
        if not valid:
            standings = {
                copy.host: Standing(CLAIM, checked[copy.host].problem) if copy.ownership else Standing(UNSIGNED)
                for copy in copies
            }
            return Judgement(run_id, None, standings)
        chain = _newest_run(valid)
        begun = chain.entries[0].time
        fork = next((signed for signed in valid if _is_fork(signed, chain)), None)
        if fork is not None:
            problem = _two_histories(run_id, chain, fork)
            return Judgement(
                run_id, None, {copy.host: Standing(CLAIM, problem) for copy in copies}, (), remembered, problem, begun
            )
        owners = self.hosts_of(chain.head.owner)
        standings = {copy.host: self._standing(copy, checked[copy.host].chain, checked[copy.host].problem, chain)
                     for copy in copies}  # fmt: skip
        return Judgement(run_id, chain, standings, owners, remembered, begun=begun)

    def hosts_of(self, owner: str) -> tuple[str, ...]:
        """Return the hosts of an owner.

        Empty where the fleet file does not name it, or its hosts are not known now.
        """
        return self.fleet.hosts_of(owner) if owner in self.fleet.target_names else ()

    def _standing(
        self, copy: ShownCopy, own: records.OwnershipChain | None, problem: str, chain: records.OwnershipChain
    ) -> Standing:
        """Return the standing of a copy beside the longest signed ``chain``.

        ``own`` is the copy's own chain, None where that is not valid because of ``problem``.
        """
        head, fence = chain.head, copy.fence
        owned = f"{head.owner} has it by a signed record (ownership {head.epoch})"
        if own is not None and own.head.key != head.key:
            return Standing(CLAIM, f"it is another run of this name: {owned}")
        if fence is None or fence.epoch == 0:
            return Standing(FORMER, f"it has no part in the run yet: {owned}")
        if copy.host not in self.hosts_of(head.owner):
            if fence.epoch > head.epoch:
                shown = f"ownership {fence.epoch} of {fence.owner}"
                return Standing(CLAIM, f"it shows {shown} without a signed record: {owned}")
            if head.owner not in self.fleet.target_names and fence.epoch == head.epoch:
                return Standing(CLAIM, f"{owned}, and the fleet file does not name {head.owner}")
            named = any(copy.host in self.hosts_of(entry.owner) for entry in chain.entries)
            return Standing(FORMER, owned) if named else Standing(CLAIM, f"no signed record names it: {owned}")
        if own is None:
            return Standing(CLAIM, f"{problem}: {owned}, which other records prove")
        if len(own.records) < len(chain.records):
            return Standing(
                CLAIM, f"it is an older copy, restored perhaps (ownership {own.head.epoch}, {fence.owner}): {owned}"
            )
        if fence.epoch < head.epoch:
            return Standing(FORMER, f"its fence is at ownership {fence.epoch}: {owned}")
        migrated = fence.sealed_step is not None  # before that, the owner's name is the one that its engine has chosen
        if fence.epoch == head.epoch and fence.owner != head.owner and migrated:
            return Standing(CLAIM, f"its fence names {fence.owner}: {owned}")
        if fence.epoch > head.epoch + 1:
            return Standing(CLAIM, f"it shows ownership {fence.epoch} without a signed record: {owned}")
        return Standing(OWNER)  # one epoch more is its own seal, which a migration has requested


def _known(checked: CheckedChain, remembered: records.OwnershipChain) -> CheckedChain:
    """Return a remembered chain as valid, also after an operator was removed.

    Its signatures counted when it was remembered: who has left the team makes no run of the team's a claim.
    """
    shown = checked.shown
    return CheckedChain(shown) if checked.chain is None and shown and remembered.continues(shown) else checked


def _newest_run(chains: Sequence[records.OwnershipChain]) -> records.OwnershipChain:
    """Return the longest chain of the run that was begun last.

    A newer run replaces an older one of the same name.
    """
    return max(chains, key=lambda chain: (chain.entries[0].time, chain.head.key, len(chain.records)))


def _is_fork(chain: records.OwnershipChain, longest: records.OwnershipChain) -> bool:
    return chain.head.key == longest.head.key and not longest.continues(chain)


def _two_histories(run_id: str, chain: records.OwnershipChain, other: records.OwnershipChain) -> str:
    a, b = chain.head, other.head
    return (
        f"run {run_id} has two signed histories: one ends with {a.owner} (ownership {a.epoch}), the other with "
        f"{b.owner} (ownership {b.epoch})"
    )
