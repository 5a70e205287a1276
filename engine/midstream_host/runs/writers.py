"""Processes that may write to a run: its attempts', and a migration's.

Only an end that is proven ends a process here: its own machine has no such process, it has recorded its end, or SLURM
has. A heartbeat that is old proves nothing. Runs on the host; standard library only.
"""

from __future__ import annotations

import dataclasses
import time
from typing import List, Literal, Optional

from midstream_core import records
from midstream_host.declarations import reads
from midstream_host.runs import run_state, slurm
from midstream_host.runs.unknown_process import is_unknown
from midstream_host.shapes import Text

RUNNING, UNKNOWN, ENDED = "running", "unknown", "ended"
MIGRATION = 0  # attempt of the writer that is no attempt: no attempt has this number


@dataclasses.dataclass(frozen=True)
class Writer:
    """A process that has written to a run, and whether it may still do so.

    Attributes:
        attempt: Its attempt; `MIGRATION` for a migration.
        process: Its number in the attempt.
        state: Whether it runs; ``unknown``: nothing proves that it runs, or has ended.
        why: The reason to think that it may write; empty where it has ended.
        epoch: That it commits under; 0: not known.
        start: Its start number in the epoch.
    """

    attempt: int
    process: int
    state: Literal["running", "unknown", "ended"]
    why: Text = ""
    epoch: int = 0
    start: int = 0


@reads()
def writers(root: str, run_id: str) -> List[Writer]:
    """Processes that this host has a record of, and a migration that holds the run."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    listed = [
        _writer(paths, number, process)
        for number in run_state.attempts(paths)
        for process in run_state.processes(paths.attempt(number))
    ]
    migration = _migration(paths)
    return listed + ([migration] if migration else [])


def _writer(paths: records.RunPaths, number: int, process: int) -> Writer:
    files = paths.attempt(number)
    try:
        status = records.Status.read_or_none(files.status(process))
        running = run_state.status_of(files, process).running
        unknown = is_unknown(files, process) or _is_unknown_job(files, status)
    except records.RecordError:
        why = "attempt {} has a record that cannot be read".format(number)
        return Writer(number, process, "unknown", why)
    epoch, start = (status.epoch, status.start) if status else (0, 0)
    if running:
        return Writer(number, process, "running", "attempt {} is running".format(number), epoch, start)
    if unknown:
        return Writer(number, process, "unknown", _unknown(number, status), epoch, start)
    return Writer(number, process, "ended", "", epoch, start)


def _is_unknown_job(files: records.AttemptPaths, status: Optional[records.Status]) -> bool:
    """Return whether the attempt is a job that SLURM does not report as ended."""
    if status is not None and status.state in records.ENDED:
        return False
    return slurm.job_of(files) is not None and not slurm.ended_before_status(files)


def _unknown(number: int, status: Optional[records.Status]) -> str:
    if status is None:
        return "attempt {} may run: nothing here proves its end".format(number)
    age, place = max(0.0, time.time() - status.heartbeat), status.host or "another machine"
    return "attempt {} had a heartbeat {:.0f} s ago on {}, which alone can prove its end".format(number, age, place)


def _migration(paths: records.RunPaths) -> Optional[Writer]:
    try:
        lock = records.MigrationLock.held_or_none(paths.migration_lock)
    except records.RecordError:
        return Writer(MIGRATION, 0, "unknown", "{} cannot be read".format(paths.migration_lock))
    if lock is None or lock.expires <= time.time():
        return None
    return Writer(MIGRATION, 0, "running", "migration {} may be copying to it".format(lock.migration))
