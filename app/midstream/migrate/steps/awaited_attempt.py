"""Checks whether an awaited attempt can still become what is awaited.

Both hosts may answer while the wait has no end: another attempt replaced this one, its start was not carried out, or
it is a standby that no command reached.
"""

from __future__ import annotations

from midstream.errors import MidstreamError
from midstream.migrate.host_group import HostGroup
from midstream.migrate.steps.migration import Migration
from midstream.migrate.steps.observation import run_on
from midstream_core import records
from midstream_host.runs import run_state, standby_state

STANDBY_STATES = (records.WAITING, records.REPLAYING)


def check_can_train(migration: Migration, group: HostGroup, attempt: int) -> None:
    """Raise MidstreamError if the attempt can never do an update."""
    status = _checked_status(migration, group, attempt)
    host, run_id = group.first, migration.plan.run_id
    if status is not None and status.state == records.STARTING and group is migration.target_group:
        evidence = host.call(run_state.trainer_evidence)(root=host.root, run_id=run_id, attempt=attempt)
        if evidence is not None and evidence.unrecorded:
            raise MidstreamError(
                f"attempt {attempt} of {run_id} on {group.target.name} trains, and no row of it can be recorded: "
                f"{evidence.unrecorded}",
                "metrics: in the run file has to name what the resumed trainer writes; its log: "
                f"{host.name}:{group.paths.attempt(attempt).log()}",
            )
    if status is None or status.epoch or status.state not in STANDBY_STATES:
        return
    command = host.call(standby_state.command)(root=host.root, run_id=run_id, attempt=attempt)
    present = host.call(run_state.status)(root=host.root, run_id=run_id, attempt=attempt).status  # after the command
    if present is None or present.epoch or present.state not in STANDBY_STATES:
        return
    if command is None or command.action in records.STANDBYS:
        raise _never(migration, group, attempt, "is a standby, and no command to train was sent to it")
    if present.rejected >= command.sequence:
        raise _never(migration, group, attempt, f"is a standby, and rejected the command to train: {present.message}")


def check_can_wait(migration: Migration, group: HostGroup, attempt: int) -> None:
    """Raise MidstreamError if the attempt cannot become a standby that is ready."""
    status = _checked_status(migration, group, attempt)
    if status is not None and status.epoch and status.state not in records.ENDED:
        raise _never(migration, group, attempt, f"is no standby: it is {status.state} under ownership {status.epoch}")


def _checked_status(migration: Migration, group: HostGroup, attempt: int) -> records.Status | None:
    """Return the attempt's status by its first host's report; None without one.

    Raises:
        MidstreamError: A process of the attempt failed, a later attempt was started, or this one has no process.
    """
    group.check_group(attempt)
    run = run_on(migration, migration.watch.snapshot(), group.first.name)
    if run is None:
        return None
    if run.attempt > attempt:
        raise _never(migration, group, attempt, f"was replaced: attempt {run.attempt} was started there since")
    if run.attempt == attempt:
        return run.status
    description = group.first.call(run_state.describe)(root=group.first.root, run_id=migration.plan.run_id)
    if description.attempt < attempt:
        raise _never(migration, group, attempt, f"has no process there: the newest attempt is {description.attempt}")
    return None


def _never(migration: Migration, group: HostGroup, attempt: int, seen: str) -> MidstreamError:
    return MidstreamError(
        f"attempt {attempt} of {migration.plan.run_id} on {group.target.name} {seen}",
        f"midstream --status shows what runs on {group.first.name}",
    )
