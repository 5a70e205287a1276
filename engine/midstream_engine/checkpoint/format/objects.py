"""Objects: the files of a checkpoint, written once, hashed while their bytes pass. Where they lie: ``stores``."""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Iterable, Iterator
from typing import Protocol

import google_crc32c
import numpy as np

from midstream_engine.checkpoint.errors import CheckpointCorrupt, CheckpointError
from midstream_engine.checkpoint.saving.host_buffers import BLOCK
from midstream_engine.checkpoint.stores.checkpoint_store import Store
from midstream_engine.records import ObjectEntry, crc32c_base64

# crc32c(data + little-endian crc32c(data)) is this constant for any data: a property of every CRC. So the checksum of
# a whole cell object tells whether the one at its end is right.
CRC32C_RESIDUE = 0x48674BC7


class Discard:
    """Takes objects and keeps none: what would be written is hashed, nothing more."""

    where = "(nowhere)"

    def write(self, path: str, blocks: Iterable[memoryview]) -> None:
        for _ in blocks:
            pass


class Hasher:
    """SHA-256 and crc32c of the bytes that pass."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self.crc32c = 0
        self.size = 0

    def update(self, block: memoryview) -> None:
        self._sha256.update(block)
        self.crc32c = crc32c_of(block, self.crc32c)
        self.size += len(block)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def tee(self, blocks: Iterable[memoryview]) -> Iterator[memoryview]:
        for block in blocks:
            self.update(block)
            yield block

    def entry(self, path: str) -> ObjectEntry:
        return ObjectEntry(path, self.size, self.sha256, crc32c_base64(self.crc32c))


class _Writes(Protocol):
    def write(self, path: str, blocks: Iterable[memoryview]) -> None: ...


def write_object(store: _Writes, path: str, data: memoryview) -> ObjectEntry:
    """Write ``data`` as it is; returns its manifest entry."""
    hasher = Hasher()
    store.write(path, hasher.tee(_split(data)))
    return hasher.entry(path)


def write_chunk(store: _Writes, path: str, data: Iterable[memoryview]) -> ObjectEntry:
    """Write ``data`` followed by its little-endian crc32c, as zarr's codec of that name does."""
    hasher = Hasher()

    def blocks() -> Iterator[memoryview]:
        yield from hasher.tee(data)
        yield from hasher.tee([memoryview(hasher.crc32c.to_bytes(4, "little"))])

    store.write(path, blocks())
    return hasher.entry(path)


def _split(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(data), BLOCK):
        yield data[start : start + BLOCK]


def bytes_of(array: np.ndarray) -> memoryview:
    """The elements of an array in row-major order; a copy only where it is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def read_object(store: Store, entry: ObjectEntry, *, cell: bool = False) -> tuple[memoryview, str]:
    """An object's bytes and the SHA-256 that was observed while reading them. Raises as :func:`read_checked` does."""
    buffer = np.empty(entry.size, np.uint8).data
    return buffer, read_checked(store, entry, [buffer], cell=cell)


def read_checked(store: Store, entry: ObjectEntry, into: Iterable[memoryview], *, cell: bool = False) -> str:
    """Read an object into buffers that have its size together; the SHA-256 that was observed.

    Raises CheckpointCorrupt, naming the object, where it is missing or is not what the manifest says, and for a
    ``cell`` where the crc32c at its end does not belong to it: the buffers then hold nothing of use.
    """
    hasher = Hasher()
    with _named(store, entry.path):
        size = store.size(entry.path)
        if size != entry.size:
            kind = "truncated" if size < entry.size else "too long"
            raise _corrupt(store, entry.path, f"{kind}: {size} bytes, the manifest says {entry.size}")
        count = store.read(entry.path, into, hasher.update)
    if count != size:
        raise _corrupt(store, entry.path, f"truncated while it was read: {count} of {size} bytes")
    if hasher.sha256 != entry.sha256:
        flaw = f"SHA-256 {hasher.sha256} differs from the manifest's {entry.sha256}"
        if cell and hasher.crc32c == CRC32C_RESIDUE:
            flaw += "; its own crc32c is right, so it is another object in this one's place"
        raise _corrupt(store, entry.path, flaw)
    if entry.crc32c and crc32c_base64(hasher.crc32c) != entry.crc32c:
        raise _corrupt(store, entry.path, f"crc32c differs from the manifest's {entry.crc32c}")
    if cell and hasher.crc32c != CRC32C_RESIDUE:
        raise _corrupt(store, entry.path, "the crc32c at its end does not belong to its data")
    return hasher.sha256


def crc32c_of(data: memoryview, before: int = 0) -> int:
    """The crc32c of ``data``, continuing ``before``."""
    # The extension takes numpy arrays, but no memoryviews, without a copy.
    return google_crc32c.extend(before, np.frombuffer(data, np.uint8))  # pyright: ignore[reportArgumentType]


def _corrupt(store: Store, path: str, flaw: str) -> CheckpointCorrupt:
    return CheckpointCorrupt(f"{store.where}: object {path}: {flaw}")


@contextlib.contextmanager
def _named(store: Store, path: str) -> Iterator[None]:
    """Errors of the file system as errors of the checkpoint."""
    try:
        yield
    except FileNotFoundError as error:
        raise _corrupt(store, path, "missing") from error
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE):
            raise CheckpointError(f"{store.where}: object {path} cannot be opened: {error.strerror}") from error
        raise _corrupt(store, path, f"cannot be read: {error.strerror or error}") from error
