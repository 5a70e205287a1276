"""`--launch` and `--stop`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from midstream.errors import Exit, MidstreamError, UsageError
from midstream.headless.fleet_snapshot import fleet_snapshot, unknown_run
from midstream.output import Output
from midstream_engine import records

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import HostPool
    from midstream.launch.attempt_monitor import RankView
    from midstream.launch.reporter import Reporter
    from midstream.launch.start_attempt import Attempt
    from midstream.watch.snapshot import RunView

STOP_TIMEOUT = 900.0  # seconds: the run saves before it stops
START_TIMEOUT = 1800.0  # seconds to wait for the first step: the engine tokenizes and compiles before it


def launch(fleet: Fleet, options: argparse.Namespace, engine: tuple[str, ...], output: Output) -> int:
    """Start a run on a target.

    Returns when it trains; a job of a cluster waits in its queue.
    """
    from midstream.foreign.launch_run_file import launch_any
    from midstream.hosts.host_pool import HostPool
    from midstream.launch.progress_line import reporter

    report = reporter(output, verbose=options.verbose)
    hosts = HostPool(fleet)
    try:
        attempt = launch_any(hosts, fleet, options.on, options.launch, options.run_id, engine, say=report)
        status = _wait_until_training(hosts, attempt, report)
    finally:
        hosts.close()
    run = f"{attempt.run_id} on {options.on}, attempt {attempt.number}"
    output.value(
        {
            "event": "result",
            "ok": True,
            "run": attempt.run_id,
            "target": options.on,
            "attempt": attempt.number,
            "state": status.state if status else "starting",
            "step": status.step if status else 0,
        },
        f"{run}: {status.state}, step {status.step}" if status else f"{run}: starting (midstream --status shows it)",
    )
    return Exit.DONE


def _wait_until_training(hosts: HostPool, attempt: Attempt, report: Reporter) -> records.Status | None:
    """Wait for the first status of a run that trains, or has finished.

    It is None if it has not begun within the time.

    Raises:
        LaunchError: The run failed, with the reason.
    """
    from midstream.launch.attempt_monitor import wait_ranks
    from midstream.launch.errors import LaunchError, NotYetError

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
    from midstream.launch.errors import NotStartedError
    from midstream.watch.runs.damaged_runs import refuse_damaged

    hosts = HostPool(fleet)
    try:
        snapshot = fleet_snapshot(fleet, hosts)
        copies = snapshot.copies(options.stop)
        if not copies:
            raise unknown_run(options.stop, snapshot)
        refuse_damaged(copies)
        running = [copy for copy in copies if copy.running]
        if not running:
            raise UsageError(
                f"run {options.stop} is not running ({copies[0].state} on {copies[0].host})",
                "midstream --status shows it",
            )
        run = running[0]
        hosts_text = ", ".join(each.host for each in snapshot.members(run))
        _warn_of_migrations(fleet, run, output)
        output.message(f"stopping {run.run_id} on {hosts_text}: {run.queued or 'saving first'}")
        try:
            ended = _stopped(hosts, run, output)
        except NotStartedError as error:
            output.value({"event": "result", "ok": True, "run": run.run_id, "host": run.host}, error.message)
            return Exit.DONE
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
        f"{run.run_id} {ended.state} at step {ended.step}, "
        + (f"checkpoint {ended.checkpoint}" if ended.checkpoint else "without a checkpoint"),
    )
    return Exit.DONE


def _warn_of_migrations(fleet: Fleet, run: RunView, output: Output) -> None:
    """Print which open migrations may start the run again after the stop.

    They are those that were started on this machine.
    """
    from midstream.migrate.journal.migration_directory import open_migrations
    from midstream.migrate.records.migration_state import RUNNING

    for view in open_migrations(fleet, run.run_id):
        plan = view.plan
        what = f"migration {view.migration} of {run.run_id} from {plan.source} to {plan.target} is {view.state}"
        if view.rolled_back:
            then = f"it starts {run.run_id} on {plan.source} again"
        elif run.host == plan.source:
            then = f"after this stop it starts {run.run_id} on {plan.target}"
        else:
            then = f"its source {plan.source} is not retired before {run.run_id} runs on {plan.target} again"
        if view.state != RUNNING:
            then = f"midstream --continue {view.migration} continues it: {then}"
        output.message(f"midstream: {what}: {then} (midstream --rollback {view.migration} ends the migration)")


def _stopped(hosts: HostPool, run: RunView, output: Output) -> records.Status:
    """Stop a run and return its last status; print what it waits for.

    A run of another trainer may wait for its next checkpoint.

    Raises:
        MidstreamError: It failed, or does not end in time, or the user pressed Ctrl-C; the last two do not take the
            command back.
    """
    from midstream.launch.attempt_monitor import stop_run
    from midstream.launch.errors import NotYetError

    shown: list[str] = []  # what the run said; not empty once it has the command

    def observe(ranks: Sequence[RankView]) -> None:
        message = next((rank.status.message for rank in ranks if rank.status and rank.running), "")
        if message and message not in shown:
            output.message(f"{run.run_id}: {message}")
        shown.append(message)

    sent, hint = f"{run.run_id} has the command, and stops when it has saved", "midstream --status shows when it has"
    try:
        return stop_run(hosts, run.host, run.run_id, run.attempt, STOP_TIMEOUT, observe)
    except NotYetError as error:
        raise NotYetError(f"{error.message}; {sent}", hint) from error
    except KeyboardInterrupt:
        if not shown:
            raise
        raise MidstreamError(f"interrupted: {sent}", hint, Exit.INTERRUPTED) from None
