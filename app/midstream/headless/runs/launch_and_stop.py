"""`--launch`, `--restart` and `--stop`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from midstream.errors import Exit, UsageError
from midstream.operations.fleet_snapshot import fleet_snapshot, run_of, unproven_run
from midstream.output import Output
from midstream_core import records

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import HostPool
    from midstream.install.reporter import Reporter
    from midstream.launch.rank_view import RankView
    from midstream.launch.start_attempt import Attempt

START_TIMEOUT = 1800.0  # seconds to wait for the first step: the engine tokenizes and compiles before it


def launch(fleet: Fleet, options: argparse.Namespace, engine: tuple[str, ...], output: Output) -> int:
    """Start a run on a target.

    Returns when it trains; a job of a cluster waits in its queue.
    """
    from midstream.hosts.host_pool import HostPool

    hosts = HostPool(fleet)
    try:
        return _start(hosts, fleet, options, options.on, options.launch, options.run_id, engine, output)
    finally:
        hosts.close()


def restart(fleet: Fleet, options: argparse.Namespace, engine: tuple[str, ...], output: Output) -> int:
    """Start the next attempt of a run on the target that owns it."""
    from midstream.hosts.host_pool import HostPool

    hosts = HostPool(fleet)
    try:
        snapshot = fleet_snapshot(fleet, hosts)
        run, head = run_of(snapshot, options.restart), snapshot.judgement(options.restart).head
        owner = head.owner if head is not None else run.fence.owner if run.fence is not None else run.host
        target = owner if owner in fleet.target_names else run.host
        return _start(hosts, fleet, options, target, None, run.run_id, engine, output)
    finally:
        hosts.close()


def _start(
    hosts: HostPool,
    fleet: Fleet,
    options: argparse.Namespace,
    target: str,
    config: str | None,
    run_id: str | None,
    engine: tuple[str, ...],
    output: Output,
) -> int:
    """Start a run, and print the first state of its engine."""
    from midstream.launch.launch_run_file import launch_any
    from midstream.launch.progress_line import reporter

    report = reporter(output, verbose=options.verbose)
    attempt = launch_any(hosts, fleet, target, config, run_id, engine, report, options.yes)
    status = _wait_until_training(hosts, attempt, report)
    run = f"{attempt.run_id} on {target}, attempt {attempt.number}"
    output.value(
        {
            "event": "result",
            "ok": True,
            "run": attempt.run_id,
            "target": target,
            "attempt": attempt.number,
            "state": status.state if status else "starting",
            "step": status.step if status else 0,
        },
        f"{run}: {status.state}, step {status.step}" if status else f"{run}: starting (midstream --status shows it)",
    )
    return Exit.DONE


def _wait_until_training(hosts: HostPool, attempt: Attempt, report: Reporter) -> records.Status | None:
    """Wait until a run trains or has finished; return its status, None if too slow.

    For a job in a cluster's queue None is returned at once.

    Raises:
        LaunchError: The run failed, with the reason.
    """
    from midstream.install.errors import LaunchError, NotYetError
    from midstream.launch.attempt_monitor import wait_ranks

    if not attempt.process.pid:  # in the queue of a cluster, for hours perhaps
        return None

    def observe(ranks: Sequence[RankView]) -> None:
        first = ranks[0] if ranks else None
        message = first.status.message if first and first.status else ""
        report.update(attempt.run_id, (first.state if first else "starting") + (f", {message}" if message else ""))

    states = {records.TRAINING, records.SAVING, records.STOPPED, records.FINISHED}
    report.update(attempt.run_id, "starting")  # a fast engine has passed it at the first look
    try:
        found = wait_ranks(hosts, attempt.ranks, attempt.run_id, attempt.number, states, START_TIMEOUT, observe)
    except NotYetError:
        return None
    except LaunchError as error:
        raise LaunchError(error.message, f"midstream --log {attempt.run_id} has its log", error.log) from None
    except KeyboardInterrupt:
        report(f"{attempt.run_id} starts without this command; midstream --stop {attempt.run_id} stops it")
        raise
    finally:
        report.end(attempt.run_id)
    return found[0].status


def stop(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Save and stop a run on its current host."""
    from midstream.hosts.host_pool import HostPool
    from midstream.migrate.journal.migration_directory import list_migrations
    from midstream.operations import stop as operation
    from midstream.watch.damaged_runs import refuse_damaged

    hosts = HostPool(fleet)
    try:
        snapshot = fleet_snapshot(fleet, hosts)
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
    result = {"event": "result", "ok": True, "run": run.run_id, "host": run.host}
    if stopped.status is not None:
        result |= {"step": stopped.status.step, "checkpoint": stopped.status.checkpoint}
    output.value(result, stopped.words)
    return Exit.DONE
