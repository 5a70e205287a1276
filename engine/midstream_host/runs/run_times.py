"""Times in which the processes of this host's runs ran and trained.

Runs on the host; standard library only.

An attempt that this host started has a launch record, whose time is the start. Of an attempt that trained elsewhere
and whose history was copied here, only status and metrics exist: its first and last step are what is known.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from typing import List, Optional, Tuple

from midstream_core import records
from midstream_core.json_types import JsonValue, object_or_empty
from midstream_host.declarations import PAGE_LIMIT, reads
from midstream_host.runs import run_state, slurm
from midstream_host.runs.run_state import RunId
from midstream_host.shapes import Text

_BEGIN, _END = 1 << 16, 1 << 18  # bytes of metrics.jsonl that contain its first and its last row
PROCESSES = 20_000  # of one answer, newest attempts first


@dataclasses.dataclass(frozen=True)
class ProcessTimes:
    """Times of one process of an attempt, in UTC seconds of its host; None: not known."""

    run_id: RunId
    attempt: int
    process: int
    launched: bool  # started from here; False: the records were copied here
    running: bool
    host: Text = ""  # that it ran on, by its status; empty: no status yet
    started: Optional[float] = None
    ended: Optional[float] = None  # None: runs, or not known
    first_step: Optional[float] = None  # begin of the attempt's first step
    last_step: Optional[float] = None  # end of its newest step
    devices: int = 0


@dataclasses.dataclass(frozen=True)
class HostTimes:
    """The processes of this host's runs, and since when the machine has been on."""

    now: float  # UTC seconds
    booted: Optional[float]  # UTC seconds; None: not known
    processes: List[ProcessTimes]
    unreadable: List[Text]  # records that cannot be read, one line each
    omitted: int = 0  # processes beyond PROCESSES


@reads(limit=PAGE_LIMIT)
def read(root: str, since: float) -> HostTimes:
    """Read the times of all processes that ran after ``since`` (UTC seconds)."""
    times: List[ProcessTimes] = []
    unreadable: List[Text] = []
    for run_id in run_state.list_runs(root):
        paths = records.RunPaths(root, run_id)
        try:
            numbers = run_state.attempts(paths)
        except OSError as error:
            unreadable.append("{}: {}".format(run_id, error.strerror))
            continue
        for number in numbers:
            try:
                times += _attempt(paths, number, since)
            except (OSError, records.RecordError) as error:
                why = " ".join(str(error).split())[:200]
                unreadable.append("{} attempt {}: {}".format(run_id, number, why))
    times.sort(key=lambda entry: entry.last_step or entry.ended or entry.started or 0.0, reverse=True)
    return HostTimes(time.time(), booted(), times[:PROCESSES], unreadable[:100], max(0, len(times) - PROCESSES))


def booted(stat: str = "/proc/stat") -> Optional[float]:
    """Return the time of the machine's boot, in UTC seconds.

    Return None where the kernel does not report it.
    """
    try:
        with open(stat, encoding="ascii", errors="replace") as file:
            words = [line.split() for line in file if line.startswith("btime ")]
        return float(words[0][1])
    except (OSError, ValueError, IndexError):
        return None


def _attempt(paths: records.RunPaths, number: int, since: float) -> List[ProcessTimes]:
    attempt = paths.attempt(number)
    first, last = step_times(attempt.metrics)
    times: List[ProcessTimes] = []
    for process in run_state.processes(attempt):
        launched = _launched(attempt, process)
        state = run_state.status_of(attempt, process)
        status = state.status
        ended = _ended(attempt, process, status)
        ends = [end for end in (ended, last) if end is not None]
        if not state.running and (max(ends) if ends else launched or 0.0) < since:
            continue
        times.append(
            ProcessTimes(
                run_id=paths.run_id,
                attempt=number,
                process=process,
                launched=launched is not None,
                running=state.running,
                host=status.host[:200] if status else "",
                started=launched,
                ended=None if state.running else ended,
                first_step=first,
                last_step=last,
                devices=len(status.devices) if status else 0,
            )
        )
    return times


def _launched(attempt: records.AttemptPaths, process: int) -> Optional[float]:
    """Time at which the process, or the job that it belongs to, was started from here."""
    for path in (attempt.launched(process), os.path.join(attempt.dir, slurm.JOB)):
        try:
            return os.stat(path).st_mtime
        except FileNotFoundError:
            continue
    return None


def _ended(attempt: records.AttemptPaths, process: int, status: Optional[records.Status]) -> Optional[float]:
    """Time of the exit by the supervisor's record; without one, the newest heartbeat."""
    exit_record = records.ProcessExit.read_or_none(attempt.exit(process))
    return exit_record.time if exit_record else status.heartbeat if status else None


def step_times(metrics: str) -> Tuple[Optional[float], Optional[float]]:
    """Return begin of the first step and end of the last one in metrics.jsonl.

    Both are None where no row has a time.
    """
    try:
        with records.open_regular(metrics) as file:
            size = os.fstat(file.fileno()).st_size
            begin = file.read(_BEGIN)
            file.seek(max(0, size - _END))
            end = file.read(_END)
    except FileNotFoundError:
        return None, None
    first = next(filter(None, map(_row, begin.split(b"\n"))), None)
    last = next(filter(None, map(_row, reversed(end.split(b"\n")))), None)
    if first is None or last is None:
        return None, None
    return first[0] - first[1], max(first[0], last[0])


def _row(line: bytes) -> Optional[Tuple[float, float]]:
    """Return (time, duration of the step) of a row of a step.

    Return None for a partial line and for other rows.
    """
    try:
        value: JsonValue = json.loads(line)
    except (ValueError, RecursionError):
        return None
    row = object_or_empty(value)
    at, duration = _number(row.get("time")), _number(row.get("throughput/duration"))
    return None if "train/loss" not in row or at is None else (at, duration or 0.0)


def _number(value: JsonValue) -> Optional[float]:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        return None
    return float(value)
