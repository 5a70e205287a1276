"""What killed processes left behind in a run's directory: named first, removed only by name, never by guess.

Runs on the host; standard library only. Three kinds: *torn* directories of checkpoints (a save or a copy that was cut
off), *trash* (deletions that were cut off) and *temporary* files of writers that are gone. Whatever a living process
may still be at is kept, and the reason is told.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from midstream.remote.runs import damaged_records, run_state
from midstream_engine import records

QUIET = 600.0  # seconds without a change after which nobody is taken to be writing, where no process can be asked
TRASH = ".trash-"
_TEMPORARY = re.compile(r".+\.tmp-(\d+)-\d+")


def leftovers(root: str, run_id: str, quiet: float = QUIET) -> List[Dict[str, Any]]:
    """``[{"path", "kind", "bytes", "kept"}]`` of one run, by path (relative to the run's directory). ``kept`` is the
    reason why it is not to be removed; empty where nothing speaks against it. `records.Damaged` where a record of the
    run cannot be read: it may be what speaks against it."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    damaged_records.refuse(root, run_id)
    alive = _living(paths, quiet)
    found = []
    for path, kind in _candidates(paths):
        full = posixpath.join(paths.dir, path)
        try:
            size, changed = _measure(full)
        except FileNotFoundError:  # its owner was faster
            continue
        kept = _reason(paths, path, kind, alive)
        if not kept and time.time() - changed < quiet:
            kept = "it changed {:.0f} s ago: somebody may be at it".format(max(0.0, time.time() - changed))
        found.append({"path": path, "kind": kind, "bytes": size, "kept": kept})
    return sorted(found, key=lambda entry: entry["path"])


def remove(root: str, run_id: str, names: Sequence[str], quiet: float = QUIET) -> List[str]:
    """Remove those of ``names`` that are still leftovers, and that nothing speaks against; returns them."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    removed = []
    for entry in leftovers(root, run_id, quiet):
        if entry["path"] not in names or entry["kept"]:
            continue
        full = posixpath.join(paths.dir, entry["path"])
        if entry["kind"] == "torn":
            trash = posixpath.join(paths.checkpoints, TRASH + posixpath.basename(full))
            with records.locked(paths.lock):  # no manifest is committed meanwhile
                if os.path.lexists(posixpath.join(full, records.MANIFEST)):
                    continue
                if os.path.lexists(trash):
                    shutil.rmtree(trash)
                os.rename(full, trash)
            shutil.rmtree(trash)
        elif entry["kind"] == "trash":
            manifest = posixpath.join(full, records.MANIFEST)
            if os.path.exists(manifest):  # first: half a checkpoint must not look like one
                os.unlink(manifest)
            shutil.rmtree(full)
        else:
            os.unlink(full)
        removed.append(entry["path"])
    return removed


def _candidates(paths: records.RunPaths) -> Iterator[Tuple[str, str]]:
    for name in _names(paths.checkpoints):
        path = posixpath.join("checkpoints", name)
        if name.startswith(TRASH) and records.parse_checkpoint_name(name[len(TRASH) :]):
            yield path, "trash"
        elif records.parse_checkpoint_name(name):
            if _is_torn(paths.checkpoint(name)):
                yield path, "torn"
            else:
                for inner in _names(paths.checkpoint(name)):
                    if _TEMPORARY.fullmatch(inner):
                        yield posixpath.join(path, inner), "temporary"
    folders = ["", "pins"] + [posixpath.join("attempts", name) for name in _names(paths.attempts)]
    for folder in folders:
        for name in _names(posixpath.join(paths.dir, folder)):
            if _TEMPORARY.fullmatch(name):
                yield posixpath.join(folder, name), "temporary"


def _is_torn(directory: str) -> bool:
    """Whether there is positively no manifest: one that cannot be read is damaged, and is not removed."""
    try:
        os.lstat(posixpath.join(directory, records.MANIFEST))
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def _reason(paths: records.RunPaths, path: str, kind: str, alive: Dict[int, str]) -> str:
    name = posixpath.basename(path)
    if kind == "torn":
        parsed = records.parse_checkpoint_name(name)
        return alive.get(parsed[1], "") if parsed else ""
    if kind == "trash":
        pinned = name[len(TRASH) :] in run_state._pinned(paths)
        if pinned and os.path.exists(posixpath.join(paths.dir, path, records.MANIFEST)):
            return "it is pinned: the next save brings it back"
        return next(iter(alive.values()), "")
    match = _TEMPORARY.fullmatch(name)
    if match and os.path.exists("/proc/{}".format(match.group(1))):
        return "process {} may be writing it".format(match.group(1))
    return ""


def running_writer(root: str, run_id: str) -> List[List[Any]]:
    """``[attempt, why]`` of those that run or may run."""
    return [[number, why] for number, why in _living(records.RunPaths(root, run_id), QUIET).items()]


def _living(paths: records.RunPaths, quiet: float) -> Dict[int, str]:
    """Attempts that run or may run, each with the reason to think so."""
    found = {}
    for number in run_state.attempts(paths):
        why = _why_living(paths.attempt(number), quiet)
        if why:
            found[number] = "attempt {} {}".format(number, why)
    return found


def _why_living(attempt: records.AttemptPaths, quiet: float) -> str:
    for name in _names(attempt.dir):
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
        # Another machine's process, or another boot's: its heartbeat is all that can be asked.
        if status.boot_id != records.boot_id() and time.time() - status.heartbeat < quiet:
            return "gave a sign of life {:.0f} s ago".format(max(0.0, time.time() - status.heartbeat))
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


def _names(directory: str) -> List[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
