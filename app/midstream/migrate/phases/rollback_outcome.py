"""What a rollback left: whether the run runs on its source again, and the command that starts it where it does not."""

from __future__ import annotations

import shlex

from midstream.migrate.execution.migration import Migration
from midstream_engine import records

CONFIG = "run.yaml"  # in the migration's directory: the run's own, for the command that starts it


def not_running(move: Migration) -> str:
    """One line that says why the run does not run on its source, and the command that starts it there. Empty where it
    runs, has finished, or did not run before the migration either. HostError where the source does not answer.

    A rollback does not start what it did not stop: an engine that failed by itself, or went with its host, may have
    been stopped for a reason."""
    plan, side = move.plan, move.source_group
    described = side.describe()
    status = described["status"] or {}
    state = status.get("state", "")
    before = plan.source_state not in (*records.ENDED, "lost")
    if described["running"] or not described["attempt"] or state == records.FINISHED or not before:
        return ""
    if state in records.ENDED:
        why = f"it {state} at step {status['step']}{': ' + status['message'] if status.get('message') else ''}"
    else:
        why = f"its process is gone (last seen: {state or 'starting'} at step {status.get('step', 0)})"
    usable = [point for point in described["checkpoints"] if point["complete"] and point["accepted"]]
    start = f"from step {max(point['step'] for point in usable)}" if usable else "at step 0: it has saved nothing yet"
    return f"{plan.run_id} does not run on {plan.source}: {why}; {_launch_command(move)} starts it there {start}"


def _launch_command(move: Migration) -> str:
    """As a person would type it. The config that the command needs is brought here from the source."""
    plan, source = move.plan, move.source
    config = move.directory.path / CONFIG
    records.write_bytes(str(config), source.call("runs.run_state.read_text", path=move.source_paths.config).encode())
    words = ["midstream"]
    if plan.fleet_file:
        words += ["--fleet", plan.fleet_file]
    words += ["--launch", str(config), "--on", plan.source_target or plan.source, "--run-id", plan.run_id]
    return shlex.join(words)
