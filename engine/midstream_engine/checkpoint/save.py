"""Save a state: snapshot (device to host), write (hashed in threads), commit (under the fence, manifest last).

Only :func:`begin_save`, which takes the snapshot, needs the training loop to stand still.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from midstream_engine.checkpoint import fence as fences
from midstream_engine.checkpoint import zarr
from midstream_engine.checkpoint.bounded import Task, run_bounded
from midstream_engine.checkpoint.boxes import Box, extent, slabs, volume, whole
from midstream_engine.checkpoint.discover import read_manifest
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.errors import CheckpointError, CheckpointFull
from midstream_engine.checkpoint.grid import cell_shape, cells_of, grid_of
from midstream_engine.checkpoint.memory import Blocks
from midstream_engine.checkpoint.objects import Directory, Discard, bytes_of, write_cell, write_object
from midstream_engine.checkpoint.packed import pack
from midstream_engine.checkpoint.snapshot import HostArray, snapshot
from midstream_engine.records import (
    FORMAT,
    FORMAT_VERSION,
    MANIFEST,
    PACKED,
    TRAIN,
    ArrayEntry,
    Manifest,
    ObjectEntry,
    RunPaths,
    canonical_json,
    checkpoint_name,
    locked,
    root_digest,
)


@dataclasses.dataclass(frozen=True)
class Written:
    """What was written: enough to commit it."""

    arrays: list[ArrayEntry]
    objects: list[ObjectEntry]
    root_digest: str


class _Target(Protocol):
    def write(self, path: str, blocks: Any) -> None: ...


class PendingSave:
    """A snapshot that is still to be written. It belongs to no device any more: any thread may finish it."""

    def __init__(
        self, paths: RunPaths, arrays: list[HostArray], document: dict[str, Any], *, step: int, attempt: int, epoch: int
    ):
        self.step = step
        self.bytes = stored_bytes(arrays)
        self._paths, self._arrays, self._document = paths, arrays, document
        self._attempt, self._epoch = attempt, epoch

    def finish(self) -> Manifest:
        """Write and commit, once; returns the manifest when it is on the disk. The snapshot's memory is given back.

        Raises what :func:`save_checkpoint` raises: the fence may have moved on while the objects were written.
        """
        arrays, self._arrays = self._arrays, []
        directory = self._paths.checkpoint(checkpoint_name(self.step, self._attempt))
        if os.path.exists(os.path.join(directory, MANIFEST)):
            return _already_saved(directory, arrays, self._document)
        with _removed_on_failure(directory, self.bytes):
            written = write(directory, arrays, self._document)
            return commit(self._paths, directory, written, step=self.step, attempt=self._attempt, epoch=self._epoch)


def begin_save(
    paths: RunPaths,
    tree: Any,
    *,
    step: int,
    attempt: int,
    epoch: int,
    state: Mapping[str, Any],
    provenance: Mapping[str, Any],
    witness: Mapping[str, Any] | None,
    copy: bool = True,
) -> PendingSave:
    """The snapshot of ``tree`` and ``state``, to be finished on another thread. Nothing is written yet.

    ``copy=False`` spares the host its copy where the state stays as it is until the save is finished. Raises Fenced,
    CheckpointError and ValueError as :func:`save_checkpoint` does.
    """
    fences.check(paths, epoch, step)
    document = train_document(state, provenance, witness)
    return PendingSave(paths, snapshot(tree, copy=copy), document, step=step, attempt=attempt, epoch=epoch)


def save_checkpoint(
    paths: RunPaths,
    tree: Any,
    *,
    step: int,
    attempt: int,
    epoch: int,
    state: Mapping[str, Any],
    provenance: Mapping[str, Any],
    witness: Mapping[str, Any] | None,
) -> Manifest:
    """Save ``tree`` and ``state`` as ``step-<step>-a<attempt>``; returns the manifest once it is on the disk.

    A complete checkpoint is never overwritten: saving the same state again returns the manifest that is there. What an
    earlier, torn try of the same attempt left behind is replaced.

    Raises Fenced where the fence does not accept (epoch, step), CheckpointFull where there is no room (what was written
    is removed, older checkpoints are left alone), CheckpointError where another state already has this name, ValueError
    for a dtype that the format does not have.
    """
    pending = begin_save(
        paths,
        tree,
        step=step,
        attempt=attempt,
        epoch=epoch,
        state=state,
        provenance=provenance,
        witness=witness,
        copy=False,
    )
    return pending.finish()


def train_document(
    state: Mapping[str, Any], provenance: Mapping[str, Any], witness: Mapping[str, Any] | None
) -> dict[str, Any]:
    """``train.json``. Its values are what JSON makes of them, so that what is hashed is what will be read back.

    Raises CheckpointError for a value that JSON cannot hold (NaN and infinity included).
    """
    try:
        return json.loads(canonical_json({"state": state, "provenance": provenance, "witness": witness}))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{TRAIN} cannot hold this training state: {error}") from error


def write(directory: str, arrays: list[HostArray], document: dict[str, Any]) -> Written:
    """Write everything but the manifest into ``directory``, which is emptied first."""
    if os.path.lexists(directory):
        shutil.rmtree(directory)
    os.makedirs(directory)
    needed = stored_bytes(arrays)
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise CheckpointFull(_no_room(directory, needed, f"{free} free"))
    store = Directory(directory)
    written = write_objects(store, arrays, document)
    store.sync()
    return written


def stored_bytes(arrays: list[HostArray]) -> int:
    """Bytes that the arrays will take on the disk, small change (headers, file system blocks) included roughly."""
    return sum(math.prod(array.shape) * numpy_dtype(array.dtype).itemsize for array in arrays) + (1 << 16)


def write_objects(store: _Target, arrays: list[HostArray], document: dict[str, Any]) -> Written:
    """Write arrays and ``train.json`` to ``store``, in threads, with bounded bytes in flight."""
    entries: list[ArrayEntry] = []
    objects: dict[str, ObjectEntry] = {}
    lock = threading.Lock()
    small: dict[str, np.ndarray] = {}
    tasks: list[Task] = []
    blocks = Blocks()

    def later(size: int, make: Callable[[], ObjectEntry]) -> None:
        def task() -> None:
            entry = make()
            with lock:
                objects[entry.path] = entry

        tasks.append((size, task))

    for array in arrays:
        grid = grid_of(array.axes, array.shape, array.dtype)
        if grid:
            paths = zarr.object_paths(array.name, array.shape, grid)
            _plan_cells(store, array, grid, blocks, later)
        else:
            paths = [PACKED]
            small[array.name] = array.part(whole(array.shape))
        entries.append(ArrayEntry(array.name, list(array.axes), list(array.shape), array.dtype, list(grid), paths))
    if small:
        packed = pack(small)
        later(len(packed), lambda: write_object(store, PACKED, memoryview(packed)))
    train = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"
    later(len(train), lambda: write_object(store, TRAIN, memoryview(train)))
    run_bounded(tasks)
    hashes = {path: entry.sha256 for path, entry in objects.items()}
    return Written(
        entries,
        [objects[path] for path in sorted(objects)],
        root_digest(entries, hashes, document["state"]),
    )


def _plan_cells(
    store: _Target,
    array: HostArray,
    grid: tuple[int, ...],
    blocks: Blocks,
    later: Callable[[int, Callable[[], ObjectEntry]], None],
) -> None:
    text = zarr.metadata(array.axes, array.shape, array.dtype, grid)
    later(len(text), lambda: write_object(store, zarr.metadata_path(array.name), memoryview(text)))
    size = math.prod(cell_shape(array.shape, grid)) * numpy_dtype(array.dtype).itemsize
    for index, box in cells_of(array.shape, grid):

        def make(path: str = zarr.cell_path(array.name, index), box: Box = box) -> ObjectEntry:
            with blocks.lend() as buffer:
                return write_cell(store, path, _bytes_of_cell(array, box, buffer))

        later(size, make)


def _bytes_of_cell(array: HostArray, box: Box, buffer: np.ndarray) -> Iterator[memoryview]:
    """The elements of ``box`` in row-major order, in blocks; each is valid until the next one is asked for."""
    dtype = numpy_dtype(array.dtype)
    for slab in slabs(box, max(1, len(buffer) // dtype.itemsize)):
        out = buffer[: volume(slab) * dtype.itemsize].view(dtype).reshape(extent(slab))
        yield bytes_of(array.part(slab, out))


def commit(paths: RunPaths, directory: str, written: Written, *, step: int, attempt: int, epoch: int) -> Manifest:
    """Make what was written a checkpoint: the manifest, last, while the fence is known to accept it.

    Raises Fenced where it does not.
    """
    manifest = Manifest(
        format=FORMAT,
        version=FORMAT_VERSION,
        run_id=paths.run_id,
        step=step,
        attempt=attempt,
        epoch=epoch,
        created=time.time(),
        root_digest=written.root_digest,
        arrays=[entry.to_json() for entry in written.arrays],
        objects=[entry.to_json() for entry in written.objects],
    )
    with locked(paths.lock):
        fences.check(paths, epoch, step)
        manifest.write(os.path.join(directory, MANIFEST))
    return manifest


def _already_saved(directory: str, arrays: list[HostArray], document: dict[str, Any]) -> Manifest:
    """The manifest that is there, after making sure that it is of this very state."""
    manifest = read_manifest(directory)
    digest = write_objects(Discard(), arrays, document).root_digest
    if digest != manifest.root_digest:
        raise CheckpointError(
            f"{directory} is complete and holds another state (root digest {manifest.root_digest[:12]}, "
            f"this one is {digest[:12]}): a checkpoint is never overwritten"
        )
    return manifest


# No space, over quota, over the limit on a file's size (RLIMIT_FSIZE).
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _no_room(directory: str, needed: int, why: str) -> str:
    return (
        f"{directory}: no room for the checkpoint: {needed} bytes needed, {why}; "
        "free some there and save again; older checkpoints are untouched"
    )


@contextlib.contextmanager
def _removed_on_failure(directory: str, needed: int) -> Iterator[None]:
    """Remove what was written where the save fails; a process that is killed leaves a torn directory instead.

    Errors of the file system become CheckpointFull or CheckpointError.
    """
    try:
        yield
    except BaseException as error:
        if not os.path.exists(os.path.join(directory, MANIFEST)):
            shutil.rmtree(directory, ignore_errors=True)  # the error to report is the one that led here
        if not isinstance(error, OSError):
            raise
        if error.errno in _FULL:
            raise CheckpointFull(_no_room(directory, needed, error.strerror or "")) from error
        raise CheckpointError(f"{directory}: cannot be written: {error}") from error
