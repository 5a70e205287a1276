"""An attempt's processes on all its hosts: states, first failure, stop and kill."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from midstream.errors import ConnectionLostError, HostError, RemoteError
from midstream.hosts.deadline import RECONNECT_STEP, Deadline
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.launch.errors import LaunchError, NotStartedError, NotYetError
from midstream.launch.start_attempt import ANY, Rank
from midstream.remote.runs import attempt_view, run_state
from midstream_engine import records

POLL_INTERVAL = 0.3  # seconds between two looks at an attempt
EXIT_TIMEOUT = 300.0  # seconds that processes may take to exit after their last status: they may swap
CONCURRENCY = 32  # hosts that are requested at the same time
HEARTBEAT_TIMEOUT = 15.0  # seconds without a heartbeat after which a running process is stalled
UNREACHABLE_TIMEOUT = 600.0  # seconds for which an unreachable host is waited for
SCANCEL_TIMEOUT = 60.0  # seconds for which a signal is repeated that SLURM does not accept
SCANCEL_INTERVAL = 5.0  # seconds


@dataclass(frozen=True)
class RankView:
    """The state of one process of an attempt. Times are those of this machine's clock."""

    process: int
    host: str
    status: records.Status | None = None
    running: bool = False  # positive evidence that it runs
    supervised: bool = False  # its supervisor runs
    exit: records.ProcessExit | None = None
    log: tuple[str, ...] = ()
    unreachable: float = 0.0  # seconds since its last heartbeat, by its own host's clock
    ended: float | None = None  # when it ended
    problem: str = ""  # why its state is unknown, in one line
    job: str = ""  # of SLURM, with its state

    @property
    def name(self) -> str:
        return f"process {self.process} on {self.host}"

    @property
    def state(self) -> str:
        if self.status is None:
            return "failed" if self.failed else "starting" if self.running else "unknown" if self.problem else "empty"
        if self.status.state not in records.ENDED and not self.running and not self.problem:
            return "failed" if self.failed else "lost"
        return self.status.state

    @property
    def failed(self) -> bool:
        """Whether there is evidence that it failed."""
        if self.exit is not None:
            return self.exit.failed
        if self.status is not None and self.status.state in records.ENDED:
            return self.status.state == records.FAILED
        return not (self.running or self.supervised or self.problem)

    @property
    def ended_from_outside(self) -> bool:
        """Whether it was killed from outside, or lost with its machine.

        False if it ended by an error of its own.
        """
        return self.failed and (self.exit is None or (bool(self.exit.signal) and not self.exit.stalled))

    @property
    def why(self) -> str:
        """Reason of its end, in one line."""
        if self.exit is not None and self.exit.message:
            return self.exit.message
        if self.status is not None and self.status.message:
            return self.status.message
        last_line = next((line.strip() for line in reversed(self.log) if line.strip()), "its log is empty")
        if self.job:
            return f"{self.job} has ended: {last_line}"
        return f"exited without a message: {last_line}"


def look(host: Host, run_id: str, attempt: int) -> attempt_view.AttemptView:
    """Return the host's description of the attempt.

    It has the form that `midstream.remote.runs.attempt_view.attempt` returns.
    """
    return host.call(attempt_view.attempt)(root=host.root, run_id=run_id, number=attempt)


def ranks_of(hosts: HostPool, host: str, run_id: str, number: int) -> tuple[Rank, ...]:
    """Return all processes of an attempt of which ``host`` has one.

    Raises:
        UsageError: The fleet file lacks a host of the attempt.
    """
    machine = hosts.get(host)
    found = look(machine, run_id, number)
    if found.group:
        return tuple(Rank(process, name) for process, name in enumerate(found.group))
    return (Rank(ANY, host),)


