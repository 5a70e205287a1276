"""`--launch`, `--restart` and `--stop`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from midstream.errors import Exit, UsageError
from midstream.json_events.result_event import LaunchResult, StopResult
from midstream.launch.launch_request import LaunchRequest
from midstream.operations.fleet_snapshot import fleet_snapshot, run_of, unproven_run
from midstream.output import Output

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import HostPool


def launch(fleet: Fleet, options: argparse.Namespace, engine: tuple[str, ...], output: Output) -> int:
    """Start a run on a target.

    Returns when it trains; a job of a cluster waits in its queue.
    """
    from midstream.hosts.host_pool import HostPool

    hosts = HostPool(fleet)
    try:
        request = LaunchRequest(options.on, options.launch, options.run_id, engine, options.yes)
        return _start(hosts, request, options, output)
    finally:
        hosts.close()


def restart(fleet: Fleet, options: argparse.Namespace, engine: tuple[str, ...], output: Output) -> int:
    """Start the next attempt of a run on the target that owns it."""
    from midstream.hosts.host_pool import HostPool
    from midstream.operations.launch import restart_target

    hosts = HostPool(fleet)
    try:
        snapshot = fleet_snapshot(hosts)
        run = run_of(snapshot, options.restart)
        target = restart_target(fleet.target_names, snapshot, run)
        request = LaunchRequest(target, None, run.run_id, engine, options.yes)
        return _start(hosts, request, options, output)
    finally:
        hosts.close()


def _start(hosts: HostPool, request: LaunchRequest, options: argparse.Namespace, output: Output) -> int:
    """Start a run, and print the first state of its engine."""
    from midstream.launch.progress_line import reporter
    from midstream.operations import launch as operation

    report = reporter(output, verbose=options.verbose)
    attempt = operation.launch(hosts, request, report)
    status = operation.wait_until_training(hosts, attempt, report)
    result = LaunchResult(
        run=attempt.run_id,
        target=request.target,
        attempt=attempt.number,
        state=status.state if status else "starting",
        step=status.step if status else 0,
    )
    run = f"{attempt.run_id} on {request.target}, attempt {attempt.number}"
    words = f"{run}: {status.state}, step {status.step}" if status else f"{run}: starting (midstream --status shows it)"
    output.event(result, words)
    return Exit.DONE


def stop(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Save and stop a run on its current host."""
    from midstream.hosts.host_pool import HostPool
    from midstream.migrate.journal.migration_directory import list_migrations
    from midstream.operations import stop as operation
    from midstream.watch.damaged_runs import refuse_damaged

    hosts = HostPool(fleet)
    try:
        snapshot = fleet_snapshot(hosts)
        refuse_damaged(snapshot.deciding(options.stop))
        copies = snapshot.believed(options.stop)
        if not copies:
            raise unproven_run(options.stop, snapshot)
        running = [copy for copy in copies if copy.running]
        if not running:
            raise UsageError(
                f"run {options.stop} is not running ({copies[0].state} on {copies[0].host})",
                "midstream --status shows it",
            )
        run = running[0]
        for warning in operation.warnings(list_migrations(fleet), run):
            output.message(f"midstream: {warning}")
        stopped = operation.stop(hosts, snapshot, run, output.message)
    finally:
        hosts.close()
    step, checkpoint = (stopped.status.step, stopped.status.checkpoint) if stopped.status else (None, None)
    output.event(StopResult(run=run.run_id, host=run.host, step=step, checkpoint=checkpoint), stopped.words)
    return Exit.DONE
