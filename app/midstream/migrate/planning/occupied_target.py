"""Checks of what else runs on a target."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from midstream.check.check_result import FAIL, PASS, WARN, Check
from midstream.errors import RemoteError
from midstream.fleet.fleet import Fleet
from midstream.hosts.host import FleetHost
from midstream.migrate.journal.migration_directory import list_migrations
from midstream.migrate.journal.plan import Plan
from midstream_core import records
from midstream_host.runs import run_state, slurm, slurm_commands, standby_state


def check_occupied(target: FleetHost, fleet: Fleet, plan: Plan, *, alone: bool) -> Iterator[Check]:
    """Check what runs on the target.

    ``alone``: SLURM gives the run accelerators that no other run uses.
    """
    others: list[str] = []
    for run_id in target.call(run_state.list_runs)(root=target.root):
        if alone and run_id != plan.run_id:
            continue
        try:
            attempt = target.call(run_state.running_attempt)(root=target.root, run_id=run_id)
        except RemoteError as error:
            if run_id == plan.run_id:
                raise
            yield Check("target is free", WARN, f"state of {run_id} cannot be read: {error.message}")
            continue
        if not attempt:
            continue
        if run_id == plan.run_id and plan.source == plan.target_host:
            continue  # the source's own attempt: both have one run directory
        if run_id == plan.run_id:
            yield in_the_way(target, fleet, run_id, attempt)
            return
        others.append(run_id)
    if others:
        yield Check(
            "target is free", WARN, f"{', '.join(others)} also trains there", "stop it, or expect both to be slow"
        )
    else:
        yield Check("target is free", PASS, "SLURM allocates it" if alone else "nothing trains there")


def other_migration(migration: str) -> str:
    """Return a hint on another migration, which may be healthy: to end it comes last."""
    return f"on the machine that started it midstream --continue {migration} follows it, --rollback {migration} ends it"


def _leftover_standby(
    target: FleetHost, fleet: Fleet, run_id: str, attempt: int, status: records.Status | None, migration: str
) -> str:
    """Return how to end a standby that an ended migration's rollback did not reach.

    The migration was started on this machine. Empty for another one, whose commands end the standby.
    """
    if not any(view.migration == migration and not view.open for view in list_migrations(fleet)):
        return ""
    hint = "that migration has ended, and the standby exits within an hour"
    job = target.call(slurm.job_of_attempt)(root=target.root, run_id=run_id, attempt=attempt)
    if job is not None:  # its process is on a compute node, where the id is valid
        number, cluster = slurm_commands.named(job.job)
        ends = shlex.join(["scancel", *cluster, number]) if job.state != slurm.UNKNOWN else ""
    else:
        ends = f"kill {status.pid}" if status is not None and target.config.container is None else ""
    return f"{hint}, or now by: {target.shell_line(ends)}" if ends else hint


def in_the_way(target: FleetHost, fleet: Fleet, run_id: str, attempt: int) -> Check:
    """Describe an attempt of the run itself that runs on the target."""
    status = target.call(run_state.status)(root=target.root, run_id=run_id, attempt=attempt).status
    command = target.call(standby_state.command)(root=target.root, run_id=run_id, attempt=attempt)
    if (
        (status is None or status.epoch == 0)
        and command is not None
        and command.action in (records.STANDBY, records.REPLAY)
    ):
        return Check(
            "run is free",
            FAIL,
            f"attempt {attempt} of {run_id} is a standby on {target.name} for migration {command.migration}",
            _leftover_standby(target, fleet, run_id, attempt, status, command.migration)
            or other_migration(command.migration),
        )
    return Check(
        "run is free",
        FAIL,
        f"attempt {attempt} of {run_id} already runs on {target.name}",
        f"two lineages would run: stop the wrong one with --stop, or migrate from {target.name}",
    )
