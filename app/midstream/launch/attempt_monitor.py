"""An attempt's processes on all its hosts: states, first failure, stop and kill."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from midstream.counts import count
from midstream.errors import ConnectionLostError, HostError
from midstream.hosts.deadline import RECONNECT_STEP, Deadline
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.install.errors import LaunchError, NotStartedError, NotStoppingError, NotYetError
from midstream.launch.rank_view import RankView
from midstream.launch.start_attempt import ANY, Rank
from midstream.launch.stop_request import CONCURRENCY, StopRequest, signal_ranks
from midstream_core import records
from midstream_host.runs import attempt_view
from midstream_host.runs.slurm_states import UNKNOWN

POLL_INTERVAL = 0.3  # seconds between two looks at an attempt
EXIT_TIMEOUT = 300.0  # seconds that processes may take to exit after their last status: they may swap
STOP_TIMEOUT = 900.0  # seconds for a run to stop: it saves before
FIRST_STEP_TIMEOUT = 1800.0  # seconds to the first step: the engine tokenizes, restores and compiles before it
HEARTBEAT_TIMEOUT = 15.0  # seconds without a heartbeat after which a running process is stalled
UNREACHABLE_TIMEOUT = 600.0  # seconds for which an unreachable host is waited for


def look(host: Host, run_id: str, attempt: int) -> attempt_view.AttemptView:
    """Return the host's description of the attempt."""
    return host.call(attempt_view.attempt)(root=host.root, run_id=run_id, number=attempt)


def ranks_of(hosts: HostPool, host: str, run_id: str, number: int) -> tuple[Rank, ...]:
    """Return all processes of an attempt of which ``host`` has one.

    Raises:
        UsageError: The fleet file lacks a host of the attempt.
    """
    machine = hosts.get(host)
    view = look(machine, run_id, number)
    if view.group:
        return tuple(Rank(process, name) for process, name in enumerate(view.group))
    return (Rank(ANY, host),)


def stop_run(
    hosts: HostPool,
    host: str,
    run_id: str,
    number: int,
    timeout: float,
    observe: Callable[[Sequence[RankView]], None] | None = None,
) -> records.Status:
    """Stop an attempt on all hosts after a save; return process 0's last status.

    Args:
        hosts: Connections to the fleet's hosts.
        host: Name of a host that has a process of the attempt.
        run_id: The run.
        number: Number of the attempt.
        timeout: Longest wait for its end, in seconds.
        observe: Called with the processes each time that they are looked at.

    Raises:
        NotYetError: It has the command, and still runs after ``timeout`` seconds.
        LaunchError: A process failed.
    """
    ended = stop_ranks(hosts, ranks_of(hosts, host, run_id, number), run_id, number, timeout, observe)
    first = ended[0].status
    assert first is not None  # `wait_ranks` returned it
    return first


def look_at_ranks(hosts: HostPool, ranks: Sequence[Rank], run_id: str, number: int) -> list[RankView]:
    """Return the states of all processes of an attempt, from their hosts concurrently.

    An unreachable host is reported as ``problem``: it proves nothing about the process.
    """

    def view(rank: Rank) -> list[RankView]:
        host = hosts.lookup(rank.host)
        try:
            host.connect()
            began = time.time()
            attempt = look(host, run_id, number)
        except HostError as error:
            return [RankView(rank.process, rank.host, problem=error.message)]
        skew = attempt.now - (began + time.time()) / 2
        mine = [process for process in attempt.processes if rank.process in (ANY, process.process)]
        return [_view(Rank(process.process, rank.host), process, skew) for process in mine] or [
            RankView(rank.process, rank.host)
        ]

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        return [view for views in pool.map(view, ranks) for view in views]


def _view(rank: Rank, process: attempt_view.ProcessView, skew: float) -> RankView:
    status, ended = process.status, process.exit
    unreachable = max(0.0, time.time() + skew - status.heartbeat) if status else 0.0
    if ended is not None:
        unreachable = max(0.0, ended.time - ended.heartbeat) if ended.heartbeat else 0.0
    return RankView(
        rank.process,
        rank.host,
        status,
        process.running,
        process.supervised,
        ended,
        tuple(process.log),
        unreachable,
        ended.time - skew if ended else None,
        job=f"job {process.job.job} ({process.job.state})" if process.job else "",
        job_unknown=process.job is not None and process.job.state == UNKNOWN,
    )


