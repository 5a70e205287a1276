"""Writing of a checkpoint's objects: chunks, packed arrays and ``train.json``."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import math
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, Protocol

import numpy as np

from midstream_core import zarr_metadata
from midstream_core.attempt.errors import CheckpointError
from midstream_core.attempt.save_fence import SupersededError
from midstream_core.records import MANIFEST, PACKED, TRAIN, ArrayEntry, ObjectEntry, canonical_json, root_digest
from midstream_engine.checkpoint import zarr
from midstream_engine.checkpoint.bounded_pool import run_bounded
from midstream_engine.checkpoint.boxes import Box, extent, full_box, slabs, volume
from midstream_engine.checkpoint.chunk_grid import chunk_shape, chunks_of, grid_of
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.errors import CheckpointFullError
from midstream_engine.checkpoint.host_buffers import BufferPool, bytes_of
from midstream_engine.checkpoint.packed_arrays import pack
from midstream_engine.checkpoint.saving.snapshot import HostArray
from midstream_engine.checkpoint.stores import open_store
from midstream_engine.checkpoint.stores.hashed_objects import write_chunk, write_object
from midstream_engine.checkpoint.train_document import TrainDocument


@dataclasses.dataclass(frozen=True)
class Written:
    """The objects that were written, as :func:`commit` needs them."""

    arrays: list[ArrayEntry]
    objects: list[ObjectEntry]
    root_digest: str


class _Target(Protocol):
    def write(self, path: str, blocks: Any) -> None: ...


Document = TrainDocument | Callable[[], TrainDocument]  # ``train.json``, or what returns it and may wait


def train_document(
    state: dict[str, Any], provenance: dict[str, Any], reference_losses: dict[str, Any] | None
) -> TrainDocument:
    """Return ``train.json`` with values as JSON reads them back, for equal hashes.

    Raises:
        CheckpointError: JSON has no such value (NaN and infinity included).
    """
    try:
        return json.loads(
            canonical_json({"state": state, "provenance": provenance, "reference_losses": reference_losses})
        )
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{TRAIN} cannot represent this training state: {error}") from error


def write(directory: str, arrays: list[HostArray], document: Document) -> Written:
    """Write everything but the manifest to ``directory``.

    What an interrupted save left there is replaced. Raises what ``document`` raises.
    """
    store = open_store(directory)
    store.prepare(stored_bytes(arrays))
    try:
        written = write_objects(store, arrays, document)
        store.sync()
    finally:
        store.close()
    return written


def stored_bytes(arrays: list[HostArray]) -> int:
    """Return about how many bytes the arrays need on the disk.

    Headers and file system blocks are included.
    """
    return sum(math.prod(array.shape) * numpy_dtype(array.dtype).itemsize for array in arrays) + (1 << 16)


def write_objects(store: _Target, arrays: list[HostArray], document: Document) -> Written:
    """Write arrays and ``train.json`` to ``store``, in threads.

    The bytes in memory are limited. ``document`` is called once the arrays are written.
    """
    objects = [*write_small_arrays(store, arrays), *write_chunks(store, arrays)]
    entries = describe_arrays(arrays)
    ready = document() if callable(document) else document
    return written_of(entries, [*objects, *write_document(store, ready)], ready)


def written_of(entries: list[ArrayEntry], objects: list[ObjectEntry], document: TrainDocument) -> Written:
    """Return arrays and objects, sorted, with their root digest."""
    hashes = {entry.path: entry.sha256 for entry in objects}
    ordered = sorted(objects, key=lambda entry: entry.path)
    return Written(entries, ordered, root_digest(entries, hashes, document["state"]))


def describe_arrays(arrays: list[HostArray]) -> list[ArrayEntry]:
    """Return the arrays as the manifest lists them."""
    entries: list[ArrayEntry] = []
    for array in arrays:
        grid = grid_of(array.axes, array.shape, array.dtype)
        paths = zarr.object_paths(array.name, array.shape, grid) if grid else [PACKED]
        sha256 = "" if grid else hashlib.sha256(bytes_of(array.part(full_box(array.shape)))).hexdigest()
        axes, shape = list(array.axes), list(array.shape)
        entries.append(ArrayEntry(array.name, axes, shape, array.dtype, list(grid), paths, sha256))
    return entries


def write_chunks(
    store: _Target, arrays: list[HostArray], mine: Callable[[HostArray, int, Box], bool] | None = None
) -> list[ObjectEntry]:
    """Write the chunks of arrays that ``mine`` selects.

    A chunk is written if ``mine(array, number of the chunk, box)`` is true; None: all.
    """
    blocks = BufferPool()
    work: list[tuple[int, Callable[[], ObjectEntry]]] = []
    for array in arrays:
        grid = grid_of(array.axes, array.shape, array.dtype)
        if not grid:
            continue
        size = math.prod(chunk_shape(array.shape, grid)) * numpy_dtype(array.dtype).itemsize
        for number, (index, box) in enumerate(chunks_of(array.shape, grid)):
            if mine is None or mine(array, number, box):
                array.expect(box)
                work.append(
                    (size, partial(_write_chunk, store, array, zarr.chunk_path(array.name, index), box, blocks))
                )
    return _run(work)


def write_rest(store: _Target, arrays: list[HostArray], document: TrainDocument) -> list[ObjectEntry]:
    """Write ``train.json``, packed arrays and the metadata of chunked arrays."""
    return [*write_small_arrays(store, arrays), *write_document(store, document)]


def write_small_arrays(store: _Target, arrays: list[HostArray]) -> list[ObjectEntry]:
    """Write the packed arrays, and the metadata of chunked ones."""
    texts: dict[str, bytes] = {}
    small: dict[str, np.ndarray] = {}
    for array in arrays:
        grid = grid_of(array.axes, array.shape, array.dtype)
        if grid:
            texts[zarr.metadata_path(array.name)] = zarr_metadata.metadata(array.axes, array.shape, array.dtype, grid)
        else:
            small[array.name] = array.part(full_box(array.shape))
    if small:
        texts[PACKED] = pack(small)
    return _run([(len(text), partial(write_object, store, path, memoryview(text))) for path, text in texts.items()])


def write_document(store: _Target, document: TrainDocument) -> list[ObjectEntry]:
    """Write ``train.json``."""
    text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"
    return [write_object(store, TRAIN, memoryview(text))]


def _run(work: list[tuple[int, Callable[[], ObjectEntry]]]) -> list[ObjectEntry]:
    objects: list[ObjectEntry] = []  # list.append is atomic

    def task(make: Callable[[], ObjectEntry]) -> Callable[[], None]:
        return lambda: objects.append(make())

    run_bounded([(size, task(make)) for size, make in work])
    return objects


def _write_chunk(store: _Target, array: HostArray, path: str, box: Box, blocks: BufferPool) -> ObjectEntry:
    with blocks.lend() as buffer:
        return write_chunk(store, path, _bytes_of_chunk(array, box, buffer))


def _bytes_of_chunk(array: HostArray, box: Box, buffer: np.ndarray) -> Iterator[memoryview]:
    """Yield the elements of ``box`` in row-major order, in blocks.

    Each block is valid until the next is requested.
    """
    dtype = numpy_dtype(array.dtype)
    for slab in slabs(box, max(1, len(buffer) // dtype.itemsize)):
        out = buffer[: volume(slab) * dtype.itemsize].view(dtype).reshape(extent(slab))
        yield bytes_of(array.part(slab, out))


# No space, over quota, over the limit on a file's size (RLIMIT_FSIZE).
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _no_room(directory: str, needed: int, why: str) -> str:
    return (
        f"{directory}: no room for the checkpoint: {needed} bytes needed, {why}; older checkpoints are unchanged "
        "(hint: free some and save again)"
    )


@contextlib.contextmanager
def removed_on_failure(
    directory: str, needed: int, stays: Callable[[], bool] = lambda: False
) -> Generator[None, None, None]:
    """Context manager that removes what a failed save wrote, unless ``stays()``.

    A process that is killed leaves a partial directory, and a bucket keeps what was written. Nothing is removed where
    the start is superseded: the newer start may be writing a checkpoint of this name.
    """
    with reported(directory, needed):
        try:
            yield
        except SupersededError:
            raise
        except BaseException:
            if stays():
                raise
            with contextlib.suppress(OSError, CheckpointError):  # the save's own error is raised
                store = open_store(directory)
                if not store.exists(MANIFEST):
                    store.abandon()
            raise


@contextlib.contextmanager
def reported(directory: str, needed: int) -> Generator[None, None, None]:
    """Translate errors of the file system into CheckpointFullError or CheckpointError."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise CheckpointFullError(_no_room(directory, needed, error.strerror or "")) from error
        raise CheckpointError(f"{directory}: cannot be written: {error}") from error
