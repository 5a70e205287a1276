"""Close the target of a migration: undo the relaunch."""

from __future__ import annotations

from midstream.errors import HostError
from midstream.launch.errors import LaunchError
from midstream.migrate.phases.context.migration import Migration, MovedOnError
from midstream.migrate.phases.context.preemption import preempted
from midstream.migrate.phases.context.record_commands import show_log
from midstream.migrate.phases.undo.source_return import put_fence
from midstream.migrate.records.facts import Facts
from midstream_engine import records

STOP_TIMEOUT = 300.0  # seconds
NOTHING_TO_SAVE = frozenset({records.STARTING, records.COMPILING, records.RESTORING})


def close_target(migration: Migration, back: records.Fence) -> None:
    """End this migration's target processes; write the fence that accepts none."""
    plan = migration.plan
    started = migration.journal.facts.relaunching or migration.journal.facts.target_attempt is not None
    try:
        _stop_target(migration, back)
    except HostError as error:
        provider_report = preempted(migration.fleet, migration.target_group.target)
        if provider_report:
            migration.note(f"{error.message}; {provider_report}: nothing runs there, and the source continues")
            return
        if started:
            raise
        # No engine was started there, and without a fence of this epoch none can be.
        migration.note(f"{error}; no engine was started on {plan.target_host}, so the source continues without it")


def _stop_target(migration: Migration, back: records.Fence) -> None:
    plan, target = migration.plan, migration.target
    described = migration.target_group.describe()
    if described.fence is None and not described.attempts:
        return  # the target has no copy of the run
    there = described.fence or records.first_fence("")
    if there.epoch > plan.epoch and there != back:
        raise MovedOnError(
            f"run {plan.run_id} was migrated on from {target.name} to {there.owner} (epoch {there.epoch}): "
            "a rollback would create a second lineage",
            f"migrate it from there: midstream --migrate {plan.run_id} --to {plan.source}",
        )
    found = migration.target_group.attempt_of_migration(plan.migration)
    if found:
        migration.journal.record(Facts(target_attempt=found.attempt))  # the source's next attempt gets a higher number
    if found and found.running:
        number, state = found.attempt, found.status.state if found.status else records.STARTING
        log = show_log(migration.target_paths, number)
        try:
            if state in NOTHING_TO_SAVE:
                migration.log_command(target, f"kill attempt {number} on {plan.target} ({state})", shows=log)
                migration.target_group.kill(number)
            else:
                migration.log_command(target, f"stop attempt {number} on {plan.target}", shows=log)
                migration.target_group.stop(number, STOP_TIMEOUT)
        except LaunchError as error:
            migration.note(f"{error}; killing it")
            migration.target_group.kill(number)
    put_fence(migration, migration.target_group, back)
