"""Leftovers of killed processes in a run's directory.

They are listed first, and removed only by name.

Runs on the host; standard library only. Three kinds: *partial* directories of checkpoints (a save or a copy that did
not finish), *trash* (deletions that did not finish) and *temporary* files of writers that have exited. Files that a
running process may be writing are not removed; the reason is reported.
"""

from __future__ import annotations

import dataclasses
import os
import posixpath
import re
import shutil
import time
from typing import Dict, Iterator, List, Literal, Optional, Sequence, Tuple

from midstream.remote.declarations import once, reads
from midstream.remote.runs import damaged_records, run_checkpoints, run_state
from midstream.remote.runs.damaged_records import names_in
from midstream.remote.shapes import FileName, Text
from midstream_engine import records

QUIET = 600.0  # seconds without a change until a file counts as abandoned, where the process is unknown
TRASH = ".trash-"
Kind = Literal["partial", "trash", "temporary"]
_TEMPORARY = re.compile(r".+\.tmp-(\d+)-\d+")


@dataclasses.dataclass(frozen=True)
class Leftover:
    """Leftover of a killed process; ``kept``: the reason not to remove it, else empty."""

    path: FileName  # relative to the run's directory
    kind: Kind
    bytes: int
    kept: Text


@reads()
def leftovers(root: str, run_id: str, quiet: float = QUIET) -> List[Leftover]:
    """The leftovers of one run, by path.

    Raises DamagedRecordError where a record of the run cannot be read: it may be a reason to keep one of them.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    damaged_records.refuse(root, run_id)
    running = _possibly_running(paths, quiet)
    found: List[Leftover] = []
    for path, kind in _candidates(paths):
        full = posixpath.join(paths.dir, path)
        try:
            size, changed = _measure(full)
        except FileNotFoundError:  # its writer removed it
            continue
        kept = _reason(paths, path, kind, running)
        if not kept and time.time() - changed < quiet:
            kept = "it changed {:.0f} s ago: a program may be writing it".format(max(0.0, time.time() - changed))
        found.append(Leftover(path, kind, size, kept))
    return sorted(found, key=lambda entry: entry.path)


@once("a second call would report that nothing was removed")
def remove(root: str, run_id: str, names: Sequence[str], quiet: float = QUIET) -> List[FileName]:
    """Remove those of ``names`` that are still leftovers; return them.

    Leftovers that there is a reason to keep are not removed.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    removed: List[str] = []
    for entry in leftovers(root, run_id, quiet):
        if entry.path not in names or entry.kept:
            continue
        full = posixpath.join(paths.dir, entry.path)
        if entry.kind == "partial":
            trash = posixpath.join(paths.checkpoints, TRASH + posixpath.basename(full))
            with records.locked(paths.lock):  # no manifest is committed during this time
                if os.path.lexists(posixpath.join(full, records.MANIFEST)):
                    continue
                if os.path.lexists(trash):
                    shutil.rmtree(trash)
                os.rename(full, trash)
            shutil.rmtree(trash)
        elif entry.kind == "trash":
            manifest = posixpath.join(full, records.MANIFEST)
            if os.path.exists(manifest):  # first: a partial checkpoint must not look complete
                os.unlink(manifest)
            shutil.rmtree(full)
        else:
            os.unlink(full)
        removed.append(entry.path)
    return removed


def _candidates(paths: records.RunPaths) -> Iterator[Tuple[str, Kind]]:
    for name in names_in(paths.checkpoints):
        path = posixpath.join("checkpoints", name)
        if name.startswith(TRASH) and records.parse_checkpoint_name(name[len(TRASH) :]):
            yield path, "trash"
        elif records.parse_checkpoint_name(name):
            if _is_partial(paths.checkpoint(name)):
                yield path, "partial"
            else:
                for inner in names_in(paths.checkpoint(name)):
                    if _TEMPORARY.fullmatch(inner):
                        yield posixpath.join(path, inner), "temporary"
    folders = ["", "pins"] + [posixpath.join("attempts", name) for name in names_in(paths.attempts)]
    for folder in folders:
        for name in names_in(posixpath.join(paths.dir, folder)):
            if _TEMPORARY.fullmatch(name):
                yield posixpath.join(folder, name), "temporary"


def _is_partial(directory: str) -> bool:
    """Return whether the manifest is absent; a damaged one is not absent."""
    try:
        os.lstat(posixpath.join(directory, records.MANIFEST))
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def _reason(paths: records.RunPaths, path: str, kind: str, running: Dict[int, str]) -> str:
    name = posixpath.basename(path)
    if kind == "partial":
        parsed = records.parse_checkpoint_name(name)
        why = running.get(parsed[1], "") if parsed else ""
        return why or _share(posixpath.join(paths.dir, path))
    if kind == "trash":
        pinned = name[len(TRASH) :] in run_checkpoints.pinned(paths)
        if pinned and os.path.exists(posixpath.join(paths.dir, path, records.MANIFEST)):
            return "it is pinned: the next save restores it"
        return next(iter(running.values()), "")
    match = _TEMPORARY.fullmatch(name)
    if match and os.path.exists("/proc/{}".format(match.group(1))):
        return "process {} may be writing it".format(match.group(1))
    return ""


def _share(directory: str) -> str:
    """The reason to keep a host's share of a spread checkpoint.

    Another host may have committed the checkpoint. Empty if the directory is no share.
    """
    try:
        os.lstat(posixpath.join(directory, records.SHARE))
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError:
        pass  # unknown: it stays
    return "another host may have the rest of this checkpoint: the next start on all its hosts completes or removes it"


@reads()
def running_writer(root: str, run_id: str) -> List[Tuple[int, str]]:
    """``(attempt, reason)`` of the attempts that run or may run."""
    return list(_possibly_running(records.RunPaths(root, run_id), QUIET).items())


def _possibly_running(paths: records.RunPaths, quiet: float) -> Dict[int, str]:
    """Attempts that run or may run, each with the reason to think so."""
    found: Dict[int, str] = {}
    for number in run_state.attempts(paths):
        why = _why_running(paths.attempt(number), quiet)
        if why:
            found[number] = "attempt {} {}".format(number, why)
    return found


def _why_running(attempt: records.AttemptPaths, quiet: float) -> str:
    for name in names_in(attempt.dir):
        if not re.fullmatch(r"status-\d+\.json", name):
            continue
        try:
            status: Optional[records.Status] = records.Status.read_or_none(posixpath.join(attempt.dir, name))
        except records.RecordError:
            return "has a status that cannot be read"
        if status is None or status.state in records.ENDED:
            continue
        if records.is_running(status.identity):
            return "is running"
        # A process of another machine or boot: its heartbeat is the only evidence.
        if status.boot_id != records.boot_id() and time.time() - status.heartbeat < quiet:
            return "had a heartbeat {:.0f} s ago".format(max(0.0, time.time() - status.heartbeat))
    return ""


def _measure(path: str) -> Tuple[int, float]:
    """Bytes, and the time of the newest change."""
    size, changed = 0, os.lstat(path).st_mtime
    if not os.path.isdir(path):
        return os.lstat(path).st_size, changed
    for parent, folders, files in os.walk(path):
        for name in folders + files:
            try:
                found = os.lstat(posixpath.join(parent, name))
            except FileNotFoundError:
                continue
            changed = max(changed, found.st_mtime)
            size += found.st_size if name in files else 0
    return size, changed
