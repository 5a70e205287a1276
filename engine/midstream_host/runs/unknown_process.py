"""Process of a run of which this host cannot prove that it has ended.

On a shared root the process may run on another machine. Runs on the host; standard library only.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import List, Optional

from midstream_core import records
from midstream_host.declarations import reads
from midstream_host.runs import run_state, slurm
from midstream_host.shapes import Text

LEASE = 45.0  # seconds; a status is written every 1.5, and a network file system shows it up to 30 later


@dataclasses.dataclass(frozen=True)
class UnknownProcess:
    """A process that was started here and is unknown.

    ``mark``: changes with the files that the process writes. An unchanged one for long enough means that it has ended.
    """

    attempt: int
    host: Text  # where it ran, by its status; empty before the first one
    mark: List[int]


@reads()
def unknown_process(root: str, run_id: str) -> Optional[UnknownProcess]:
    """Return the first unknown process of the newest attempt started here.

    None without one. A process that runs here, that this machine proves to have ended, or that has recorded its end,
    is not unknown.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    for number in reversed(run_state.attempts(paths)):
        files = paths.attempt(number)
        job = slurm.job_of(files) is not None
        numbers = run_state.processes(files)
        started = [process for process in numbers if job or os.path.exists(files.launched(process))]
        for process in started:
            if is_unknown(files, process):
                status = records.Status.read_or_none(files.status(process))
                return UnknownProcess(number, status.host if status else "", _mark(files, process))
        if started:  # an older attempt was looked at when this one was started
            return None
    return None


class UnknownProcessLease:
    """Lease of an attempt's unknown process, by this program's monotonic clock."""

    def __init__(self) -> None:
        self._mark: List[int] = []
        self._since = 0.0

    def host(self, files: records.AttemptPaths) -> str:
        """Return where a process of the attempt was started that may run.

        Empty where none is unknown, or where its files have been unchanged for `LEASE` seconds.
        """
        for process in run_state.processes(files):
            if not os.path.exists(files.launched(process)) or not is_unknown(files, process):
                continue
            mark, now = [process, *_mark(files, process)], time.monotonic()
            if mark != self._mark:
                self._mark, self._since = mark, now
            if now - self._since < LEASE:
                status = records.Status.read_or_none(files.status(process))
                return status.host if status and status.host else "another machine"
        return ""


def is_unknown(files: records.AttemptPaths, process: int) -> bool:
    """Return whether nothing proves that a process runs, or has ended."""
    status = records.Status.read_or_none(files.status(process))
    if status is not None and status.state in records.ENDED:
        return False
    if records.ProcessExit.read_or_none(files.exit(process)) is not None:
        return False
    if slurm.job_of(files) is not None:
        # SLURM ends a job of nodes that do not answer once they are set down: their processes may go on.
        return status is not None and slurm.may_live(status) and slurm.ended_before_status(files)
    identity = status.identity if status else records.ProcessIdentity.read_or_none(files.launched(process))
    if identity is None:
        return False
    seen = status.heartbeat if status else os.stat(files.launched(process)).st_mtime
    return not records.is_running(identity) and not records.has_ended(identity, seen)


def _mark(files: records.AttemptPaths, process: int) -> List[int]:
    marks: List[int] = []
    for path in (files.status(process), files.metrics, files.log(process), files.exit(process)):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            marks += [0, 0]
            continue
        marks += [status.st_mtime_ns, status.st_size]
    return marks