def first_failure(ranks: Sequence[RankView]) -> RankView | None:
    """Return the process whose failure ended the others; None if none has failed.

    The process is the first that ended: the others then lose their peer. If the stall watchdog ended it, the others
    were stalled too, waiting for a peer: then it is the one whose heartbeat stopped first, else the one that was
    behind.
    """
    failed = [rank for rank in ranks if rank.failed]
    if not failed:
        return None
    first = min(failed, key=lambda rank: rank.ended or float("inf"))
    if first.exit is None or not first.exit.stalled:
        return first
    lost = [rank for rank in ranks if rank.unreachable > HEARTBEAT_TIMEOUT]
    if lost and len(lost) < len(ranks):
        return max(lost, key=lambda rank: rank.unreachable)
    behind = min(ranks, key=lambda rank: rank.status.step if rank.status else 0)
    return first if behind.status is None or _step(behind) == _step(first) else behind


def _step(rank: RankView) -> int:
    return rank.status.step if rank.status else 0


def verdict(ranks: Sequence[RankView]) -> str:
    """Describe the first failure in one line; empty if no process has failed."""
    failure = first_failure(ranks)
    if failure is None:
        return ""
    if not failure.failed:
        return f"{failure.name} is stalled at step {_step(failure)} (no heartbeat for {failure.unreachable:.0f} s)"
    return f"{failure.name} failed: {failure.why}"


def wait_ranks(
    hosts: HostPool,
    ranks: Sequence[Rank],
    run_id: str,
    number: int,
    states: Collection[str],
    timeout: float,
    observe: Callable[[Sequence[RankView]], None] | None = None,
) -> list[RankView]:
    """Wait until every process is in one of ``states``.

    If a process fails the others are killed, because they cannot continue without it. The time for which a host is
    unreachable does not count.

    Args:
        hosts: Connections to the hosts.
        ranks: The processes.
        run_id: The run.
        number: The attempt's number.
        states: States of a status.
        timeout: Seconds.
        observe: Called with the processes each time that they are looked at.

    Raises:
        NotYetError: ``timeout`` is over.
        LaunchError: A process failed.
        ConnectionLostError: A host stayed unreachable for too long.
    """
    deadline, unreachable = Deadline(timeout, RECONNECT_STEP), Deadline(UNREACHABLE_TIMEOUT, RECONNECT_STEP)
    what = f"attempt {number} of {run_id}"
    while True:
        views = look_at_ranks(hosts, ranks, run_id, number)
        if observe is not None:
            observe(views)
        message = verdict(views)
        if message:
            kill_ranks(hosts, ranks, run_id, number)
            failure = first_failure(views)
            killed = "; the others were killed" if len(views) > 1 else ""
            raise LaunchError(
                f"{what}: {message}{killed}", f"midstream --log {run_id} has its log", failure.log if failure else ()
            )
        if all(rank.status is not None and rank.status.state in states for rank in views):
            return views
        early = next((rank for rank in views if rank.status and rank.status.state in records.ENDED), None)
        if early is not None and not any(rank.running or rank.problem for rank in views):
            raise LaunchError(f"{what} ended: {early.name} is {early.state}", log=early.log)
        lost = next((rank for rank in views if rank.problem), None)
        if lost is not None:
            deadline.skip()
            if unreachable.count():
                raise ConnectionLostError(
                    f"{what} on {lost.host} could not be seen for {UNREACHABLE_TIMEOUT:.0f} s: {lost.problem}",
                    f"midstream --status shows it; midstream --restart {run_id} starts it again where it has ended",
                )
        else:
            unreachable = Deadline(UNREACHABLE_TIMEOUT, RECONNECT_STEP)
            deadline.count()
        if deadline.reached:
            late = ", ".join(
                f"{rank.name} {rank.problem or 'is ' + rank.state}"
                for rank in views
                if rank.status is None or rank.status.state not in states
            )
            raise NotYetError(f"{what}: not {' or '.join(sorted(states))} after {timeout:.0f} s: {late}")
        time.sleep(POLL_INTERVAL)


