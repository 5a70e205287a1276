"""Leftovers of killed processes in a run's directory, which are removed by name.

Runs on the host; standard library only. Three kinds: *partial* directories of checkpoints (a save or a copy that did
not finish), *trash* (deletions that did not finish) and *temporary* files of writers that have exited. Files that a
process may be writing are not removed, nor is a complete checkpoint in the trash that nothing newer replaces; the
reason is reported.
"""

from __future__ import annotations

import dataclasses
import os
import posixpath
import re
import shutil
import time
from typing import Iterator, List, Literal, Mapping, Optional, Tuple

from midstream_core import records
from midstream_host.declarations import once, reads
from midstream_host.runs import checkpoint_pins, damaged_records, run_checkpoints, writers
from midstream_host.runs.damaged_records import names_in
from midstream_host.shapes import FileName, Text

QUIET = 600.0  # seconds without a change until a file counts as abandoned, where the process is unknown
TRASH = ".trash-"
ONLY_STATE = "it is complete, and no complete checkpoint of its step or later replaces it"
Kind = Literal["partial", "trash", "temporary"]
_TEMPORARY = re.compile(r".+\.tmp-(\d+)-\d+")


@dataclasses.dataclass(frozen=True)
class Leftover:
    """Leftover of a killed process; ``kept``: the reason not to remove it, else empty."""

    path: FileName  # relative to the run's directory
    kind: Kind
    bytes: int
    kept: Text
    changed: float = 0.0  # UTC seconds of the newest change, by this host's clock


@reads()
def leftovers(root: str, run_id: str, quiet: float = QUIET) -> List[Leftover]:
    """The leftovers of one run, by path.

    Raises DamagedRecordError where a record of the run cannot be read: it may be a reason to keep one of them.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    damaged_records.refuse(root, run_id)
    processes = writers.writers(root, run_id)
    listed: List[Leftover] = []
    for path, kind in _candidates(paths):
        full = posixpath.join(paths.dir, path)
        try:
            size, changed = _measure(full)
        except FileNotFoundError:  # its writer removed it
            continue
        kept = _reason(paths, path, kind, processes)
        if not kept and time.time() - changed < quiet:
            kept = "it changed {:.0f} s ago: a program may be writing it".format(max(0.0, time.time() - changed))
        listed.append(Leftover(path, kind, size, kept, changed))
    return sorted(listed, key=lambda entry: entry.path)


@once("a second call would report that nothing was removed")
def remove(root: str, run_id: str, names: Mapping[str, float], quiet: float = QUIET) -> List[FileName]:
    """Remove leftovers that were listed; return their names.

    Each of ``names`` has the time of its newest change. Those that have changed since, or that there is a reason to
    keep, are not removed.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    removed: List[str] = []
    for entry in leftovers(root, run_id, quiet):
        if names.get(entry.path) != entry.changed or entry.kept:
            continue
        full = posixpath.join(paths.dir, entry.path)
        if entry.kind == "partial":
            trash = posixpath.join(paths.checkpoints, TRASH + posixpath.basename(full))
            with records.locked(paths.lock):  # no manifest is committed during this time
                if os.path.lexists(posixpath.join(full, records.MANIFEST)) or os.path.lexists(trash):
                    continue  # it is complete, or another one of its name is in the trash and stays
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


def _reason(paths: records.RunPaths, path: str, kind: str, processes: List[writers.Writer]) -> str:
    name, fence = posixpath.basename(path), records.Fence.read_or_none(paths.fence)
    if kind == "partial":
        step, attempt = records.parse_checkpoint_name(name) or (0, 0)
        own = [process for process in processes if process.attempt in (attempt, writers.MIGRATION)]
        why = next((process.why for process in own if _may_commit(process, fence, step)), "")
        return why or _share(posixpath.join(paths.dir, path))
    may_write = next((process.why for process in processes if _may_commit(process, fence)), "")
    if kind == "trash":
        manifest = posixpath.join(paths.dir, path, records.MANIFEST)
        if name[len(TRASH) :] in checkpoint_pins.pinned(paths) and os.path.exists(manifest):
            return "it is pinned: the next save restores it"
        return may_write or _only_state(paths, name, manifest)
    match = _TEMPORARY.fullmatch(name)
    if match and os.path.exists("/proc/{}".format(match.group(1))):
        return "process {} may be writing it".format(match.group(1))
    return next(
        (process.why for process in processes if process.state == writers.UNKNOWN and _may_commit(process, fence)), ""
    )


def _may_commit(writer: writers.Writer, fence: Optional[records.Fence], step: Optional[int] = None) -> bool:
    """Return whether a process may still commit here, or may commit ``step``.

    Each commit compares itself with the fence of this directory, under its lock: of an unknown process that the fence
    has superseded nothing is committed.
    """
    if writer.state != writers.UNKNOWN or fence is None or not writer.epoch:
        return writer.state != writers.ENDED
    if step is None:
        return fence.order <= (writer.epoch, writer.start)
    return fence.accepts(writer.epoch, step, writer.start)


def _only_state(paths: records.RunPaths, name: str, manifest: str) -> str:
    """The reason to keep a complete checkpoint in the trash: nothing replaces it."""
    checkpoint = run_checkpoints.described(paths, name[len(TRASH) :], path=manifest)
    if checkpoint is None or not checkpoint.complete:
        return ""
    listed = records.Manifest.read(manifest)
    folder, elsewhere = posixpath.dirname(manifest), listed.elsewhere
    here = [entry for entry in listed.object_entries if entry.host not in elsewhere]
    if not all(os.path.exists(posixpath.join(folder, entry.path)) for entry in here):
        return ""
    newer = [
        checkpoint
        for checkpoint in run_checkpoints.checkpoints(paths)
        if checkpoint.accepted and checkpoint.step >= listed.step
    ]
    return "" if newer else ONLY_STATE


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


def _measure(path: str) -> Tuple[int, float]:
    """Bytes, and the time of the newest change."""
    size, changed = 0, os.lstat(path).st_mtime
    if not os.path.isdir(path):
        return os.lstat(path).st_size, changed
    for parent, folders, files in os.walk(path):
        for name in folders + files:
            try:
                status = os.lstat(posixpath.join(parent, name))
            except FileNotFoundError:
                continue
            changed = max(changed, status.st_mtime)
            size += status.st_size if name in files else 0
    return size, changed
