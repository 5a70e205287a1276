"""Read, search or follow the log of a process of a run's newest attempt."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from midstream.errors import MidstreamError, RemoteError, UsageError
from midstream.operations.fleet_snapshot import find_run
from midstream_core import records

if TYPE_CHECKING:
    from midstream.hosts.host import Host
    from midstream.hosts.host_pool import HostPool
    from midstream.watch.log_query import LogQuery
    from midstream.watch.snapshot import RunView

LAST_LINES = 20  # with which following begins
POLL_INTERVAL = 1.0  # seconds between two reads


@dataclass(frozen=True)
class LogMatch:
    """A line with a match, and its number in the log."""

    number: int
    line: str
    text: str  # the line without colours


@dataclass(frozen=True)
class LogEnd:
    """Number of a log's lines that were searched."""

    lines: int


@dataclass(frozen=True)
class HostLost:
    """The host does not answer, and is tried again until it does."""

    message: str


@dataclass(frozen=True)
class AttemptEnd:
    """Last status of the attempt whose log was followed; None where it left none."""

    status: records.Status | None


@dataclass(frozen=True)
class RunLog:
    """The log at ``path`` of a process of the run's newest attempt."""

    run: RunView
    host: Host
    path: str

    def lines(self) -> Iterator[str]:
        """Yield the lines."""
        from midstream.watch.host_log import read_log

        return (line for text in read_log(self.host, self.path) for line in text.removesuffix("\n").split("\n"))

    def matches(self, query: LogQuery) -> Iterator[LogMatch | LogEnd]:
        """Yield the lines with a match, then the number of all lines."""
        from midstream_host.runs import log_pages

        matches, number = query.matcher(), 0
        for number, line in enumerate(self.lines(), 1):
            text = log_pages.plain(line)
            if matches(text):
                yield LogMatch(number, line, text)
        yield LogEnd(number)

    def follow(self, wait: Callable[[float], object] = time.sleep) -> Iterator[str | HostLost | AttemptEnd]:
        """Yield the last lines, then new ones until the attempt ends.

        A host that does not answer is reported once and tried again. ``wait`` is called with seconds between two reads.

        Raises:
            RemoteError: The log cannot be read.
        """
        from midstream.hosts.reconnect import FOLLOWED_LOG, Reconnect
        from midstream.watch.host_log import LogFollower
        from midstream_host.runs import run_state

        follower, unreachable = LogFollower(self.host, self.path, LAST_LINES), False
        reconnect = Reconnect(FOLLOWED_LOG)
        status_of = self.host.call(run_state.status)
        while True:
            try:
                # Before the lines: those of an attempt that has ended are complete.
                answer = status_of(root=self.host.root, run_id=self.run.run_id, attempt=self.run.attempt)
                yield from follower.new_lines(complete=not answer.running)
            except RemoteError:
                raise
            except FOLLOWED_LOG.lost as error:
                if not unreachable:
                    yield HostLost(error.message)
                unreachable = True
                wait(reconnect.delay())
                continue
            unreachable = False
            if not answer.running:
                yield AttemptEnd(answer.status)
                return
            wait(POLL_INTERVAL)


def log_on(host: Host, run: RunView, process: int) -> RunLog:
    """Return the log of a process on its host, whether it has one or not."""
    return RunLog(run, host, records.RunPaths(host.root, run.run_id).attempt(run.attempt).log(process))


def find_log(hosts: HostPool, run_name: str, process: int = 0) -> RunLog:
    """Return the log of a process of a run's newest attempt.

    Raises:
        UsageError: There is no such run or process.
        MidstreamError: The process has written no log.
    """
    from midstream.launch.attempt_monitor import ranks_of

    run = find_run(hosts, run_name)
    ranks = ranks_of(hosts, run.host, run.run_id, run.attempt)
    if not 0 <= process < len(ranks):
        raise UsageError(f"{run.run_id} has no process {process}", f"it has {len(ranks)}, from 0 on")
    host = hosts.get(ranks[process].host)
    return RunLog(run, host, _log_path(host, run, process))


def _log_path(host: Host, run: RunView, process: int) -> str:
    """Return the log of a process, or else the output of its job of SLURM.

    Raises:
        MidstreamError: There is neither.
    """
    from midstream_host.runs import run_state, slurm

    attempt = records.RunPaths(host.root, run.run_id).attempt(run.attempt)
    for path in (attempt.log(process), f"{attempt.dir}/{slurm.OUTPUT}"):
        try:
            host.call(run_state.read_text)(path=path, limit=1)
        except RemoteError as error:
            if error.kind != "FileNotFoundError":
                raise
        else:
            return path
    raise MidstreamError(
        f"process {process} of attempt {run.attempt} of {run.run_id} has written no log", run.job_remark
    )
