"""Recover facts of a damaged journal from the hosts, without guessing.

The source's fence, its migration lock and the attempts' commands name the migration. A fact that no host has is
established by the phases, which run again; a rollback requires evidence from the target before the source resumes.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from midstream.errors import HostError, MidstreamError, RemoteError
from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_file import load_fleet
from midstream.hosts.host_pool import HostPool
from midstream.hosts.rpc.answer_limits import decode_file
from midstream.launch.host_group_start import CONCURRENCY
from midstream.migrate import host_files
from midstream.migrate.host_group import HostGroup
from midstream.migrate.journal.facts import Facts, StartingPoint
from midstream.migrate.journal.journal import begun_rollback, read_events
from midstream.migrate.journal.migration_directory import MigrationDirectory
from midstream.migrate.journal.phase_names import CUTOVER, DONE, PREPARE, ROLLBACK, STARTED
from midstream.migrate.journal.plan import Plan
from midstream.migrate.modes.registry import mode_of
from midstream.migrate.phases.seal import sealed_already
from midstream.migrate.steps.migration import Migration, MovedOnError
from midstream_core import records
from midstream_host.runs import ownership, run_state

DAMAGED = "the journal is damaged"
BEHIND = "the journal is older than the migration: it was restored from a backup, or another machine has continued it"


def is_behind(migration: Migration) -> bool:
    """Return whether the hosts have more of this migration than the journal.

    The journal's line is written first, so that a killed process leaves no such journal. A rollback by it would give up
    steps of the target that it does not know of.
    """
    plan, facts = migration.plan, migration.journal.facts
    if facts.relaunching or begun_rollback(read_events(migration.directory.journal_file)):
        return False
    try:
        attempt = migration.target_group.attempt_of_migration(plan.migration)
    except HostError:
        # What the target does is not known. The journal has each seal; only the moment of the seal itself looks equal.
        return facts.sealed is None and _is_sealed(migration)
    return attempt is not None and attempt.status is not None and attempt.status.epoch == plan.epoch


def _is_sealed(migration: Migration) -> bool:
    """Return whether this migration sealed the source; False without an answer."""
    try:
        fence, ours = _fence(migration)
    except HostError:
        return False
    return ours and fence.epoch == migration.plan.epoch


def reestablish(migration: Migration, *, rollback: bool, why: str = DAMAGED) -> None:
    """Journal the facts that phases need and that the journal may have lost.

    Args:
        migration: The migration.
        rollback: The target may be unreachable.
        why: Why facts may be lost.

    Raises:
        HostError: a required host does not answer.
        MovedOnError: a later migration owns the run.
    """
    plan, facts = migration.plan, migration.journal.facts
    migration.note(f"{why}; its facts are established again from the hosts")
    fence, ours = _fence(migration)
    if not ours and fence.epoch >= plan.epoch:
        raise MovedOnError(
            f"run {plan.run_id} is at ownership {fence.epoch} (owner {fence.owner}), "
            "and this migration does not have it",
            "midstream --status shows where it is",
        )
    restored = Facts()
    begun = ours and fence.epoch >= plan.epoch
    if begun:  # the source's fence says that it is sealed: the target may have started since
        restored = replace(restored, owner_before=plan.route.source_target or plan.source, relaunching=True)
    if ours:
        restored = restored.updated(_stop_facts(migration))
    sealed = facts.sealed or (sealed_already(migration) if ours else None)
    restored = replace(restored, sealed=sealed).updated(_target_facts(migration, sealed is not None, rollback))
    lost = restored.without(facts)
    complete = facts.updated(lost)
    crosses = complete.takeover_step or complete.rehearsal
    if mode_of(plan.mode).replays and sealed is None and not crosses:
        lost = replace(lost, fallback_reason=why)
    if mode_of(plan.mode).replays and sealed is not None:
        lost = lost.updated(_promotion(migration))
        # A rehearsal that this journal has is not of a replica that another process has started.
        if lost.standby_attempt is not None and (
            not complete.rehearsal or facts.standby_attempt != lost.standby_attempt
        ):
            lost = lost.updated(replay_start(migration, lost.standby_attempt, sealed.checkpoint))
    _journal_evident_phases(migration, sealed is not None, complete.target_attempt is not None)
    if ours and fence.epoch > plan.epoch and not begun_rollback(read_events(migration.directory.journal_file)):
        migration.journal.write(
            "phase", phase=ROLLBACK, state=STARTED, message="a rollback was in progress", exit_code=1
        )
    migration.journal.record(replace(lost, reestablished_at=time.time()))
    migration.note(f"established again: {', '.join(sorted(lost.to_json())) or 'no required fact was lost'}")


def _fence(migration: Migration) -> tuple[records.Fence, bool]:
    """Return the source's fence, and whether this migration has the lock there.

    The lock is the migration lock.
    """
    plan, source = migration.plan, migration.source
    fence = migration.source_group.describe().fence
    if fence is None:
        raise MidstreamError(f"{source.name}: run {plan.run_id} has no fence", f"midstream --repair {plan.run_id}")
    migration_lock = source.call(ownership.migration_lock)(root=source.root, run_id=plan.run_id)
    return fence, migration_lock is not None and migration_lock.migration == plan.migration


def _stop_facts(migration: Migration) -> Facts:
    """Return facts of the command to the source's engine: only a running one gets one."""
    newest_command = _newest_command(migration, migration.source_group, (records.STOP, records.SAVE))
    if newest_command is None:
        return Facts()
    number, command = newest_command
    facts = Facts(source_was_running=True, sealing_attempt=number)
    if command.action == records.STOP:
        facts = replace(facts, stop_sequence=command.sequence, takeover_step=command.step)
    return facts


