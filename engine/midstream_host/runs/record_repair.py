"""Evidence of a damaged run on this host; replacement of one of its records.

Runs on the host; standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import posixpath
import re
import time
from typing import Dict, Iterator, List, Optional, Set, Tuple, Type, TypeVar, Union

from midstream_core import records
from midstream_core.json_types import JsonObject, JsonValue, object_or_empty
from midstream_core.listed_checkpoint import ListedCheckpoint
from midstream_host.declarations import once, reads
from midstream_host.runs import damaged_records, leftovers, run_checkpoints, run_state, unknown_process
from midstream_host.runs.damaged_records import names_in
from midstream_host.shapes import FileName, Text

ASIDE = damaged_records.ASIDE
MAX_DAMAGED = 10_000  # damaged files that are listed
ENGINES = ("midstream_engine.", "midstream_host.")  # what the module of an engine, driver or supervisor begins with

Kind = TypeVar("Kind", bound=records.JsonRecord)


@dataclasses.dataclass(frozen=True)
class ProcessEvidence:
    """The readable records of a process.

    ``group`` is the number of hosts of its attempt, 0 where that is unknown.
    """

    process: int
    status: Optional[records.Status]
    launched: Optional[records.ProcessIdentity]
    group: int
    exit: Optional[records.ProcessExit]


@dataclasses.dataclass(frozen=True)
class AttemptEvidence:
    """The readable records of an attempt."""

    attempt: int
    processes: List[ProcessEvidence]
    command: Optional[records.Command]
    restore: Optional[records.Restore]
    first_row: Optional[int]  # step of the first row of metrics
    last_row: Optional[int]
    running: Text  # why a process of it may be running on this host; empty where none is


@dataclasses.dataclass(frozen=True)
class RunEvidence:
    """Every readable record of a run, and what is wrong with the others."""

    exists: bool
    now: float  # UTC seconds by this host's clock
    damaged: Dict[str, Text]  # file -> what is wrong with it
    newer: List[FileName]  # the damaged files that a newer midstream wrote
    changed: Dict[str, float]  # damaged file -> time of its last change
    fence: Optional[records.Fence]
    lineage: Optional[records.Lineage]
    migration_lock: Optional[records.MigrationLock]
    config: Text
    checkpoints: List[ListedCheckpoint]
    attempts: List[AttemptEvidence]
    ownership: Text = ""  # of its ownership.json


@reads()
def evidence(root: str, run_id: str) -> RunEvidence:
    """Read every record of the run that can be read. Writes nothing."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    damaged = damaged_records.find(paths, most=MAX_DAMAGED)
    lock = _read(records.MigrationLock, paths.migration_lock)
    return RunEvidence(
        exists=os.path.lexists(paths.dir),
        now=time.time(),
        damaged=damaged,
        newer=damaged_records.newer(paths, damaged),
        changed={name: _changed(posixpath.join(paths.dir, name)) for name in damaged},
        fence=_read(records.Fence, paths.fence),
        lineage=_read(records.Lineage, paths.lineage),
        migration_lock=None if lock is None or lock.released else lock,
        config=_text(paths.config),
        checkpoints=_checkpoints(paths),
        attempts=[_attempt(paths, number) for number in run_state.attempts(paths)],
        ownership=_text(paths.ownership),
    )


