"""Start a run, or the next attempt of one, and wait until it trains."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from midstream_core import records

if TYPE_CHECKING:
    from midstream.hosts.host_pool import HostPool
    from midstream.install.reporter import Reporter
    from midstream.launch.launch_request import LaunchRequest
    from midstream.launch.rank_view import RankView
    from midstream.launch.start_attempt import Attempt
    from midstream.watch.snapshot import RunView, Snapshot


def restart_target(targets: Collection[str], snapshot: Snapshot, run: RunView) -> str:
    """Return the target of a run's next attempt: its proven owner, or else its host."""
    head = snapshot.judgement(run.run_id).head
    owner = head.owner if head is not None else run.fence.owner if run.fence is not None else run.host
    return owner if owner in targets else run.host


def launch(hosts: HostPool, request: LaunchRequest, report: Reporter) -> Attempt:
    """Install engine and environment on the target and start the run.

    Raises:
        MidstreamError: It was refused, or could not be started.
    """
    from midstream.launch.launch_run_file import launch_any

    return launch_any(hosts, request, report)


def wait_until_training(hosts: HostPool, attempt: Attempt, report: Reporter) -> records.Status | None:
    """Wait until a run trains or has finished; return its status, None if too slow.

    For a job in a cluster's queue None is returned at once.

    Raises:
        LaunchError: The run failed, with the reason.
    """
    from midstream.install.errors import LaunchError, NotYetError
    from midstream.launch.attempt_monitor import FIRST_STEP_TIMEOUT, wait_ranks

    if not attempt.process.pid:  # in the queue of a cluster, for hours perhaps
        return None

    def observe(ranks: Sequence[RankView]) -> None:
        first = ranks[0] if ranks else None
        message = first.status.message if first and first.status else ""
        report.update(attempt.run_id, (first.state if first else "starting") + (f", {message}" if message else ""))

    states = {records.TRAINING, records.SAVING, records.STOPPED, records.FINISHED}
    report.update(attempt.run_id, "starting")  # a fast engine has passed it at the first look
    try:
        ranks = wait_ranks(hosts, attempt.ranks, attempt.run_id, attempt.number, states, FIRST_STEP_TIMEOUT, observe)
    except NotYetError:
        return None
    except LaunchError as error:
        raise LaunchError(error.message, f"midstream --log {attempt.run_id} has its log", error.log) from None
    except KeyboardInterrupt:
        report(f"{attempt.run_id} starts without this command; midstream --stop {attempt.run_id} stops it")
        raise
    finally:
        report.end(attempt.run_id)
    return ranks[0].status