def _target_facts(migration: Migration, sealed: bool, rollback: bool) -> Facts:
    """Return facts of the migration's target attempt and its rehearsal checkpoint."""
    plan, facts = migration.plan, Facts()
    try:
        newest = migration.target_group.attempt_of_migration(plan.migration)
        rehearsing = _newest_command(migration, migration.target_group, (records.STANDBY, records.REPLAY))
    except HostError:
        if not rollback:
            raise
        return facts  # the rollback waits for the target before the source resumes
    if newest is not None and plan.has_standby:
        facts = replace(facts, standby_attempt=newest.attempt)
    if newest is not None and sealed and newest.status is not None and newest.status.epoch == plan.epoch:
        facts = replace(facts, target_attempt=newest.attempt)
    if rehearsing is not None:
        command = rehearsing[1]
        if command.checkpoint and command.root_digest and command.step is not None:
            facts = replace(facts, rehearsal=StartingPoint(command.checkpoint, command.step, command.root_digest))
    return facts


def _promotion(migration: Migration) -> Facts:
    """Return facts of a replica that has taken the run over, by its command."""
    try:
        newest = migration.target_group.attempt_of_migration(migration.plan.migration)
        ending = _newest_command(migration, migration.target_group, (records.PROMOTE, records.RESTORE))
    except HostError:
        return Facts()
    status = newest.status if newest is not None else None
    if newest is None or status is None or ending is None or status.epoch != migration.plan.epoch:
        return Facts()
    number, command = ending
    if number != newest.attempt or command.action != records.PROMOTE or status.acknowledged < command.sequence:
        return Facts()
    return Facts(takeover_step=command.step, fallback_reason="", standby_attempt=number)


def replay_start(migration: Migration, attempt: int, sealed: str) -> Facts:
    """Return the checkpoint that a promoted replica began with, by the source.

    Nothing where the source has it no more. The target names it. That it is the run's own is the certificate's claim,
    and the source's manifest alone shows it.
    """
    target, source, run_id = migration.target, migration.source, migration.plan.run_id
    try:
        restore = target.call(run_state.restore_evidence)(target.root, run_id, attempt)
        if restore is None or restore.checkpoint == sealed or records.parse_checkpoint_name(restore.checkpoint) is None:
            return Facts()
        manifest = host_files.read_manifest(source, run_id, restore.checkpoint)
    except MidstreamError:  # an absent or damaged manifest, or a host that does not answer
        return Facts()
    return Facts(rehearsal=StartingPoint(restore.checkpoint, manifest.step, manifest.root_digest))


def _newest_command(
    migration: Migration, group: HostGroup, actions: tuple[str, ...]
) -> tuple[int, records.Command] | None:
    """Return the newest attempt with a command of this migration, and the command.

    The command is one of ``actions``.
    """
    for number in sorted(group.describe().attempts, reverse=True):
        path = group.paths.attempt(number).command_file
        try:
            text = group.first.call(run_state.read_text)(path=path)
        except RemoteError as error:
            if error.kind == "FileNotFoundError":
                continue
            raise
        try:
            where = f"{group.first.name}: {path}"
            command = records.Command.from_json(decode_file(text, where), where)
        except ValueError as error:
            raise MidstreamError(f"{group.first.name}: {path} cannot be read: {error}") from error
        if command.migration == migration.plan.migration and command.action in actions:
            return number, command
    return None


def _journal_evident_phases(migration: Migration, sealed: bool, took_over: bool) -> None:
    """Journal phases as done that the hosts prove.

    A seal proves prepare, a start cutover.
    """
    for phase, evident in ((PREPARE, sealed), (CUTOVER, took_over)):
        if evident and not _has_phase_event(migration, phase, DONE):
            migration.journal.write("phase", phase=phase, state=DONE, message="according to the hosts")


def _has_phase_event(migration: Migration, phase: str, state: str) -> bool:
    events = read_events(migration.directory.journal_file)
    return any((event.event, event.phase, event.state) == ("phase", phase, state) for event in events)


# ------------------------------------------------------------------------------------------ without plan and journal


def hosts_report(directory: MigrationDirectory) -> str:
    """Return which hosts have a migration whose plan is lost, to append to a message.

    Empty if no host of its fleet answers or has it.
    """
    fleet = _readable_fleet(directory)
    if fleet is None:
        return ""
    run_id = Plan.unknown(directory.migration).run_id
    hosts = HostPool(fleet)

    def query(name: str) -> str:
        try:
            host = hosts.get(name)
            migration_lock = host.call(ownership.migration_lock)(root=host.root, run_id=run_id)
            if migration_lock is None or migration_lock.migration != directory.migration:
                return ""
            fence = host.call(run_state.describe)(root=host.root, run_id=run_id).fence
        except HostError:
            fence = None
        if fence is None:
            return ""  # this supplements an error: unreachable hosts are left out
        sealed = "" if fence.sealed_step is None else f", sealed at step {fence.sealed_step}"
        return f"{name} has run {run_id} locked for it: ownership {fence.epoch}, owner {fence.owner}{sealed}"

    try:
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            lines = [line for line in pool.map(query, fleet.hosts) if line]
    finally:
        hosts.close()
    return "".join(f"; {line}" for line in lines)


def _readable_fleet(directory: MigrationDirectory) -> Fleet | None:
    """Return the migration's fleet, else the user's.

    None if neither can be read or has hosts.
    """
    for path in (directory.fleet_file, None):
        with contextlib.suppress(MidstreamError):
            fleet = load_fleet(path)
            if fleet.hosts:
                return fleet
    return None
