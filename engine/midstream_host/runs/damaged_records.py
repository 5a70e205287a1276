"""Damaged records of a run: files that exist and cannot be read.

Runs on the host; standard library only.

An absent record is information: a run without a fence has never started. A damaged one is not, so that no operation on
the run may continue: see `refuse`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import posixpath
import re
from typing import Any, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from midstream_core import records

MAX_FILES = 20  # files in a report
MAX_REASON = 200  # characters of the reason

_IN_RUN = {
    "fence.json": records.Fence,
    "lineage.json": records.Lineage,
    "migration_lock.json": records.MigrationLock,
    "ownership.json": records.OwnershipChain,
    "store.json": records.Store,
}
_IN_ATTEMPT = (
    (re.compile(r"status-[0-9]{1,6}\.json"), records.Status),
    (re.compile(r"launch(-[0-9]{1,6})?\.json"), records.ProcessIdentity),
    (re.compile(r"exit-[0-9]{1,6}\.json"), records.ProcessExit),
    (re.compile(r"command\.json"), records.Command),
    (re.compile(r"restore\.json"), records.Restore),
    (re.compile(r"parameter_drift\.json"), records.ParameterDrift),
    (re.compile(r"slurm\.json"), None),
)
_PERMANENT = ("fence.json", "lineage.json", "ownership.json", "store.json")  # never removed once they are written
ASIDE = ".damaged-"
_ATTEMPT = re.compile(r"[0-9]{3,18}")
_PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\.json")

Mark = Optional[Tuple[int, int, int]]
Known = Dict[str, Tuple[Mark, str]]  # path in the run's directory -> the file's mark, and what is wrong with it


def find(paths: records.RunPaths, known_files: Optional[Known] = None, most: int = MAX_FILES) -> Dict[str, str]:
    """Find the damaged records of a run: path in its directory -> what is wrong.

    At most ``most`` are named. ``known_files`` keeps the results for the next call: a file is read again
    where it has changed.
    """
    known_files = {} if known_files is None else known_files
    damaged: Dict[str, str] = {}
    seen: Set[str] = set()
    for name, kind in _files(paths.dir):
        seen.add(name)
        path = f"{paths.dir}/{name}"
        mark = None
        with contextlib.suppress(OSError):
            mark = signature(path)
        before = known_files.get(name)
        why = before[1] if before is not None and before[0] == mark and mark is not None else _why(path, kind)
        known_files[name] = mark, why
        if why:
            damaged[name] = why
    for name in set(known_files) - seen:
        del known_files[name]
    names = names_in(paths.dir)
    for name in _PERMANENT:
        if name not in names and any(other.startswith(name + ASIDE) for other in names):
            damaged[name] = "it was set aside by a repair that was interrupted"
    if len(damaged) > most:
        rest = len(damaged) - most
        damaged = dict(list(damaged.items())[:most])
        damaged["..."] = "{} more".format(rest)
    return damaged


def kind_of(file: str) -> Any:
    """Return the type of the record in a file of a run.

    Raises ValueError where it cannot be repaired.
    """
    parts = file.split("/")
    if len(parts) == 1 and file in _IN_RUN:
        return _IN_RUN[file]
    if len(parts) == 2 and parts[0] == "pins" and _PIN.fullmatch(parts[1]):
        return records.Pin
    if len(parts) == 3 and parts[0] == "attempts" and _ATTEMPT.fullmatch(parts[1]):
        for pattern, kind in _IN_ATTEMPT:
            if kind is not None and pattern.fullmatch(parts[2]):
                return kind
    raise ValueError("{!r} is no record of a run that can be repaired".format(file))


def newer(paths: records.RunPaths, names: Iterable[str]) -> List[str]:
    """Return the records that a newer midstream wrote, which must not be repaired."""
    newer_files: List[str] = []
    for name in names:
        try:
            kind_of(name).read(posixpath.join(paths.dir, name))
        except records.NewerFormatError:
            newer_files.append(name)
        except (ValueError, OSError):  # not a record that can be repaired, or damaged
            continue
    return newer_files


def refuse(root: str, run_id: str) -> None:
    """Raise `records.DamagedRecordError` where a record of the run cannot be read.

    A record of a newer midstream raises the subclass `records.NewerFormatError`.
    """
    paths = records.RunPaths(root, run_id)
    damaged = find(paths)
    if damaged:
        error = records.NewerFormatError if newer(paths, damaged) else records.DamagedRecordError
        raise error(in_words(run_id, damaged))


def in_words(run_id: str, damaged: Dict[str, str]) -> str:
    """Format damaged records as one line: each file, and what is wrong with it."""
    return "run {}: {}".format(run_id, "; ".join("{}: {}".format(name, why) for name, why in damaged.items()))


def signature(path: str) -> Mark:
    """Return inode, size and time of the last write (ns), to detect changes.

    Return None without a file.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _files(directory: str) -> Iterator[Tuple[str, object]]:
    for name in names_in(directory):
        if name in _IN_RUN:
            yield name, _IN_RUN[name]
    for name in names_in(posixpath.join(directory, "pins")):
        if _PIN.fullmatch(name):
            yield posixpath.join("pins", name), records.Pin
    for attempt in names_in(posixpath.join(directory, "attempts")):
        if not _ATTEMPT.fullmatch(attempt):
            continue
        for name in names_in(posixpath.join(directory, "attempts", attempt)):
            for kind in _kinds_in_attempt(name):
                yield f"attempts/{attempt}/{name}", kind


@functools.lru_cache(maxsize=1024)
def _kinds_in_attempt(name: str) -> List[object]:
    return [kind for pattern, kind in _IN_ATTEMPT if pattern.fullmatch(name)]


def _why(path: str, kind: Any) -> str:
    """The damage of a record; empty where it can be read or does not exist."""
    try:
        if kind is not None:
            kind.read(path)
        elif not isinstance(records.read_json(path, 1 << 20), dict):
            return "expected an object"
    except FileNotFoundError:
        return "" if not os.path.islink(path) else "a symbolic link to nothing"
    except records.RecordError as error:
        text = str(error)
        prefix = path + ": "
        return _line(text[len(prefix) :] if text.startswith(prefix) else text)
    except OSError as error:
        return _line("cannot be read ({})".format(error.strerror))
    return ""


def _line(text: str) -> str:
    return " ".join(text.split())[:MAX_REASON]


def names_in(directory: str) -> List[str]:
    """Sorted names in a directory; empty where it is no directory."""
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
