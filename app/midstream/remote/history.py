"""A run's history on the machine where it lies: the config, the lineage, and what each attempt has written.

Histories grow while they are read: a file is described by the bytes it had when it was looked at (``offset`` and
``size``), and exactly those are hashed, sent and compared.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from typing import Any, Dict, Iterator, List, Optional, Sequence

from midstream.remote.tree import file_sha256
from midstream_engine import records

LOG_TAIL = 1 << 20  # bytes of each log that travel: its end
LOGS = 16 << 20  # bytes of all logs together, newest attempts first
_ATTEMPT = re.compile(r"\d{3,}")
_STATUS = re.compile(r"status-\d+\.json")
_LOG = re.compile(r"log-\d+\.txt")
_METRICS = "metrics.jsonl"
_RESTORE = "restore.json"
_EVENTS = re.compile(r"events\.out\.tfevents\..+")  # TensorBoard's, under a logdir that is relative
_OWN = ("attempts", "checkpoints", "pins")  # directories of a run that trackers do not write in


def _entry(directory: str, path: str, tail: Optional[int] = None) -> Dict[str, Any]:
    place = posixpath.join(directory, path)
    total = os.stat(place).st_size
    size = total if tail is None else min(total, tail)
    return {"path": path, "offset": total - size, "size": size, "sha256": file_sha256(place, total - size, size)}


def describe(root: str, run_id: str) -> Dict[str, Any]:
    """``{files: [{path, offset, size, sha256}], lineage}``. Orders and the fence are not history, TensorBoard's files
    are."""
    directory = records.RunPaths(root, records.check_run_id(run_id)).dir
    if not os.path.isdir(directory):
        raise records.RecordError("{}: there is no such run".format(directory))
    files = []
    if os.path.exists(posixpath.join(directory, "run.yaml")):
        files.append(_entry(directory, "run.yaml"))
    attempts = posixpath.join(directory, "attempts")
    numbers = sorted(os.listdir(attempts), reverse=True) if os.path.isdir(attempts) else []
    logs = LOGS
    for number in numbers:
        if not _ATTEMPT.fullmatch(number):
            continue
        for name in sorted(os.listdir(posixpath.join(attempts, number))):
            path = posixpath.join("attempts", number, name)
            if name in (_METRICS, _RESTORE) or _STATUS.fullmatch(name):
                files.append(_entry(directory, path))
            elif _LOG.fullmatch(name) and logs > 0:
                entry = _entry(directory, path, min(LOG_TAIL, logs))
                logs -= entry["size"]
                files.append(entry)
    files += [_entry(directory, path) for path in _event_files(directory)]
    return {"files": files, "lineage": records.read_json_or_none(posixpath.join(directory, "lineage.json"))}


def _event_files(directory: str) -> Iterator[str]:
    """Paths of the event files in a run's directory, where engines start."""
    for place, folders, names in os.walk(directory):
        if place == directory:
            folders[:] = [name for name in folders if name not in _OWN]
        folders.sort()
        for name in sorted(names):
            if _EVENTS.fullmatch(name):
                yield posixpath.relpath(posixpath.join(place, name), directory)


def sizes(root: str, run_id: str, paths: Sequence[str]) -> List[Optional[int]]:
    """Size of each file of the run, None where it is absent."""
    found: List[Optional[int]] = []
    for path in paths:
        try:
            found.append(os.stat(_place(root, run_id, path)).st_size)
        except FileNotFoundError:
            found.append(None)
    return found


def digests(root: str, run_id: str, ranges: Sequence[Sequence[Any]]) -> List[str]:
    """SHA-256 of the first ``size`` bytes of each ``[path, size]``."""
    return [file_sha256(_place(root, run_id, path), 0, size) for path, size in ranges]


def set_aside(root: str, run_id: str, path: str) -> str:
    """Keep the file under a name of its own, beside the one that will take its place. Returns that name."""
    place = _place(root, run_id, path)
    name = "{}.aside-{}".format(path, file_sha256(place)[:12])
    with contextlib.suppress(FileExistsError):  # an earlier call got so far
        os.link(place, _place(root, run_id, name))
    return name


def merge_lineage(root: str, run_id: str, lineage: Dict[str, Any]) -> int:
    """Put the source's entries into the target's lineage; an attempt that both know is as the source has it.
    Returns the number of entries."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    os.makedirs(paths.dir, exist_ok=True)
    with records.locked(paths.lock):
        merged = records.Lineage.read_or_none(paths.lineage) or records.Lineage(run_id)
        for entry in records.Lineage.from_json(lineage, "lineage.json").entries:
            merged = merged.with_entry(entry)
        merged.write(paths.lineage)
    return len(merged.attempts)


def _place(root: str, run_id: str, path: str) -> str:
    if not records.safe_relative(path):
        raise records.RecordError("path {!r} leaves the run".format(path))
    return posixpath.join(records.RunPaths(root, records.check_run_id(run_id)).dir, path)
