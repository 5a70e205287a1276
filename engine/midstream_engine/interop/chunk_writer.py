"""Writing of a checkpoint's chunks in parts, as the source's layers are read."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import numpy as np

from midstream_core.attempt.errors import CheckpointError
from midstream_core.records import ObjectEntry
from midstream_engine.checkpoint import zarr
from midstream_engine.checkpoint.boxes import Box, copy_rows, extent, gather, slabs, volume
from midstream_engine.checkpoint.chunk_grid import chunks_of
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.host_buffers import pages
from midstream_engine.checkpoint.stores.directory_objects import OPEN, DirectoryObjects
from midstream_engine.checkpoint.stores.hashed_objects import Hasher
from midstream_engine.interop.direct_io import ALIGNMENT, open_directly, without_direct, write_directly
from midstream_engine.interop.imported_array import ImportedArray, Piece

BLOCK = 4 << 20  # bytes hashed and written at a time: a chunk of a transposed matrix is seldom larger

_buffers = threading.local()  # one aligned buffer per thread, with room for the rest of the last block


class ChunkStore(DirectoryObjects):
    """A directory whose objects are written a part at a time."""

    def begin(self, path: str) -> int:
        """Create an object; return its descriptor for direct writes."""
        target = self._at(path)
        parent = os.path.dirname(target)
        if parent not in self._made:
            os.makedirs(parent, exist_ok=True)
            self._made.add(parent)
        return open_directly(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def resume(self, path: str) -> int:
        """Return a descriptor of an object that was begun."""
        return open_directly(self._at(path), os.O_WRONLY)

    def finish(self, descriptor: int) -> None:
        """Complete an object; it is synced with the others, or now if too many are open."""
        with self._lock:
            self._unsynced.append(descriptor)
            oldest = self._unsynced.popleft() if len(self._unsynced) > OPEN else None
        if oldest is not None:
            try:
                os.fsync(oldest)
            finally:
                os.close(oldest)


class ChunkWriter:
    """Writer of one chunk in parts: an array's elements in ``box``, then their crc32c.

    The elements are row-major.
    """

    def __init__(self, store: ChunkStore, array: ImportedArray, path: str, box: Box) -> None:
        self._store, self._name, self._path, self._box = store, array.name, path, box
        self._dtype = numpy_dtype(array.dtype)
        self._hasher = Hasher()
        self._done = 0  # bytes on the disk; _rest has the received bytes after them
        self._rest = b""

    @property
    def entry(self) -> ObjectEntry:
        """Manifest entry of the object."""
        return self._hasher.entry(self._path)

    def feed(self, pieces: Sequence[Piece], span: tuple[int, int]) -> None:
        """Write the chunk's elements in rows [span) of the array, from ``pieces``.

        Spans must be in order.
        """
        (begin, end), rest = self._box[0], self._box[1:]
        start, stop = max(begin, span[0]), min(end, span[1])
        if start >= stop:
            return
        descriptor = self._store.begin(self._path) if start == begin else self._store.resume(self._path)
        try:
            self._write(descriptor, pieces, ((start, stop), *rest))
            if stop == end:
                self._end(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        if stop == end:
            self._store.finish(descriptor)
        else:
            os.close(descriptor)

    def _write(self, descriptor: int, pieces: Sequence[Piece], box: Box) -> None:
        buffer = _buffer()
        waiting = len(self._rest)
        buffer[:waiting] = np.frombuffer(self._rest, np.uint8)
        for slab in slabs(box, BLOCK // self._dtype.itemsize):
            filled = waiting + volume(slab) * self._dtype.itemsize
            out = buffer[waiting:filled].view(self._dtype).reshape(extent(slab))
            values = gather(slab, pieces, out)
            if values is None:
                raise CheckpointError(f"{self._name}: no piece has the part {list(slab)}")
            if not np.may_share_memory(values, out):
                copy_rows(out, values)
            self._hasher.update(buffer[waiting:filled].data)
            ready = filled - filled % ALIGNMENT
            write_directly(descriptor, buffer[:ready].data, self._done)
            self._done += ready
            waiting = filled - ready
            buffer[:waiting] = buffer[ready:filled]
        self._rest = buffer[:waiting].tobytes()

    def _end(self, descriptor: int) -> None:
        crc = self._hasher.crc32c.to_bytes(4, "little")
        self._hasher.update(memoryview(crc))
        without_direct(descriptor)
        write_directly(descriptor, memoryview(self._rest + crc), self._done)


def chunk_writers(store: ChunkStore, array: ImportedArray) -> list[ChunkWriter]:
    """Return a writer for every chunk of the array."""
    return [
        ChunkWriter(store, array, zarr.chunk_path(array.name, index), box)
        for index, box in chunks_of(array.shape, array.grid)
    ]


def _buffer() -> np.ndarray:
    buffer: np.ndarray | None = getattr(_buffers, "memory", None)
    if buffer is None:
        buffer = _buffers.memory = pages(BLOCK + ALIGNMENT)
    return buffer
