"""Save a state: snapshot (device to host), write (hashed in threads), commit (under the fence, manifest last).

Only :func:`begin_save`, which takes the snapshot, needs the training loop to stand still.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from midstream_engine.checkpoint.errors import CheckpointError, CheckpointFull
from midstream_engine.checkpoint.format import zarr
from midstream_engine.checkpoint.format.boxes import Box, extent, slabs, volume, whole
from midstream_engine.checkpoint.format.chunk_grid import chunk_shape, chunks_of, grid_of
from midstream_engine.checkpoint.format.dtypes import numpy_dtype
from midstream_engine.checkpoint.format.objects import Discard, bytes_of, write_chunk, write_object
from midstream_engine.checkpoint.format.packed_arrays import pack
from midstream_engine.checkpoint.loading.list_checkpoints import read_manifest
from midstream_engine.checkpoint.saving import save_fence as fences
from midstream_engine.checkpoint.saving.bounded_pool import run_bounded
from midstream_engine.checkpoint.saving.group_save import Group, check_owners
from midstream_engine.checkpoint.saving.host_buffers import Blocks
from midstream_engine.checkpoint.saving.snapshot import HostArray, snapshot
from midstream_engine.checkpoint.stores import in_bucket, open_store
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
    SpreadHost,
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
        self,
        paths: RunPaths,
        arrays: list[HostArray],
        document: dict[str, Any],
        *,
        step: int,
        attempt: int,
        epoch: int,
        group: Group | None = None,
    ):
        self.step = step
        self.bytes = stored_bytes(arrays)
        self._paths, self._arrays, self._document = paths, arrays, document
        self._attempt, self._epoch, self._group = attempt, epoch, group

    def finish(self) -> Manifest:
        """Write and commit, once; returns the manifest when it is on the disk. The snapshot's memory is given back.

        Raises what :func:`save_checkpoint` raises: the fence may have moved on while the objects were written.
        """
        arrays, self._arrays = self._arrays, []
        directory = self._paths.checkpoint(checkpoint_name(self.step, self._attempt))
        if self._group is not None and self._group.count > 1:
            from midstream_engine.checkpoint.saving.consensus import finish_with_consensus

            return finish_with_consensus(
                self._paths, directory, arrays, self._document, self._group,
                step=self.step, attempt=self._attempt, epoch=self._epoch,
            )  # fmt: skip
        if open_store(directory).exists(MANIFEST):
            return _already_saved(directory, arrays, self._document)
        with removed_on_failure(directory, self.bytes):
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
    reference_losses: Mapping[str, Any] | None,
    copy: bool = True,
    group: Group | None = None,
) -> PendingSave:
    """The snapshot of ``tree`` and ``state``, to be finished on another thread. Nothing is written yet.

    ``copy=False`` spares the host its copy where the state stays as it is until the save is finished. ``group``: the
    processes that hold the state together; each of them begins and finishes the same save. Raises Fenced,
    CheckpointError and ValueError as :func:`save_checkpoint` does.
    """
    fences.check(paths, epoch, step)
    document = train_document(state, provenance, reference_losses)
    arrays = snapshot(tree, copy=copy)
    if group is not None and group.count > 1:
        check_owners(arrays)
    else:
        spread = [array.name for array in arrays if array.holders is not None]
        if spread:
            raise CheckpointError(f"{spread[0]} is spread over several processes, and this one was told of no others")
    return PendingSave(paths, arrays, document, step=step, attempt=attempt, epoch=epoch, group=group)


def save_checkpoint(
    paths: RunPaths,
    tree: Any,
    *,
    step: int,
    attempt: int,
    epoch: int,
    state: Mapping[str, Any],
    provenance: Mapping[str, Any],
    reference_losses: Mapping[str, Any] | None,
) -> Manifest:
    """Save ``tree`` and ``state`` as ``step-<step>-a<attempt>``; returns the manifest once it is on the disk.

    A complete checkpoint is never overwritten: saving the same state again returns the manifest that is there. What an
    earlier, torn try of the same attempt left behind is replaced. In a bucket, where a rival might count on it, what
    has the same content is taken over, and other content ends the save.

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
        reference_losses=reference_losses,
        copy=False,
    )
    return pending.finish()


