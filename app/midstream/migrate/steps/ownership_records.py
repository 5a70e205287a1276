"""Signed records of a migration, and permission to start its target."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from midstream.errors import HostError, MidstreamError, RemoteError
from midstream.launch.host_group_start import CONCURRENCY
from midstream.migrate.host_group import HostGroup
from midstream.migrate.journal.facts import Sealed
from midstream.migrate.steps.migration import Migration, MovedOnError, NeedsOperatorError
from midstream.migrate.steps.preemption import preempted
from midstream.migrate.steps.record_commands import show_ownership
from midstream.ownership import memory, signed_chain
from midstream.ownership.operator_key import accepted_keys
from midstream_core import records
from midstream_host.runs import ownership, run_state

SOURCE_LOST = "--source-lost: the owner before does not answer, and its user has called it lost"
PERMISSION_SECONDS = 5.0  # seconds after which a process gets the permission again: it may have been suspended
BEGUN_BEFORE = "the migration of a run without signed records was agreed to"


def read_chain(migration: Migration) -> None:
    """Read the run's signed records from both ends, before the downtime begins."""
    migration.chain_before = _known_chain(migration)
    migration.prepared_calls.prepare(migration.source, ownership.allow_start)


def hand_over(migration: Migration, sealed: Sealed) -> None:
    """Sign that the target owns the run, and get the permission to start it.

    The record is stored by the source with the name of this process, then remembered. Nothing on the target is
    started before. A process that was suspended while another copy of the migration's files rolled it back is refused
    by the source: a permission that is older than `PERMISSION_SECONDS` is requested again. A source that does not
    answer then may have withdrawn it: its silence renews nothing.

    Raises:
        MovedOnError: The source's fence or lock is another one's by now.
        HostError: The source does not answer, and its provider does not report it as preempted.
    """
    allowed_at, plan, facts = migration.start_allowed_at, migration.plan, migration.journal.facts
    if allowed_at is not None and _is_fresh(allowed_at):
        return
    # Time has passed: others may have migrated the run since. A lost owner's record is not compared by a source.
    if allowed_at is not None or facts.target_attempt is not None or plan.policy.source_lost:
        refuse_later_owner(migration)
    if allowed_at is None:
        chain = signed_chain.next_chain(
            _chain_before(migration),
            epoch=plan.epoch,
            owner=plan.target,
            step=sealed.step,
            root_digest=sealed.root_digest,
            migration=plan.migration,
            planned=plan.identity.created,
            consent=SOURCE_LOST if plan.policy.source_lost else "",
        )
    else:
        chain = chain_of_target(migration)
    try:
        _allow_start(migration, chain, sealed.fence)
    except RemoteError as error:
        if error.kind == "RefusedError":
            raise MovedOnError(error.message, "midstream --status shows where it is") from error
        raise
    except HostError as error:
        reported = preempted(migration.fleet, migration.source_group.target)
        if not reported and facts.target_attempt is None:
            raise
        migration.note(f"{error.message}; {reported or f'{plan.target} has been started before'}")
    # Not before: a record that the source has refused would contradict for ever what the hosts show.
    memory.remember(chain, step=sealed.step, epoch=plan.source_epoch, host=plan.source)
    migration.start_allowed_at = time.time(), time.monotonic()
    if allowed_at is not None:
        return
    migration.log_command(
        migration.source_group.lookup_first(),
        f"signed record: {plan.target} owns {plan.run_id} from step {sealed.step} on (ownership {plan.epoch})",
        shows=show_ownership(migration.source_paths),
    )


def _is_fresh(allowed_at: tuple[float, float]) -> bool:
    """Return whether a permission is young by both clocks.

    The monotonic one stops while the machine sleeps, and the other one may be set back.
    """
    wall, monotonic = time.time() - allowed_at[0], time.monotonic() - allowed_at[1]
    return 0 <= wall < PERMISSION_SECONDS and monotonic < PERMISSION_SECONDS


def chain_of_target(migration: Migration) -> records.OwnershipChain:
    """Return the chain that `hand_over` has remembered for the target."""
    remembered = memory.recall(migration.plan.run_id)
    if remembered is None or remembered.chain.head.epoch < migration.plan.epoch:
        raise MidstreamError(
            f"this machine has no signed record of {migration.plan.target} for {migration.plan.run_id}",
            f"midstream --continue {migration.plan.migration}",
        )
    return remembered.chain


def chain_back(migration: Migration, back: records.Fence) -> records.OwnershipChain | None:
    """Sign that the source owns the run again; return the chain.

    None for a run without records.
    """
    chain = _known_chain(migration)
    if chain is None:
        return None
    plan = migration.plan
    return signed_chain.next_chain(
        chain,
        epoch=back.epoch,
        owner=back.owner,
        step=back.sealed_step,
        migration=plan.migration,
        planned=plan.identity.created,
    )


def may_have_started(migration: Migration) -> bool:
    """Return whether another process may have started the target.

    The journal alone proves nothing: it may be a copy that was restored. The migration lock on the source names the
    process that may start the target. Where it names none, and this machine remembers the hand-over that the source has
    stored together with that name, the source was put back.
    """
    plan, source = migration.plan, migration.source
    lock = source.call(ownership.migration_lock)(root=source.root, run_id=plan.run_id)
    if lock is None or lock.migration != plan.migration or lock.start_allowed is None:
        return True
    if not lock.start_allowed:
        remembered = memory.recall(plan.run_id)
        entries = remembered.chain.entries if remembered is not None else ()
        return any((entry.migration, entry.epoch) == (plan.migration, plan.epoch) for entry in entries)
    return lock.start_allowed != migration.process


