"""An attempt on all its hosts: what each process does, which one failed and why, stop them, end them."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import Any

from midstream.errors import HostError, LostContact
from midstream.hosts.deadline import REACHING_STEP, Deadline
from midstream.hosts.host_pool import Hosts
from midstream.hosts.rpc.remote_program import Cancelled
from midstream.launch.errors import LaunchError
from midstream.launch.start_attempt import ANY, GONE_WITHIN, POLL, Rank, look
from midstream_engine import records

AT_ONCE = 32
SILENT = 15.0  # seconds without a heartbeat after which a process that runs stands still
SILENCE_LIMIT = 600.0  # seconds for which a host that does not answer is waited for


@dataclass(frozen=True)
class RankView:
    """One process of an attempt at one moment. Times are the operator's."""

    process: int
    host: str
    status: records.Status | None = None
    running: bool = False  # positive evidence that it runs
    supervised: bool = False  # something stands beside it there
    exit: records.ProcessExit | None = None
    log: tuple[str, ...] = ()
    unreachable: float = 0.0  # seconds since its last heartbeat, by its own host's clock
    ended: float | None = None  # when it ended
    trouble: str = ""  # one line: why nothing is known now
    job: str = ""  # of SLURM, with its state

    @property
    def name(self) -> str:
        return f"process {self.process} on {self.host}"

    @property
    def state(self) -> str:
        if self.status is None:
            return "failed" if self.failed else "starting" if self.running else "unknown" if self.trouble else "empty"
        if self.status.state not in records.ENDED and not self.running and not self.trouble:
            return "failed" if self.failed else "lost"
        return self.status.state

    @property
    def failed(self) -> bool:
        """Whether there is evidence that it ended otherwise than it should."""
        if self.exit is not None:
            return self.exit.failed
        if self.status is not None and self.status.state in records.ENDED:
            return self.status.state == records.FAILED
        return not (self.running or self.supervised or self.trouble)

    @property
    def taken(self) -> bool:
        """Whether it was ended from outside, or went with its machine: not by an error of its own."""
        return self.failed and (self.exit is None or (bool(self.exit.signal) and not self.exit.stalled))

    @property
    def why(self) -> str:
        """Its last words, in one line."""
        if self.exit is not None and self.exit.message:
            return self.exit.message
        if self.status is not None and self.status.message:
            return self.status.message
        said = next((line.strip() for line in reversed(self.log) if line.strip()), "its log is empty")
        if self.job:
            return f"{self.job} is gone: {said}"
        return f"gone without a word: {said}"


def ranks_of(hosts: Hosts, host: str, run_id: str, number: int) -> tuple[Rank, ...]:
    """All processes of an attempt of which ``host`` has one. UsageError where the fleet lacks a host of its group."""
    machine = hosts.get(host)
    seen = look(machine, run_id, number)
    if seen["group"]:
        return tuple(Rank(process, name) for process, name in enumerate(seen["group"]))
    return (Rank(ANY, host),)


def stop_run(hosts: Hosts, host: str, run_id: str, number: int, timeout: float) -> records.Status:
    """Ask an attempt to save, seal and exit, wherever its processes are; the last status of process 0. LaunchError."""
    ended = stop_ranks(hosts, ranks_of(hosts, host, run_id, number), run_id, number, timeout)
    first = ended[0].status
    assert first is not None  # its state was waited for
    return first


def look_at_ranks(hosts: Hosts, ranks: Sequence[Rank], run_id: str, number: int) -> list[RankView]:
    """All processes of an attempt, their hosts asked at once. A host that does not answer is told as trouble: it says
    nothing of the process."""

    def ask(rank: Rank) -> list[RankView]:
        host = hosts.peek(rank.host)
        try:
            host.connect()
            began = time.time()
            seen = look(host, run_id, number)
        except HostError as error:
            return [RankView(rank.process, rank.host, trouble=error.message)]
        skew = seen["now"] - (began + time.time()) / 2
        mine = [each for each in seen["processes"] if rank.process in (ANY, each["process"])]
        return [_view(Rank(each["process"], rank.host), each, skew) for each in mine] or [
            RankView(rank.process, rank.host)
        ]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [view for views in pool.map(ask, ranks) for view in views]


def _view(rank: Rank, seen: dict[str, Any], skew: float) -> RankView:
    status = None if seen["status"] is None else records.Status.from_json(seen["status"])
    ended = None if seen["exit"] is None else records.ProcessExit.from_json(seen["exit"])
    silent = max(0.0, time.time() + skew - status.heartbeat) if status else 0.0
    if ended is not None:
        silent = max(0.0, ended.time - ended.heartbeat) if ended.heartbeat else 0.0
    return RankView(
        rank.process,
        rank.host,
        status,
        seen["running"],
        seen["supervised"],
        ended,
        tuple(seen["log"]),
        silent,
        ended.time - skew if ended else None,
        job=f"job {seen['job']['job']} ({seen['job']['state']})" if seen["job"] else "",
    )


