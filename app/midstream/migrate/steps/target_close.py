"""Close the target of a migration: undo the relaunch."""

from __future__ import annotations

from midstream.errors import HostError, MidstreamError
from midstream.install.errors import LaunchError
from midstream.migrate.journal.facts import Facts
from midstream.migrate.journal.migration_view import lost_attempt
from midstream.migrate.steps.migration import Migration, MovedOnError
from midstream.migrate.steps.ownership_records import may_have_started
from midstream.migrate.steps.preemption import preempted
from midstream.migrate.steps.record_commands import show_log
from midstream.migrate.steps.source_return import put_fence
from midstream.migrate.steps.target_progress import keeps_steps, refuse_giving_up, refuse_lost_seal
from midstream_core import records

STOP_TIMEOUT = 300.0  # seconds
NOTHING_TO_SAVE = frozenset({records.STARTING, records.COMPILING, records.RESTORING})


def close_target(migration: Migration, back: records.Fence) -> None:
    """End this migration's target processes; write the fence that accepts none."""
    plan = migration.plan
    facts = migration.journal.facts
    started = facts.relaunching or facts.target_attempt is not None or may_have_started(migration)
    try:
        _stop_target(migration, back, started=started)
    except HostError as error:
        provider_report = preempted(migration.fleet, migration.target_group.target)
        if provider_report:
            migration.note(f"{error.message}; {provider_report}: nothing runs there, and the source continues")
            migration.target_closed = True
            return
        if started:
            raise
        # The source has permitted no other process to start an engine there, and this one has not.
        migration.note(f"{error}; no engine was started on {plan.target_host}, so the source continues without it")


def _stop_target(migration: Migration, back: records.Fence, *, started: bool) -> None:
    """Stop the target and write its fence.

    ``started``: a process may have started it, or may do so when it is resumed: the fence is written there although
    there is no copy of the run yet.
    """
    plan, target = migration.plan, migration.target
    described = migration.target_group.describe()
    if described.fence is None and not described.attempts and not started:
        return  # the target has no copy of the run
    lost = lost_attempt(plan, migration.journal.facts, described.attempts)
    if lost and not migration.directory.losses_agreed():
        raise MidstreamError(lost, f"midstream --rollback {plan.migration} --yes accepts it")
    there = described.fence or records.first_fence("")
    if there.epoch > plan.epoch and not back.continues(there):
        raise MovedOnError(
            f"run {plan.run_id} was migrated on from {target.name} to {there.owner} (ownership {there.epoch}): "
            "a rollback would create a second lineage",
            f"migrate it from there: midstream --migrate {plan.run_id} --to {plan.source}",
        )
    keeps = there.epoch <= plan.epoch and keeps_steps(migration)
    if keeps:
        refuse_giving_up(migration)
    if there.epoch <= plan.epoch:
        refuse_lost_seal(migration)
    attempt = migration.target_group.attempt_of_migration(plan.migration)
    if attempt:
        migration.journal.record(
            Facts(target_attempt=attempt.attempt)
        )  # the source's next attempt gets a higher number
    if attempt and attempt.running:
        number, state = attempt.attempt, attempt.status.state if attempt.status else records.STARTING
        took_over = attempt.status is not None and attempt.status.epoch == plan.epoch
        log = show_log(migration.target_paths, number)
        try:
            if state in NOTHING_TO_SAVE or (keeps and took_over):  # a stop would save what is then given up
                migration.log_command(target, f"kill attempt {number} on {plan.target} ({state})", shows=log)
                migration.target_group.kill(number)
            else:
                migration.log_command(target, f"stop attempt {number} on {plan.target}", shows=log)
                migration.target_group.stop(number, STOP_TIMEOUT)
        except LaunchError as error:
            migration.note(f"{error}; killing it")
            migration.target_group.kill(number)
    if keeps:
        refuse_giving_up(migration)  # what it has saved before its end
    put_fence(migration, migration.target_group, back)
    migration.target_closed = True
