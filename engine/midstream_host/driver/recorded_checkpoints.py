"""A trainer's checkpoint as a checkpoint of the run: files with their hashes.

Its name is one that the fence accepts.

``checkpoints/step-<N>-a<NNN>/`` has the files below ``files/``, ``train.json`` whose state lists their hashes (so that
the root digest covers them), and ``manifest.json``, written last, when everything else is on the disk: trainers do not
wait for that, and a power cut would leave a manifest of files that are empty. Files are linked where the trainer never
writes them again in place; else they are copied. What is incomplete by its rule is never recorded.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import os
import posixpath
import shutil
import time
from typing import Dict, Generator, List, NamedTuple, Optional, Set, Tuple

from midstream_core import records
from midstream_core.attempt import save_fence
from midstream_core.json_types import JsonValue
from midstream_host.driver.checkpoints.checkpoint import IncompleteError
from midstream_host.driver.checkpoints.checkpoint_finder import RULES, find_checkpoints
from midstream_host.driver.checkpoints.checkpoint_tree import CheckpointTree
from midstream_host.driver.run_file import RunFile

FILES = "files"
CHUNK = 1 << 20
TRASH = ".trash-"  # begins the name of a checkpoint that is being removed
KEPT = 2  # newest recorded checkpoints that are not removed


class TrainerCheckpoint(NamedTuple):
    """A complete checkpoint of the trainer: its files, relative to ``directory``."""

    directory: str
    path: str  # of the checkpoint itself, relative too
    step: int
    files: Tuple[str, ...]
    added: int = 0  # to its own number: see `CheckpointSteps`


def record(paths: records.RunPaths, run: RunFile, checkpoint: TrainerCheckpoint, attempt: int, epoch: int,
           versions: Dict[str, str], world: int, start: int = 0) -> Optional[records.Manifest]:  # fmt: skip
    """Record a checkpoint; return its manifest, None if the trainer has removed it.

    Args:
        paths: Paths of the run.
        run: Its run file.
        checkpoint: The checkpoint as found on the disk.
        attempt: Number of the attempt.
        epoch: Epoch of the attempt.
        versions: Versions of the environment's packages, for the manifest.
        world: Number of processes of the trainer.
        start: Start of the epoch that commits.

    Raises:
        FenceRejectedError: The fence does not accept its step of this epoch.
        FenceUnreadableError: The fence cannot be read.
        RecordError: The trainer has written it while it was recorded, or its copy is not complete.
        OSError: The disk is full, or cannot be read.
    """
    name = records.checkpoint_name(checkpoint.step, attempt)
    directory = paths.checkpoint(name)
    recorded = records.Manifest.read_or_none(posixpath.join(directory, records.MANIFEST))
    if recorded is not None:
        return recorded
    with records.locked(paths.lock):  # a newer start may be recording the same step
        save_fence.check(paths, epoch, checkpoint.step, start)
        shutil.rmtree(directory, ignore_errors=True)  # of a driver that was killed
    entries: List[records.ObjectEntry] = []
    before = _signature(checkpoint)
    if {path for path, _, _ in before} != set(checkpoint.files):
        return _unrecorded(checkpoint, directory, before)
    try:
        for path in checkpoint.files:
            entries.append(
                _take(posixpath.join(checkpoint.directory, path), directory, path, link=not run.checkpoints.rewritten)
            )
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        if isinstance(error, FileNotFoundError):  # the trainer has removed it
            return None
        raise
    still = _is_still(run, checkpoint, posixpath.join(directory, FILES), world)
    if not still or not _signature(checkpoint) <= before:  # what it has removed by now is in the copy
        return _unrecorded(checkpoint, directory, before)
    state: Dict[str, JsonValue] = {
        "step": checkpoint.step,
        "trainer": run.trainer,
        "path": checkpoint.path,
        "rule": run.checkpoints.rule,
        "files": {entry.path[len(FILES) + 1 :]: entry.sha256 for entry in entries},
        "data_digest": run.files_digest,
        **({"added": checkpoint.added} if checkpoint.added else {}),
    }
    train = {"state": state, "provenance": {"run_id": paths.run_id, "attempt": attempt, "epoch": epoch,
             "time": time.time(), "versions": versions, "processes": world}}  # fmt: skip
    records.write_json(posixpath.join(directory, records.TRAIN), train)
    entries.append(_hashed(directory, records.TRAIN))
    manifest = records.Manifest(
        format=records.FORMAT,
        version=records.FORMAT_VERSION,
        run_id=paths.run_id,
        step=checkpoint.step,
        attempt=attempt,
        epoch=epoch,
        created=time.time(),
        root_digest=records.root_digest([], {}, state),
        arrays=[],
        objects=[entry.to_json() for entry in sorted(entries, key=lambda entry: entry.path)],
        start=start,
    )
    _sync(directory)
    with records.locked(paths.lock):
        save_fence.check(paths, epoch, checkpoint.step, start)
        manifest.write(posixpath.join(directory, records.MANIFEST))
    return manifest


def _signature(checkpoint: TrainerCheckpoint) -> Set[Tuple[str, int, int]]:
    """Return path, size and time of each file of a checkpoint.

    None where the trainer has removed it. Raises RecordError.
    """
    try:
        files = CheckpointTree(posixpath.join(checkpoint.directory, checkpoint.path)).signature
    except FileNotFoundError:
        return set()
    except IncompleteError as error:
        raise records.RecordError("checkpoint of step {}: {}".format(checkpoint.step, error)) from None
    return {
        (posixpath.join(checkpoint.path, name) if name else checkpoint.path, size, time) for name, size, time in files
    }


def _unrecorded(checkpoint: TrainerCheckpoint, directory: str, before: Set[Tuple[str, int, int]]) -> None:
    """Remove the copy of a checkpoint that is not recorded.

    Raises RecordError where the trainer has not removed the checkpoint.
    """
    shutil.rmtree(directory, ignore_errors=True)
    now = _signature(checkpoint)
    if now == before and {path for path, _, _ in now} == set(checkpoint.files):
        raise records.RecordError("the copy of the checkpoint of step {} is not complete".format(checkpoint.step))
    if now:
        raise records.RecordError("checkpoint of step {} changed while it was recorded".format(checkpoint.step))


def _is_still(run: RunFile, checkpoint: TrainerCheckpoint, directory: str, world: int) -> bool:
    """Return whether what was taken is the complete checkpoint of that step.

    A file may have been written again.
    """
    pattern = glob.escape(checkpoint.path)
    with _finished(run, checkpoint, directory):
        again = find_checkpoints(run.checkpoints.rule, directory, pattern, world)
    return any(
        other.complete
        and checkpoint.step - checkpoint.added in (other.stated, other.named)
        and other.path == checkpoint.path
        for other in again
    )


def write_newest_file(rule: str, directory: str, path: str) -> str:
    """Write the file by which a trainer finds its newest checkpoint, if it has one.

    Returns the file's path, or nothing. ``path``: of the checkpoint, below ``directory``.
    """
    known_rule = RULES.get(rule)
    name = known_rule.newest_file if known_rule is not None else ""
    file = posixpath.join(directory, posixpath.dirname(path), name) if name else ""
    if file:
        records.write_bytes(file, posixpath.basename(path).encode())
    return file


@contextlib.contextmanager
def _finished(run: RunFile, checkpoint: TrainerCheckpoint, directory: str) -> Generator[None, None, None]:
    """Put the mark of a finished checkpoint beside its copy, if the rule needs one.

    The file that names the newest is no part of a checkpoint: it was read when the checkpoint was found, and it is
    written again where the checkpoint is placed for a resume.
    """
    mark = write_newest_file(run.checkpoints.rule, directory, checkpoint.path)
    if not mark:
        yield
        return
    try:
        yield
    finally:
        os.unlink(mark)


def _take(source: str, directory: str, path: str, *, link: bool) -> records.ObjectEntry:
    """Link or copy a file to its place in a checkpoint, and hash it there."""
    relative = posixpath.join(FILES, path)
    if not records.safe_relative(relative):
        raise records.RecordError("{}: a name that no checkpoint may have".format(ascii(path)))
    target = posixpath.join(directory, relative)
    os.makedirs(posixpath.dirname(target), exist_ok=True)
    place(source, target, link=link)
    return _hashed(directory, relative)


def place(source: str, target: str, *, link: bool) -> None:
    """Create ``target`` from ``source``, with ``link`` as a hard link where possible."""
    if link:
        try:
            os.link(source, target, follow_symlinks=True)
            return
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES):
                raise
    shutil.copyfile(source, target)
    shutil.copymode(source, target)


def _sync(directory: str) -> None:
    """Wait until a checkpoint's files and their names are on the disk.

    Raises OSError.
    """
    for parent, _, names in os.walk(directory):
        for name in names:
            descriptor = os.open(posixpath.join(parent, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        records.sync_directory(parent)
    records.sync_directory(posixpath.dirname(directory))


def _hashed(directory: str, path: str) -> records.ObjectEntry:
    target = posixpath.join(directory, path)
    sha256, size = digest_of(target)
    return records.ObjectEntry(path, size, sha256)


def digest_of(path: str) -> Tuple[str, int]:
    """Return SHA-256 and size of a file, from the bytes that were read."""
    total, size = hashlib.sha256(), 0
    with records.open_regular(path) as file:
        while True:
            piece = file.read(CHUNK)
            if not piece:
                return total.hexdigest(), size
            total.update(piece)
            size += len(piece)


def usable(paths: records.RunPaths) -> List[records.Manifest]:
    """Return complete checkpoints that the run's fence accepts, by step and attempt."""
    return _accepted(paths, save_fence.read_fence(paths))