def signed_seal(migration: Migration) -> records.OwnershipRecord | None:
    """Return the signed record that the target owns the run; None without one."""
    chain, plan = _known_chain(migration), migration.plan
    entries = chain.entries if chain is not None else ()
    return next((entry for entry in entries if (entry.migration, entry.epoch) == (plan.migration, plan.epoch)), None)


def is_returned(migration: Migration) -> bool:
    """Return whether a signed record says that this migration was rolled back.

    Another copy of its files may have done that while this process went on.
    """
    chain, plan = _known_chain(migration), migration.plan
    entries = chain.entries if chain is not None else ()
    return any(entry.migration == plan.migration and entry.epoch > plan.epoch for entry in entries)


def refuse_later_owner(migration: Migration, *, returning: bool = False) -> None:
    """Raise MovedOnError where a later owner's record is found.

    On any host that answers, or this machine. Journal, source and target may all be copies that were put back: every
    other record can say no. ``returning``: this migration's own rollback is no later owner.
    """
    plan, keys = migration.plan, accepted_keys(migration.fleet)

    def shown(name: str) -> str:
        try:
            host = migration.hosts.get(name)
            return host.call(run_state.owner_records)(root=host.root, run_id=plan.run_id).ownership
        except HostError:
            return ""

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        texts = list(pool.map(shown, migration.fleet.hosts))
    own, remembered = _known_chain(migration), memory.recall(plan.run_id)
    begun = own.entries[0] if own is not None else None
    chains = [signed_chain.check_chain(text, plan.run_id, keys).chain for text in texts]
    for chain in (*chains, remembered.chain if remembered else None):
        if chain is None:
            continue
        head, ours = chain.head, chain.head.migration == plan.migration
        if begun is not None and head.key != begun.key:
            later = chain.entries[0].time > begun.time  # another run of this name has begun since
        else:
            later = (head.epoch >= plan.epoch and not ours) or (head.epoch > plan.epoch and not returning)
        if later:
            raise MovedOnError(
                f"run {plan.run_id} belongs to {head.owner} by a signed record (ownership {head.epoch})",
                "midstream --status shows where it is",
            )


def _allow_start(migration: Migration, chain: records.OwnershipChain, fence: records.Fence) -> None:
    """Have every run host of the source record the permission.

    Errors as of `ownership.allow_start`.
    """
    for host in reversed(migration.source_group.run_hosts):  # the first host's record counts, and comes last
        migration.prepared_calls.call(host, ownership.allow_start)(
            root=host.root,
            run_id=migration.plan.run_id,
            chain=chain.to_json(),
            epoch=fence.epoch,
            owner=fence.owner,
            migration=migration.plan.migration,
            process=migration.process,
        )


def _chain_before(migration: Migration) -> records.OwnershipChain:
    """Return the chain before the hand-over; a first one for a run that has none."""
    plan, chain = migration.plan, migration.chain_before or _known_chain(migration)
    if chain is not None:
        if chain.head.epoch > plan.epoch:
            raise MovedOnError(
                f"run {plan.run_id} belongs to {chain.head.owner} by a signed record (ownership {chain.head.epoch})",
                "midstream --status shows where it is",
            )
        return chain
    owner = migration.journal.facts.owner_before or ""
    if owner not in migration.fleet.target_names:  # an engine that midstream did not start chooses the name itself
        owner = plan.route.source_target or plan.source
    before = records.Fence(plan.source_epoch, owner)
    return signed_chain.first_chain(
        plan.run_id,
        owner,
        before,
        consent=BEGUN_BEFORE,
        migration=plan.migration,
        planned=plan.identity.created,
    )


def _known_chain(migration: Migration) -> records.OwnershipChain | None:
    """Return the longest signed chain of this machine and both ends.

    None without one.

    Raises:
        NeedsOperatorError: There are two signed histories.
    """
    run_id, keys = migration.plan.run_id, accepted_keys(migration.fleet)
    remembered = memory.recall(run_id)
    chains = [remembered.chain] if remembered is not None else []
    for group in (migration.source_group, migration.target_group):
        checked = signed_chain.check_chain(_shown(group), run_id, keys).chain
        if checked is not None:
            chains.append(checked)
    if not chains:
        return None
    longest = max(chains, key=lambda chain: (chain.entries[0].time, len(chain.records)))
    same_run = [chain for chain in chains if chain.head.key == longest.head.key]
    if not all(longest.continues(chain) for chain in same_run):
        raise NeedsOperatorError(
            f"run {run_id} has two signed histories, on {migration.plan.source} and {migration.plan.target} or here",
            f"midstream --repair {run_id} shows them",
        )
    return longest


def _shown(group: HostGroup) -> str:
    """Return the text of a group's chain; empty where it does not answer, or has none."""
    try:
        host = group.first
        return host.call(run_state.owner_records)(root=host.root, run_id=group.run_id).ownership
    except HostError:
        return ""