def stop_run(
    hosts: HostPool,
    host: str,
    run_id: str,
    number: int,
    timeout: float,
    observe: Callable[[Sequence[RankView]], None] | None = None,
) -> records.Status:
    """Stop an attempt on all its hosts; return the last status of process 0.

    It saves, seals and exits.

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
            found = look(host, run_id, number)
        except HostError as error:
            return [RankView(rank.process, rank.host, problem=error.message)]
        skew = found.now - (began + time.time()) / 2
        mine = [each for each in found.processes if rank.process in (ANY, each.process)]
        return [_view(Rank(each.process, rank.host), each, skew) for each in mine] or [
            RankView(rank.process, rank.host)
        ]

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        return [each for views in pool.map(view, ranks) for each in views]


def _view(rank: Rank, found: attempt_view.ProcessView, skew: float) -> RankView:
    status, ended = found.status, found.exit
    unreachable = max(0.0, time.time() + skew - status.heartbeat) if status else 0.0
    if ended is not None:
        unreachable = max(0.0, ended.time - ended.heartbeat) if ended.heartbeat else 0.0
    return RankView(
        rank.process,
        rank.host,
        status,
        found.running,
        found.supervised,
        ended,
        tuple(found.log),
        unreachable,
        ended.time - skew if ended else None,
        job=f"job {found.job.job} ({found.job.state})" if found.job else "",
    )


def first_failure(ranks: Sequence[RankView]) -> RankView | None:
    """Return the process whose failure ended the others; None if none has failed.

    It is the first that ended: the others then lose their peer. If the stall watchdog ended it, the others were
    stalled too, waiting for a peer: then it is the one whose heartbeat stopped first, else the one that was behind.
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
        found = look_at_ranks(hosts, ranks, run_id, number)
        if observe is not None:
            observe(found)
        message = verdict(found)
        if message:
            kill_ranks(hosts, ranks, run_id, number)
            failure = first_failure(found)
            killed = "; the others were killed" if len(found) > 1 else ""
            raise LaunchError(f"{what}: {message}{killed}", "its log is on that host", failure.log if failure else ())
        if all(rank.status is not None and rank.status.state in states for rank in found):
            return found
        early = next((rank for rank in found if rank.status and rank.status.state in records.ENDED), None)
        if early is not None and not any(rank.running or rank.problem for rank in found):
            raise LaunchError(f"{what} ended: {early.name} is {early.state}", log=early.log)
        lost = next((rank for rank in found if rank.problem), None)
        if lost is not None:
            deadline.skip()
            if unreachable.count():
                raise ConnectionLostError(f"{lost.host} does not answer: {lost.problem}", "is the host up?")
        else:
            unreachable = Deadline(UNREACHABLE_TIMEOUT, RECONNECT_STEP)
            deadline.count()
        if deadline.reached:
            late = ", ".join(
                f"{rank.name} {rank.problem or 'is ' + rank.state}"
                for rank in found
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
    """Stop all processes and return their last states.

    They save at the same step boundary, seal and exit.

    Args:
        hosts: Connections to the fleet's hosts.
        ranks: Processes of the attempt.
        run_id: The run.
        number: Number of the attempt.
        timeout: Longest wait for their end, in seconds.
        observe: Called with the processes each time that they are looked at.

    Raises:
        NotYetError: A process still runs after ``timeout`` seconds.
        NotStartedError: It was a job that waited in the queue, and is cancelled.
        LaunchError: A process failed.
    """
    before = look_at_ranks(hosts, ranks, run_id, number)
    _signal(hosts, ranks, run_id, number, "SIGTERM")
    if all(rank.status is None and rank.job for rank in before):
        wait_ranks_exited(hosts, ranks, run_id, number)
        if all(rank.status is None and not rank.problem for rank in look_at_ranks(hosts, ranks, run_id, number)):
            job = before[0].job.partition(" (")[0]
            raise NotStartedError(f"{job} of {run_id} is cancelled: its engine had not started")
    ended = wait_ranks(hosts, ranks, run_id, number, records.ENDED, timeout, observe)
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
    _signal(hosts, ranks, run_id, number, "SIGKILL")
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
        found = look_at_ranks(hosts, ranks, run_id, number)
        remaining = [rank for rank in found if rank.running or rank.supervised]
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
    while (found := look(host, run_id, attempt)).running or any(one.supervised for one in found.processes):
        if deadline.count():
            raise LaunchError(
                f"attempt {attempt} of {run_id} on {host.name} does not end", "check the processes of the host"
            )
        time.sleep(POLL_INTERVAL)


def _signal(hosts: HostPool, ranks: Sequence[Rank], run_id: str, number: int, name: str) -> None:
    """Send a signal to the processes of every host that can be reached.

    Raises:
        ConnectionLostError: No host could be reached.
        LaunchError: SLURM did not accept the signal.
    """
    end = time.monotonic() + SCANCEL_TIMEOUT

    def send(host_name: str) -> str:
        host = hosts.lookup(host_name)
        while True:
            try:
                host.connect()
                host.call(run_state.signal)(root=host.root, run_id=run_id, attempt=number, name=name)
            except ConnectionLostError as error:
                return error.message
            except RemoteError as error:
                if error.kind != "SlurmError":
                    raise
                if time.monotonic() > end:
                    raise LaunchError(error.message, "no signal was sent to the engine; try again") from error
                time.sleep(SCANCEL_INTERVAL)
            else:
                return ""

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        errors = [error for error in pool.map(send, dict.fromkeys(rank.host for rank in ranks)) if error]
    if errors and len(errors) == len({rank.host for rank in ranks}):
        raise ConnectionLostError(errors[0], "no signal was sent to the engine; try again")