def _accepted(paths: records.RunPaths, fence: Optional[records.Fence]) -> List[records.Manifest]:
    manifests: List[records.Manifest] = []
    for name in os.listdir(paths.checkpoints) if os.path.isdir(paths.checkpoints) else ():
        if records.parse_checkpoint_name(name) is None:
            continue
        manifest = records.Manifest.read_or_none(posixpath.join(paths.checkpoint(name), records.MANIFEST))
        if manifest is not None and (fence is None or fence.accepts(manifest.epoch, manifest.step, manifest.start)):
            manifests.append(manifest)
    return sorted(manifests, key=lambda manifest: (manifest.step, manifest.attempt))


def newest(paths: records.RunPaths, fence: records.Fence) -> Optional[str]:
    """Name the newest complete checkpoint that ``fence`` accepts; None without one."""
    manifests = _accepted(paths, fence)
    return manifests[-1].name if manifests else None


def added_to_numbers(paths: records.RunPaths) -> int:
    """Return what is added to the numbers of the run's checkpoints.

    Its newest one says so: see `CheckpointSteps`. Raises RecordError.
    """
    manifests = usable(paths)
    return 1 if manifests and records.checkpoint_state(paths.checkpoint(manifests[-1].name)).get("added") == 1 else 0


def prune(paths: records.RunPaths, attempt: int, keep: int = KEPT, own: Optional[Tuple[int, int]] = None) -> List[str]:
    """Remove an attempt's surplus recorded checkpoints; return their names.

    A checkpoint is surplus if it is neither pinned nor among the newest ``keep``. Each is moved to the trash first, and
    the pins are read again: the process that sets a pin checks afterwards that its checkpoint exists. ``own``: epoch
    and start of the caller, which removes nothing once a newer start has the run.

    Raises RecordError where a pin cannot be read: its checkpoint is not known, and nothing is removed.
    """
    fence = save_fence.read_fence(paths)
    if own is not None and fence is not None and fence.order > own:
        return []
    removed = _empty_trash(paths)  # of a call that was killed; a name that is there cannot be moved there again
    surplus = [manifest.name for manifest in usable(paths) if manifest.attempt == attempt]
    pinned = _pinned(paths)
    for name in surplus[:-keep]:
        if name not in pinned:
            os.rename(paths.checkpoint(name), paths.checkpoint(TRASH + name))
    return removed + _empty_trash(paths)