@once("a second call is rejected: the record can be read by then")
def put(root: str, run_id: str, file: str, value: Optional[JsonObject]) -> FileName:
    """Replace a damaged or missing record by ``value``, or by nothing (None).

    A fence is also replaced by one of a later epoch or start. The old file is kept beside it; its new name is
    returned, empty where there was no file.

    Raises:
        RefusedError: The record can be read: another process has repaired it. Or a newer midstream wrote it.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    kind = damaged_records.kind_of(file)
    path = posixpath.join(paths.dir, file)
    new = kind.from_json(dict(value), file) if value is not None else None
    with records.locked(paths.lock):
        readable = file not in damaged_records.find(paths, most=MAX_DAMAGED) and os.path.lexists(path)
        if readable and not (isinstance(new, records.Fence) and records.Fence.read(path).order < new.order):
            raise run_state.RefusedError("{} of {} can be read by now: nothing was written".format(file, run_id))
        if damaged_records.newer(paths, [file]):
            raise run_state.RefusedError("a newer midstream wrote {} of {}: nothing was written".format(file, run_id))
        kept = keep(path)
        if new is not None:
            if os.path.isdir(path):
                os.rename(path, kept)  # it cannot be replaced in one step; `damaged_records` detects an interruption
            new.write(path)
        elif os.path.lexists(path):
            if os.path.lexists(kept):
                os.unlink(path)
            else:
                os.rename(path, kept)
            records.sync_directory(posixpath.dirname(path))
    return posixpath.basename(kept)


def keep(path: str) -> str:
    """Link ``path`` to a second name before it is replaced.

    Return the name, empty without a file.
    """
    if not os.path.lexists(path):
        return ""
    begin = "{}{}{}".format(path, ASIDE, time.strftime("%Y%m%dT%H%M%S", time.gmtime()))
    kept, number = begin, 1
    while os.path.lexists(kept):
        kept, number = "{}-{}".format(begin, number), number + 1
    if not os.path.isdir(path):
        os.link(path, kept, follow_symlinks=False)
        records.sync_directory(posixpath.dirname(path))
    return kept


def _attempt(paths: records.RunPaths, number: int) -> AttemptEvidence:
    files = paths.attempt(number)
    first, last = _rows(files.metrics)
    return AttemptEvidence(
        attempt=number,
        processes=[_process(files, process) for process in _numbers(files)],
        command=_read(records.Command, files.command_file),
        restore=_read(records.Restore, files.restore),
        first_row=first,
        last_row=last,
        running=_running(paths, files),
    )


def _numbers(files: records.AttemptPaths) -> List[int]:
    numbers = set(run_state.processes(files))
    for name in names_in(files.dir):
        match = re.fullmatch(r"exit-([0-9]{1,6})\.json", name)
        if match:
            numbers.add(int(match.group(1)))
    return sorted(numbers)


def _process(files: records.AttemptPaths, process: int) -> ProcessEvidence:
    launched: JsonValue = None
    with contextlib.suppress(records.RecordError, OSError):
        launched = records.read_json(files.launched(process), 1 << 20)
    group = object_or_empty(launched).get("group")
    return ProcessEvidence(
        process=process,
        status=_read(records.Status, files.status(process)),
        launched=_read(records.ProcessIdentity, files.launched(process)),
        group=len(group) if isinstance(group, list) else 0,
        exit=_read(records.ProcessExit, files.exit(process)),
    )


def _running(paths: records.RunPaths, files: records.AttemptPaths) -> str:
    """Return why a process of the attempt may run on this host; empty if none does."""
    if os.path.lexists(posixpath.join(files.dir, "slurm.json")):
        return "it is a job of SLURM, whose processes run on other machines"
    for process in _numbers(files):
        status = _read(records.Status, files.status(process))
        launched = _read(records.ProcessIdentity, files.launched(process))
        for identity in (status.identity if status else None, launched):
            if identity is not None and records.is_running(identity):
                return "process {} runs (pid {})".format(process, identity.pid)
        if status is not None and unknown_process.is_unknown(files, process):
            age = max(0.0, time.time() - status.heartbeat)
            if age < leftovers.QUIET:
                return "process {} had a heartbeat on {} {:.0f} s ago".format(process, status.host, age)
    others = _processes_of_others(paths, files)
    for pid, words in _engines():
        if paths.run_id in words and pid not in others and not others.intersection(words):
            return "a process of an engine runs for {} (pid {})".format(paths.run_id, pid)
    return ""


def _processes_of_others(paths: records.RunPaths, files: records.AttemptPaths) -> Set[Union[int, str]]:
    """Return what proves that a process is another attempt's.

    The numbers of running processes that the records of the others identify, and their directories, which
    supervisors have in their command lines.
    """
    others: Set[Union[int, str]] = set()
    for number in run_state.attempts(paths):
        other = paths.attempt(number)
        if other.dir == files.dir:
            continue
        others.add(other.dir)
        for process in _numbers(other):
            status = _read(records.Status, other.status(process))
            launched = _read(records.ProcessIdentity, other.launched(process))
            for identity in (status.identity if status else None, launched):
                if identity is not None and records.is_running(identity):
                    others.add(identity.pid)
    return others


def _engines() -> Iterator[Tuple[int, List[str]]]:
    """Yield (pid, command line) of every engine and supervisor of this host."""
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open("/proc/{}/cmdline".format(name), "rb") as file:
                words = file.read(1 << 16).decode(errors="replace").split("\0")
        except OSError:  # it has exited
            continue
        if any(word.startswith(ENGINES) for word in words):
            yield int(name), words


def _checkpoints(paths: records.RunPaths) -> List[ListedCheckpoint]:
    named = (run_checkpoints.described(paths, name) for name in names_in(paths.checkpoints))
    return sorted(filter(None, named), key=lambda entry: entry.order)


def _rows(path: str) -> Tuple[Optional[int], Optional[int]]:
    """Return the steps of the first row and of the newest start's last one, or None."""
    first, last, newest = None, None, 0
    with contextlib.suppress(FileNotFoundError, records.RecordError), records.open_regular(path) as file:
        for line in file:
            with contextlib.suppress(ValueError, RecursionError):
                for row in records.parse_metrics([line.decode()]):
                    step = row.get("global_step")
                    if isinstance(step, int):
                        first = step if first is None else first
                        start = records.start_of(row) or 0
                        last, newest = (step, start) if start >= newest else (last, newest)
    return first, last


def _read(kind: Type[Kind], path: str) -> Optional[Kind]:
    with contextlib.suppress(records.RecordError, OSError):
        return kind.read_or_none(path)
    return None


def _text(path: str) -> str:
    with contextlib.suppress(records.RecordError, OSError):
        return records.read_bytes(path, 1 << 20).decode(errors="replace")
    return ""


def _changed(path: str) -> float:
    with contextlib.suppress(OSError):
        return os.lstat(path).st_mtime
    return 0.0