def train_document(
    state: Mapping[str, Any], provenance: Mapping[str, Any], reference_losses: Mapping[str, Any] | None
) -> dict[str, Any]:
    """``train.json``. Its values are what JSON makes of them, so that what is hashed is what will be read back.

    Raises CheckpointError for a value that JSON cannot hold (NaN and infinity included).
    """
    try:
        return json.loads(
            canonical_json({"state": state, "provenance": provenance, "reference_losses": reference_losses})
        )
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{TRAIN} cannot hold this training state: {error}") from error


def write(directory: str, arrays: list[HostArray], document: dict[str, Any]) -> Written:
    """Write everything but the manifest into ``directory``; what a cut-off try left there is in nobody's way."""
    store = open_store(directory)
    store.prepare(stored_bytes(arrays))
    try:
        written = write_objects(store, arrays, document)
        store.sync()
    finally:
        store.close()
    return written


def stored_bytes(arrays: list[HostArray]) -> int:
    """Bytes that the arrays will take on the disk, small change (headers, file system blocks) included roughly."""
    return sum(math.prod(array.shape) * numpy_dtype(array.dtype).itemsize for array in arrays) + (1 << 16)


def write_objects(store: _Target, arrays: list[HostArray], document: dict[str, Any]) -> Written:
    """Write arrays and ``train.json`` to ``store``, in threads, with bounded bytes in flight."""
    objects = [*write_chunks(store, arrays), *write_rest(store, arrays, document)]
    return written_of(describe_arrays(arrays), objects, document)


def written_of(entries: list[ArrayEntry], objects: list[ObjectEntry], document: dict[str, Any]) -> Written:
    hashes = {entry.path: entry.sha256 for entry in objects}
    ordered = sorted(objects, key=lambda entry: entry.path)
    return Written(entries, ordered, root_digest(entries, hashes, document["state"]))


def describe_arrays(arrays: list[HostArray]) -> list[ArrayEntry]:
    """The arrays as the manifest lists them."""
    entries = []
    for array in arrays:
        grid = grid_of(array.axes, array.shape, array.dtype)
        paths = zarr.object_paths(array.name, array.shape, grid) if grid else [PACKED]
        sha256 = "" if grid else hashlib.sha256(bytes_of(array.part(whole(array.shape)))).hexdigest()
        axes, shape = list(array.axes), list(array.shape)
        entries.append(ArrayEntry(array.name, axes, shape, array.dtype, list(grid), paths, sha256))
    return entries


def write_chunks(
    store: _Target, arrays: list[HostArray], mine: Callable[[HostArray, int, Box], bool] | None = None
) -> list[ObjectEntry]:
    """Write the cells of arrays that are cut, those alone that ``mine(array, number of the cell, box)`` picks."""
    blocks = Blocks()
    work: list[tuple[int, Callable[[], ObjectEntry]]] = []
    for array in arrays:
        grid = grid_of(array.axes, array.shape, array.dtype)
        if not grid:
            continue
        size = math.prod(chunk_shape(array.shape, grid)) * numpy_dtype(array.dtype).itemsize
        for number, (index, box) in enumerate(chunks_of(array.shape, grid)):
            if mine is None or mine(array, number, box):
                work.append((size, partial(_write_cell, store, array, zarr.chunk_path(array.name, index), box, blocks)))
    return _run(work)