def _empty_trash(paths: records.RunPaths) -> List[str]:
    """Delete what is in the trash, or move it back if it has been pinned."""
    removed: List[str] = []
    for entry in sorted(os.listdir(paths.checkpoints)):
        name, trash = entry[len(TRASH) :], paths.checkpoint(entry)
        if not entry.startswith(TRASH) or records.parse_checkpoint_name(name) is None:
            continue
        complete = os.path.exists(posixpath.join(trash, records.MANIFEST))
        if name in _pinned(paths) and complete and not os.path.exists(paths.checkpoint(name)):
            os.rename(trash, paths.checkpoint(name))
            continue
        if complete:
            os.unlink(posixpath.join(trash, records.MANIFEST))  # from here on it is no checkpoint
        shutil.rmtree(trash, ignore_errors=True)
        removed.append(name)
    return removed


def _pinned(paths: records.RunPaths) -> Set[str]:
    """Return the checkpoints that are pinned now.

    Raises RecordError where a pin cannot be read.
    """
    names: Set[str] = set()
    for name in os.listdir(paths.pins) if os.path.isdir(paths.pins) else ():
        pin = records.Pin.read_or_none(posixpath.join(paths.pins, name)) if name.endswith(".json") else None
        if pin is not None and pin.expires > time.time():
            names.add(pin.checkpoint)
    return names
