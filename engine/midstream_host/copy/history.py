"""History of a run: config, lineage, and its attempts' records, metrics and logs.

Files may grow while they are read: a file is described by the bytes that it has at that time (``offset`` and
``size``), and exactly those are hashed, sent and compared. `allowlist.py` lists the files of a history. Symbolic links
below the run's directory are not followed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import posixpath
import re
from typing import Dict, Iterator, List, Optional, Sequence

from midstream_core import records
from midstream_core.json_types import JsonValue, int_of, str_of
from midstream_host import allowlist
from midstream_host.allowlist import LOG_TAIL
from midstream_host.declarations import PAGE_LIMIT, reads, repeatable
from midstream_host.object_files import (
    NotPlainError,
    descriptor_sha256,
    inside,
    object_sha256,
    open_object,
    open_parent,
    size_of,
)
from midstream_host.shapes import FileName

LOGS = 16 << 20  # bytes of all logs together, newest attempts first
_ATTEMPT = re.compile(r"\d{3,}")
_LOG = re.compile(r"log-\d+\.txt")
_EVENTS = "events.out.tfevents."  # TensorBoard's, under a logdir that is relative
_OWN = ("attempts", "checkpoints", "pins")  # directories of a run that trackers do not write in


@dataclasses.dataclass(frozen=True)
class HistoryFile:
    """The bytes ``offset`` to ``offset + size`` of a file of a run, and their SHA-256."""

    path: FileName
    offset: int
    size: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class HistoryDescription:
    """The files of a run's history and its lineage."""

    files: List[HistoryFile]
    lineage: Optional[records.Lineage]


def _entry(directory: str, path: str, tail: Optional[int] = None) -> HistoryFile:
    descriptor = open_object(directory, path)
    try:
        total = os.fstat(descriptor).st_size
        size = total if tail is None else min(total, tail)
        sha256 = descriptor_sha256(descriptor, total - size, size)
    finally:
        os.close(descriptor)
    return HistoryFile(path, total - size, size, sha256)


@reads(limit=PAGE_LIMIT)
def describe(root: str, run_id: str) -> HistoryDescription:
    """Hash the files of a run's history.

    Commands and the fence are not part of it, TensorBoard's files are.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    directory = paths.dir
    if not os.path.isdir(directory):
        raise records.RecordError("{}: there is no such run".format(directory))
    try:
        files = _files(directory)
    except NotPlainError as error:
        raise records.RecordError(str(error)) from None
    return HistoryDescription(files, records.Lineage.read_or_none(paths.lineage))


def _files(directory: str) -> List[HistoryFile]:
    """Entries of the files of a history. Raises NotPlainError."""
    files: List[HistoryFile] = []
    if os.path.exists(posixpath.join(directory, "run.yaml")):
        files.append(_entry(directory, "run.yaml"))
    attempts = posixpath.join(directory, "attempts")
    numbers = sorted(os.listdir(attempts), reverse=True) if os.path.isdir(attempts) else []
    logs = LOGS
    for number in numbers:
        if not _ATTEMPT.fullmatch(number):
            continue
        os.close(open_parent(directory, posixpath.join("attempts", number, ""))[0])  # NotPlainError
        for name in sorted(os.listdir(posixpath.join(attempts, number))):
            path = posixpath.join("attempts", number, name)
            if not _belongs(path):
                continue
            if not _LOG.fullmatch(name):
                files.append(_entry(directory, path))
            elif logs > 0:
                entry = _entry(directory, path, min(LOG_TAIL, logs))
                logs -= entry.size
                files.append(entry)
    return files + [_entry(directory, path) for path in _event_files(directory)]


def _belongs(path: str) -> bool:
    try:
        return allowlist.largest(allowlist.HISTORY, path) > 0
    except allowlist.NotAllowedError:
        return False


def _event_files(directory: str) -> Iterator[str]:
    """Paths of TensorBoard's event files below a run's directory."""
    for folder, folders, names in os.walk(directory):
        if folder == directory:
            folders[:] = [name for name in folders if name not in _OWN]
        folders.sort()
        for name in sorted(names):
            path = posixpath.relpath(posixpath.join(folder, name), directory)
            if name.startswith(_EVENTS) and _belongs(path) and not os.path.islink(posixpath.join(folder, name)):
                yield path


@reads(limit=PAGE_LIMIT)
def sizes(root: str, run_id: str, paths: Sequence[str]) -> List[Optional[int]]:
    """Size of each file of the run, None where it is absent."""
    directory = records.RunPaths(root, records.check_run_id(run_id)).dir
    lengths: List[Optional[int]] = []
    for path in paths:
        try:
            lengths.append(size_of(directory, path))
        except FileNotFoundError:
            lengths.append(None)
    return lengths


@reads(limit=PAGE_LIMIT)
def digests(root: str, run_id: str, ranges: Sequence[Sequence[JsonValue]]) -> List[str]:
    """SHA-256 of the first ``size`` bytes of each ``[path, size]``."""
    directory = records.RunPaths(root, records.check_run_id(run_id)).dir
    return [object_sha256(directory, str_of(path), 0, int_of(size)) for path, size in ranges]


@repeatable("a second call finds the file moved")
def set_aside(root: str, run_id: str, path: str) -> FileName:
    """Link the file to a second name, so that it can be replaced; return that name."""
    directory = records.RunPaths(root, records.check_run_id(run_id)).dir
    name = "{}.aside-{}".format(path, object_sha256(directory, path)[:12])
    with contextlib.suppress(FileExistsError):  # an earlier call got so far
        os.link(inside(directory, path), inside(directory, name), follow_symlinks=False)
    return name


@repeatable("the same entries change nothing")
def merge_lineage(root: str, run_id: str, lineage: Dict[str, JsonValue]) -> int:
    """Merge the source's entries into the target's lineage and return their number.

    For an attempt that both have, the source's entry is used.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    os.makedirs(paths.dir, exist_ok=True)
    with records.locked(paths.lock):
        merged = records.Lineage.read_or_none(paths.lineage) or records.Lineage(run_id)
        for entry in records.Lineage.from_json(lineage, "lineage.json").entries:
            merged = merged.with_entry(entry)
        merged.write(paths.lineage)
    return len(merged.attempts)