def write_rest(store: _Target, arrays: list[HostArray], document: dict[str, Any]) -> list[ObjectEntry]:
    """Write what is not cells: descriptions of arrays that are cut, the packed ones, ``train.json``."""
    texts: dict[str, bytes] = {}
    small: dict[str, np.ndarray] = {}
    for array in arrays:
        grid = grid_of(array.axes, array.shape, array.dtype)
        if grid:
            texts[zarr.metadata_path(array.name)] = zarr.metadata(array.axes, array.shape, array.dtype, grid)
        else:
            small[array.name] = array.part(whole(array.shape))
    if small:
        texts[PACKED] = pack(small)
    texts[TRAIN] = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"
    return _run([(len(text), partial(write_object, store, path, memoryview(text))) for path, text in texts.items()])


def _run(work: list[tuple[int, Callable[[], ObjectEntry]]]) -> list[ObjectEntry]:
    objects: list[ObjectEntry] = []  # appended to from several threads, which lists allow

    def task(make: Callable[[], ObjectEntry]) -> Callable[[], None]:
        return lambda: objects.append(make())

    run_bounded([(size, task(make)) for size, make in work])
    return objects


def _write_cell(store: _Target, array: HostArray, path: str, box: Box, blocks: Blocks) -> ObjectEntry:
    with blocks.lend() as buffer:
        return write_chunk(store, path, _bytes_of_cell(array, box, buffer))


def _bytes_of_cell(array: HostArray, box: Box, buffer: np.ndarray) -> Iterator[memoryview]:
    """The elements of ``box`` in row-major order, in blocks; each is valid until the next one is asked for."""
    dtype = numpy_dtype(array.dtype)
    for slab in slabs(box, max(1, len(buffer) // dtype.itemsize)):
        out = buffer[: volume(slab) * dtype.itemsize].view(dtype).reshape(extent(slab))
        yield bytes_of(array.part(slab, out))


def commit(
    paths: RunPaths,
    directory: str,
    written: Written,
    *,
    step: int,
    attempt: int,
    epoch: int,
    hosts: Sequence[SpreadHost] = (),
    host: str = "",
) -> Manifest:
    """Make what was written a checkpoint: the manifest, last, while the fence is known to accept it. ``hosts``,
    ``host``: where it is spread, who holds it, and which of them this one is.

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
        arrays=[dict(vars(entry)) for entry in written.arrays],  # to_json copies deeply, which takes its time
        objects=[dict(vars(entry)) for entry in written.objects],
        hosts=[entry.to_json() for entry in hosts],
        host=host,
    )
    with locked(paths.lock):
        fence = fences.check(paths, epoch, step)
        if in_bucket(directory):
            from midstream_engine.checkpoint.stores import bucket_fence

            bucket_fence.check_fence(paths, fence, epoch, step)
        store = open_store(directory)
        try:
            store.commit(MANIFEST, manifest_text(manifest))
        except FileExistsError as error:
            raise CheckpointError(f"{directory}: another process has committed it: it is not overwritten") from error
    with contextlib.suppress(CheckpointError):  # it is saved; what still lies beside it is named by --verify
        store.tidy([entry.path for entry in written.objects])
    return manifest


def manifest_text(manifest: Manifest) -> bytes:
    """The bytes of ``manifest.json``: an array and an object a line."""
    lines = []
    for key, value in vars(manifest).items():
        text = json.dumps(value, allow_nan=False)
        if isinstance(value, list) and value:
            text = "[\n  " + ",\n  ".join(json.dumps(entry, allow_nan=False) for entry in value) + "\n ]"
        lines.append(f" {json.dumps(key)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


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
def removed_on_failure(directory: str, needed: int) -> Iterator[None]:
    """Remove what was written where the save fails; a process that is killed leaves a torn directory instead, and a
    bucket keeps what is there."""
    with reported(directory, needed):
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError, CheckpointError):  # the error to report is the one that led here
                store = open_store(directory)
                if not store.exists(MANIFEST):
                    store.abandon()
            raise


@contextlib.contextmanager
def reported(directory: str, needed: int) -> Iterator[None]:
    """Errors of the file system as CheckpointFull or CheckpointError."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise CheckpointFull(_no_room(directory, needed, error.strerror or "")) from error
        raise CheckpointError(f"{directory}: cannot be written: {error}") from error
