"""Start of the migrated run's next attempt on one end."""

from __future__ import annotations

from midstream.errors import RemoteError
from midstream.launch.host_group_start import start
from midstream.launch.start_attempt import Launch
from midstream.migrate.host_group import HostGroup
from midstream.migrate.steps.migration import Migration
from midstream.migrate.steps.record_commands import show_log
from midstream_core import records
from midstream_host.runs import run_state


def start_attempt(
    migration: Migration, group: HostGroup, command: records.Command, *, owner: str, at_least: int
) -> int:
    """Start the run's next attempt on ``group`` with ``command``, for ``owner``.

    Returns its number, ``at_least`` or higher. An attempt that a killed process of this migration started is adopted
    if it was started for the same: a standby is no attempt that trains.

    Args:
        migration: The migration.
        group: Hosts of the attempt: the migration's source or target.
        command: The engine's first command.
        owner: Name of the target that the attempt is started for.
        at_least: Lowest number of the attempt.
    """
    plan = migration.plan
    overrides = plan.target_flags if group is migration.target_group else plan.source_flags
    held = command.action in records.STANDBYS
    launch = Launch(plan.run_id, owner, command.epoch, command, overrides, at_least=at_least)
    try:
        number = start(migration.hosts, group.target, launch, group.prepared()).number
    except RemoteError as error:
        attempt = group.attempt_of_migration(plan.migration) if error.kind == "RefusedError" else None
        if attempt is None or not (attempt.running or _finished(attempt)) or attempt.epoch != command.epoch:
            raise
        if held != (attempt.action in records.STANDBYS):
            raise
        migration.note(f"attempt {attempt.attempt} of this migration runs on {group.target.name} already")
        return attempt.attempt
    what = f": it rehearses on {command.checkpoint} and waits" if held else f" from {command.checkpoint}"
    shows = show_log(group.paths, number)
    migration.log_command(group.first, f"start attempt {number} of {plan.run_id}{what}", shows=shows)
    return number


def _finished(attempt: run_state.MigrationAttempt) -> bool:
    return attempt.status is not None and attempt.status.state == records.FINISHED
