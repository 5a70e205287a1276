"""What is left of a damaged run on this host, and how one of its records is replaced. Runs on the host; standard
library only."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import time
from typing import Any, Dict, List, Mapping, Optional

from midstream.remote.runs import damaged_records, run_state
from midstream_engine import records

ASIDE = damaged_records.ASIDE
MOST = 10_000  # damaged files that are listed


def evidence(root: str, run_id: str) -> Dict[str, Any]:
    """Every record of the run that can be read, and what is wrong with the others. Writes nothing.

    ``attempts`` has for each ``{attempt, processes, order, restore, first_row, last_row, running}``; ``running`` is the
    reason to think that a process of it runs on this host.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    damaged = damaged_records.find(paths, most=MOST)
    numbers = run_state.attempts(paths)
    return {
        "found": os.path.lexists(paths.dir),
        "now": time.time(),
        "damaged": damaged,
        "changed": {name: _changed(posixpath.join(paths.dir, name)) for name in damaged},
        "fence": _read(records.Fence, paths.fence),
        "lineage": _read(records.Lineage, paths.lineage),
        "migration_lock": _read(records.MigrationLock, paths.migration_lock),
        "config": _text(paths.config),
        "checkpoints": _checkpoints(paths),
        "attempts": [_attempt(paths, number) for number in numbers],
    }


def put(root: str, run_id: str, file: str, value: Optional[Mapping[str, Any]]) -> str:
    """Replace a damaged (or missing) record by ``value``, or by nothing where that is None; what was there is kept
    beside it. Returns the name that it is kept under, empty where there was nothing. Refused where the record can be
    read by now: somebody else was here."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    kind = damaged_records.kind_of(file)
    path = posixpath.join(paths.dir, file)
    new = kind.from_json(dict(value), file) if value is not None else None
    with records.locked(paths.lock):
        if file not in damaged_records.find(paths, most=MOST) and os.path.lexists(path):
            raise run_state.Refused("{} of {} can be read by now: nothing was written".format(file, run_id))
        kept = _keep(path)
        if new is not None:
            if os.path.isdir(path):
                os.rename(path, kept)  # it cannot be replaced in one step; `damage` finds it cut off
            new.write(path)
        elif os.path.lexists(path):
            if os.path.lexists(kept):
                os.unlink(path)
            else:
                os.rename(path, kept)
            records.sync_directory(posixpath.dirname(path))
    return posixpath.basename(kept)


def _keep(path: str) -> str:
    """A second name for what is at ``path``, before anything takes its place; empty where there is nothing."""
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


def _attempt(paths: records.RunPaths, number: int) -> Dict[str, Any]:
    files = paths.attempt(number)
    first, last = _rows(files.metrics)
    return {
        "attempt": number,
        "processes": [_process(files, process) for process in _numbers(files)],
        "command": _read(records.Command, files.command_file),
        "restore": _read(records.Restore, files.restore),
        "first_row": first,
        "last_row": last,
        "running": _running(paths, files, number),
    }


def _numbers(files: records.AttemptPaths) -> List[int]:
    found = set(run_state.processes(files))
    for name in run_state._names(files.dir):
        match = re.fullmatch(r"exit-([0-9]{1,6})\.json", name)
        if match:
            found.add(int(match.group(1)))
    return sorted(found)


def _process(files: records.AttemptPaths, process: int) -> Dict[str, Any]:
    launched = None
    with contextlib.suppress(records.RecordError, OSError):
        launched = records.read_json(files.launched(process), 1 << 20)
    group = launched.get("group") if isinstance(launched, dict) else None
    return {
        "process": process,
        "status": _read(records.Status, files.status(process)),
        "launched": _read(records.ProcessIdentity, files.launched(process)),
        "group": len(group) if isinstance(group, list) else 0,
        "exit": _read(records.ProcessExit, files.exit(process)),
    }


def _running(paths: records.RunPaths, files: records.AttemptPaths, number: int) -> str:
    """Why a process of the attempt may be running on this host; empty where positively none is."""
    if os.path.lexists(posixpath.join(files.dir, "slurm.json")):
        return "it is a job of SLURM, whose processes run on other machines"
    for process in _numbers(files):
        status = _read(records.Status, files.status(process))
        launched = _read(records.ProcessIdentity, files.launched(process))
        for identity in (status, launched):
            if identity is not None and records.is_running(
                records.ProcessIdentity(identity["boot_id"], identity["pid"], identity["start_ticks"])
            ):
                return "process {} runs (pid {})".format(process, identity["pid"])
    for pid, words in _engines():
        if paths.run_id in words:
            return "a process of an engine runs for {} (pid {})".format(paths.run_id, pid)
    return ""


def _engines() -> Any:
    """(pid, words of the command line) of every engine and supervisor that this host's process table has."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/{}/cmdline".format(name), "rb") as file:
                words = file.read(1 << 16).decode(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        if any(word.startswith("midstream_engine.") for word in words):
            yield int(name), words


def _checkpoints(paths: records.RunPaths) -> List[Dict[str, Any]]:
    found = []
    for name in run_state._names(paths.checkpoints):
        parsed = records.parse_checkpoint_name(name)
        if parsed is not None:
            short = run_state._manifest(posixpath.join(paths.checkpoint(name), records.MANIFEST), name, {})
            found.append({"name": name, "step": parsed[0], "attempt": parsed[1], **short})
    return sorted(found, key=lambda entry: (entry["step"], entry["attempt"]))


def _rows(path: str) -> List[Optional[int]]:
    """The step of the first row of metrics, and of the last; None without one."""
    first, last = None, None
    with contextlib.suppress(FileNotFoundError, records.RecordError), records.open_regular(path) as file:
        for line in file:
            with contextlib.suppress(ValueError, RecursionError):
                for row in records.parse_metrics([line.decode()]):
                    if "global_step" in row:
                        first = row["global_step"] if first is None else first
                        last = row["global_step"]
    return [first, last]


def _read(kind: Any, path: str) -> Optional[Dict[str, Any]]:
    with contextlib.suppress(records.RecordError, OSError):
        found = kind.read_or_none(path)
        return None if found is None else found.to_json()
    return None


def _text(path: str) -> str:
    with contextlib.suppress(records.RecordError, OSError):
        return records.read_bytes(path, 1 << 20).decode(errors="replace")
    return ""


def _changed(path: str) -> float:
    with contextlib.suppress(OSError):
        return os.lstat(path).st_mtime
    return 0.0