def stop_ranks(
    hosts: HostPool,
    ranks: Sequence[Rank],
    run_id: str,
    number: int,
    timeout: float,
    observe: Callable[[Sequence[RankView]], None] | None = None,
) -> list[RankView]:
    """Stop all processes at the same step boundary, sealed; return their last states.

    A request without an effect is repeated.

    Args:
        hosts: Connections to the fleet's hosts.
        ranks: Processes of the attempt.
        run_id: The run.
        number: Number of the attempt.
        timeout: Longest wait for their end, in seconds.
        observe: Called with the processes each time that they are looked at.

    Raises:
        NotYetError: A process still runs after ``timeout`` seconds.
        NotStoppingError: The same, and it does not show that it has the request.
        NotStartedError: It was a job that waited in the queue, and is cancelled.
        LaunchError: A process failed.
    """
    before = look_at_ranks(hosts, ranks, run_id, number)
    request = StopRequest(hosts, ranks, run_id, number, before)
    request.send()
    if all(rank.status is None and rank.job for rank in before):
        wait_ranks_exited(hosts, ranks, run_id, number)
        if all(rank.status is None and not rank.problem for rank in look_at_ranks(hosts, ranks, run_id, number)):
            job = before[0].job.partition(" (")[0]
            raise NotStartedError(f"{job} of {run_id} is cancelled: its engine had not started")
    unheeded: list[RankView] = []

    def repeat(views: Sequence[RankView]) -> None:
        request.repeat(views)
        unheeded[:] = request.unheeded(views)
        if observe is not None:
            observe(views)

    try:
        ended = wait_ranks(hosts, ranks, run_id, number, records.ENDED, timeout, repeat)
    except NotYetError as error:
        if not unheeded:
            raise
        states = ", ".join(f"{rank.name} is {rank.state}" for rank in unheeded)
        raise NotStoppingError(
            f"attempt {number} of {run_id} has not begun to stop after {count(request.count, 'request')} in "
            f"{timeout:.0f} s: {states}",
            f"midstream --log {run_id} shows its last step; a longer step may have to end first",
        ) from error
    if any(rank.running and rank.job for rank in ended):  # a job that waits in the queue would start it again
        signal_ranks(hosts, ranks, run_id, number, "SIGTERM")
    wait_ranks_exited(hosts, ranks, run_id, number)
    return ended


def kill_ranks(hosts: HostPool, ranks: Sequence[Rank], run_id: str, number: int, timeout: float = EXIT_TIMEOUT) -> None:
    """Kill all processes on hosts that can be reached, without saving.

    Args:
        hosts: Connections to the fleet's hosts.
        ranks: Processes of the attempt.
        run_id: The run.
        number: Number of the attempt.
        timeout: Longest wait for their end, in seconds.

    Raises:
        LaunchError: A process still runs after ``timeout`` seconds.
    """
    signal_ranks(hosts, ranks, run_id, number, "SIGKILL")
    wait_ranks_exited(hosts, ranks, run_id, number, timeout)


def wait_ranks_exited(
    hosts: HostPool, ranks: Sequence[Rank], run_id: str, number: int, timeout: float = EXIT_TIMEOUT
) -> None:
    """Wait until no process runs on the hosts that can be reached.

    Args:
        hosts: Connections to the fleet's hosts.
        ranks: Processes of the attempt.
        run_id: The run.
        number: Number of the attempt.
        timeout: Longest wait, in seconds.

    Raises:
        LaunchError: A process still runs after ``timeout`` seconds.
    """
    deadline = Deadline(timeout, RECONNECT_STEP)
    while True:
        views = look_at_ranks(hosts, ranks, run_id, number)
        remaining = [rank for rank in views if rank.running or rank.supervised]
        if not remaining:
            return
        if deadline.count():
            names = ", ".join(rank.name for rank in remaining)
            raise LaunchError(f"attempt {number} of {run_id}: {names} does not end", "check the processes of the host")
        time.sleep(POLL_INTERVAL)


def wait_exited(host: Host, run_id: str, attempt: int) -> None:
    """Wait until none of the attempt's processes runs on one host.

    The host has to answer.

    Raises:
        LaunchError: One still runs after `EXIT_TIMEOUT`.
        HostError: The host does not answer.
    """
    deadline = Deadline(EXIT_TIMEOUT, RECONNECT_STEP)
    while (view := look(host, run_id, attempt)).running or any(process.supervised for process in view.processes):
        if deadline.count():
            raise LaunchError(
                f"attempt {attempt} of {run_id} on {host.name} does not end", "check the processes of the host"
            )
        time.sleep(POLL_INTERVAL)
