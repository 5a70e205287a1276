"""Outcome of a rollback: whether the run runs on its source, or how to start it."""

from __future__ import annotations

import shlex

from midstream.migrate.journal.plan import Plan
from midstream.migrate.steps.migration import Migration, MovedOnError, RollbackRequested
from midstream.migrate.steps.ownership_records import is_returned
from midstream.migrate.steps.source_return import owns_run
from midstream_core import records


def refuse_moved_on(migration: Migration) -> None:
    """Raise MovedOnError if another migration has taken the run from the source.

    The source must not be started then: two lineages would run.
    """
    plan, fence = migration.plan, migration.source_group.describe().fence
    own = {plan.source, plan.route.source_target, migration.journal.facts.owner_before}
    if fence is None or fence.epoch < plan.epoch or fence.owner in own or owns_run(migration):
        return
    raise MovedOnError(
        f"another migration has taken {plan.run_id} from {plan.source} to {fence.owner} (ownership {fence.epoch})",
        "midstream --status shows where it is",
    )


def join_rollback(migration: Migration) -> None:
    """Raise RollbackRequested if another process rolls this migration back.

    A copy of this migration's files can have that process: its journal has the request, and this one lacks it.
    """
    if is_returned(migration):
        migration.note("another process has rolled this migration back, with a copy of its files")
        raise RollbackRequested


def not_running(migration: Migration) -> str:
    """Return why the run does not run on its source, and the command that starts it.

    Empty if it runs or has finished. A rollback does not start an engine that it did not stop: one that failed, or
    exited with its host, may have been stopped for a reason.

    Raises:
        HostError: the source does not answer.
    """
    plan, group = migration.plan, migration.source_group
    described = group.describe()
    status = described.status
    state = status.state if status else ""
    if described.running or not described.attempt or state == records.FINISHED:
        return ""
    if status is not None and state in records.ENDED:
        why = f"it {state} at step {status.step}{': ' + status.message if status.message else ''}"
    else:
        why = f"its process has exited (last status: {state or 'starting'} at step {status.step if status else 0})"
    usable = described.usable
    start = (
        f"from step {max(checkpoint.step for checkpoint in usable)}"
        if usable
        else "at step 0: it has no checkpoint yet"
    )
    return f"{plan.run_id} does not run on {plan.source}: {why}; {_restart_command(plan)} starts it there {start}"


def ran_before(plan: Plan) -> bool:
    """Return whether the run trained on its source when the migration was planned."""
    return plan.route.source_state not in (*records.ENDED, "lost", "unknown")


def _restart_command(plan: Plan) -> str:
    fleet = ["--fleet", plan.identity.fleet_file] if plan.identity.fleet_file else []
    return shlex.join(["midstream", *fleet, "--restart", plan.run_id])
