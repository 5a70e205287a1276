"""`--checkpoints`: list the checkpoints of one run, or of all."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from midstream.errors import Exit
from midstream.format import age_since, size
from midstream.json_events.run_events import CheckpointEvent
from midstream.operations.fleet_snapshot import fleet_snapshot, unknown_run
from midstream.output import Output, table

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream_core.listed_checkpoint import ListedCheckpoint


def checkpoints(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """List the checkpoints of one run, or of all, on every reachable host."""
    from midstream.hosts.host_pool import HostPool

    hosts = HostPool(fleet)
    try:
        snapshot = fleet_snapshot(hosts)
        runs = [run for run in snapshot.runs if not options.checkpoints or run.run_id == options.checkpoints]
        if options.checkpoints and not runs:
            raise unknown_run(options.checkpoints, snapshot)
    finally:
        hosts.close()
    rows = [("RUN", "HOST", "CHECKPOINT", "SIZE", "AGE", "STATE", "ROOT DIGEST")]
    for run in runs:
        if run.problem:
            output.message(f"midstream: {run.run_id} on {run.host}: {run.problem}")
        for checkpoint in sorted(run.checkpoints, key=lambda checkpoint: checkpoint.order):
            if output.as_json:
                where = {"run": run.run_id, "host": run.host, "store": run.store}
                fields = {name: value for name, value in asdict(checkpoint).items() if name != "start"}
                output.event(CheckpointEvent(**where, **fields))
            rows.append(
                (
                    run.run_id,
                    run.host,
                    checkpoint.name,
                    size(checkpoint.size),
                    age_since(checkpoint.created),
                    _checkpoint_state(checkpoint),
                    checkpoint.root_digest[:16],
                )
            )
    unknown = any(run.store and run.problem and not run.checkpoints for run in runs)
    if not output.as_json:
        output.value({}, table(rows) if len(rows) > 1 else [] if unknown else ["no checkpoints yet"])
    return Exit.FAILED if unknown and options.checkpoints else Exit.DONE


def _checkpoint_state(checkpoint: ListedCheckpoint) -> str:
    words = ["complete" if checkpoint.complete else "damaged" if checkpoint.damaged else "partial"]
    if checkpoint.complete and not checkpoint.accepted:
        words.append("does not count")
    if checkpoint.pinned:
        words.append("pinned")
    return ", ".join(words)