def first_failure(ranks: Sequence[RankView]) -> RankView | None:
    """The process that the others failed after; None where none has failed.

    The first to end is it: the others lose their peer. Where it was ended because it stood still, the others stood
    still with it, waiting: then it is the one whose heartbeat had stopped, else the one that was behind."""
    failed = [rank for rank in ranks if rank.failed]
    if not failed:
        return None
    first = min(failed, key=lambda rank: rank.ended or float("inf"))
    if first.exit is None or not first.exit.stalled:
        return first
    silent = [rank for rank in ranks if rank.unreachable > SILENT]
    if silent and len(silent) < len(ranks):
        return max(silent, key=lambda rank: rank.unreachable)
    behind = min(ranks, key=lambda rank: rank.status.step if rank.status else 0)
    return first if behind.status is None or _step(behind) == _step(first) else behind


def _step(rank: RankView) -> int:
    return rank.status.step if rank.status else 0


def verdict(ranks: Sequence[RankView]) -> str:
    """Which process failed and why, in one line; empty where none has."""
    guilty = first_failure(ranks)
    if guilty is None:
        return ""
    if not guilty.failed:
        return f"{guilty.name} stands still at step {_step(guilty)} (no sign of life for {guilty.unreachable:.0f} s)"
    return f"{guilty.name} failed: {guilty.why}"


def wait_ranks(
    hosts: Hosts,
    ranks: Sequence[Rank],
    run_id: str,
    number: int,
    states: Collection[str],
    timeout: float,
    cancel: Event | None = None,
) -> list[RankView]:
    """Until every process is in one of ``states``. LaunchError where one failed (the others are ended then: they cannot
    go on without it) or where it takes more than ``timeout`` seconds; Cancelled, which leaves them running. A host that
    does not answer is waited for, and that time does not count: LostContact where it does not come back."""
    deadline, silence = Deadline(timeout, REACHING_STEP), Deadline(SILENCE_LIMIT, REACHING_STEP)
    what = f"attempt {number} of {run_id}"
    while True:
        if cancel is not None and cancel.is_set():
            raise Cancelled(f"no longer waiting for {what}; it goes on")
        seen = look_at_ranks(hosts, ranks, run_id, number)
        said = verdict(seen)
        if said:
            kill_ranks(hosts, ranks, run_id, number)
            guilty = first_failure(seen)
            raise LaunchError(
                f"{what}: {said}; the others were ended", "its log lies there", guilty.log if guilty else ()
            )
        if all(rank.status is not None and rank.status.state in states for rank in seen):
            return seen
        early = next((rank for rank in seen if rank.status and rank.status.state in records.ENDED), None)
        if early is not None and not any(rank.running or rank.trouble for rank in seen):
            raise LaunchError(f"{what} ended: {early.name} is {early.state}", log=early.log)
        silent = next((rank for rank in seen if rank.trouble), None)
        if silent is not None:
            deadline.skip()
            if silence.count():
                raise LostContact(f"{silent.host} does not answer: {silent.trouble}", "is the host up?")
        else:
            silence = Deadline(SILENCE_LIMIT, REACHING_STEP)
            deadline.count()
        if deadline.reached:
            late = ", ".join(
                f"{rank.name} {rank.trouble or 'is ' + rank.state}"
                for rank in seen
                if rank.status is None or rank.status.state not in states
            )
            raise LaunchError(f"{what}: not {' or '.join(sorted(states))} after {timeout:.0f} s: {late}")
        time.sleep(POLL)


def stop_ranks(hosts: Hosts, ranks: Sequence[Rank], run_id: str, number: int, timeout: float) -> list[RankView]:
    """Ask all processes to save at the same step boundary, seal and exit; what they said last, once they are gone.
    LaunchError where one died of it, or still runs after ``timeout`` seconds."""
    _signal(hosts, ranks, run_id, number, "SIGTERM")
    ended = wait_ranks(hosts, ranks, run_id, number, records.ENDED, timeout)
    wait_ranks_exited(hosts, ranks, run_id, number)
    return ended


def kill_ranks(hosts: Hosts, ranks: Sequence[Rank], run_id: str, number: int, timeout: float = GONE_WITHIN) -> None:
    """End all processes that can be reached, at once; nothing is saved. LaunchError where one stays."""
    _signal(hosts, ranks, run_id, number, "SIGKILL")
    wait_ranks_exited(hosts, ranks, run_id, number, timeout)


def wait_ranks_exited(
    hosts: Hosts, ranks: Sequence[Rank], run_id: str, number: int, timeout: float = GONE_WITHIN
) -> None:
    """Until no process runs any more on a host that answers."""
    deadline = Deadline(timeout, REACHING_STEP)
    while True:
        seen = look_at_ranks(hosts, ranks, run_id, number)
        there = [rank for rank in seen if rank.running or rank.supervised]
        if not there:
            return
        if deadline.count():
            names = ", ".join(rank.name for rank in there)
            raise LaunchError(f"attempt {number} of {run_id}: {names} does not end", "look at the host")
        time.sleep(POLL)


def _signal(hosts: Hosts, ranks: Sequence[Rank], run_id: str, number: int, name: str) -> None:
    """To the processes of every host that answers; a host of which contact is lost is not asked again here."""

    def tell(host_name: str) -> str:
        host = hosts.peek(host_name)
        try:
            host.connect()
            host.call("runs.run_state.signal", root=host.root, run_id=run_id, attempt=number, name=name)
        except LostContact as error:
            return error.message
        return ""

    with ThreadPoolExecutor(AT_ONCE) as pool:
        silent = [said for said in pool.map(tell, dict.fromkeys(rank.host for rank in ranks)) if said]
    if silent and len(silent) == len({rank.host for rank in ranks}):
        raise LostContact(silent[0], "nothing was told to the engine; try again")
