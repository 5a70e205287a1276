"""Starting and stopping runs without a screen."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from midstream.errors import Exit, UsageError
from midstream.headless.status import look, unknown_run
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet


def launch(fleet: Fleet, options: argparse.Namespace, engine: tuple[str, ...], output: Output) -> int:
    """Start a run on a target and return as soon as its engine is started."""
    from midstream.hosts.host_pool import Hosts
    from midstream.launch.launch_run import launch_run

    hosts = Hosts(fleet)
    try:
        attempt = launch_run(hosts, fleet, options.on, Path(options.launch), options.run_id, engine, say=output.talk)
    finally:
        hosts.close()
    output.value(
        {"event": "result", "ok": True, "run": attempt.run_id, "target": options.on, "attempt": attempt.number},
        f"{attempt.run_id} starts on {options.on}, attempt {attempt.number}",
    )
    return Exit.DONE


def stop(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Save and stop a run where it runs now."""
    from midstream.hosts.host_pool import Hosts
    from midstream.launch.attempt_monitor import stop_run
    from midstream.watch.damaged_runs import refuse_damaged

    hosts = Hosts(fleet)
    try:
        snapshot = look(fleet, hosts)
        copies = snapshot.copies(options.stop)
        if not copies:
            raise unknown_run(options.stop, snapshot)
        refuse_damaged(copies)
        living = [copy for copy in copies if copy.running]
        if not living:
            raise UsageError(
                f"run {options.stop} does not run ({copies[0].state} on {copies[0].host})",
                "midstream --status shows it",
            )
        run = living[0]
        where = ", ".join(each.host for each in snapshot.members(run))
        output.talk(f"stopping {run.run_id} on {where}: it saves first")
        ended = stop_run(hosts, run.host, run.run_id, run.attempt, timeout=900.0)
    finally:
        hosts.close()
    output.value(
        {
            "event": "result",
            "ok": True,
            "run": run.run_id,
            "host": run.host,
            "step": ended.step,
            "checkpoint": ended.checkpoint,
        },
        f"{run.run_id} {ended.state} at step {ended.step}, checkpoint {ended.checkpoint}",
    )
    return Exit.DONE
