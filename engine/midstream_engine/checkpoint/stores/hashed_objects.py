"""Writing and reading of a checkpoint's objects (files), hashed in passing."""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Generator, Iterable, Iterator
from typing import Protocol

import google_crc32c
import numpy as np

from midstream_core.attempt.errors import CheckpointError
from midstream_core.records import ObjectEntry, crc32c_base64
from midstream_engine.checkpoint.errors import CheckpointCorruptError
from midstream_engine.checkpoint.host_buffers import BLOCK
from midstream_engine.checkpoint.stores.object_store import ObjectStore

# crc32c(data + little-endian crc32c(data)) is this constant for any data: a property of every CRC. So the checksum of
# a complete chunk verifies the one at its end.
CRC32C_RESIDUE = 0x48674BC7


class Discard:
    """A store that discards objects, to compute hashes alone."""

    where = "(nowhere)"

    def write(self, path: str, blocks: Iterable[memoryview]) -> None:
        """Read all blocks."""
        del path
        for _ in blocks:
            pass


class Hasher:
    """SHA-256, crc32c and size of a stream of bytes."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self.crc32c = 0
        self.size = 0

    def update(self, block: memoryview) -> None:
        """Add a block."""
        self._sha256.update(block)
        self.crc32c = crc32c_of(block, self.crc32c)
        self.size += len(block)

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes so far, hexadecimal."""
        return self._sha256.hexdigest()

    def tee(self, blocks: Iterable[memoryview]) -> Iterator[memoryview]:
        """Yield the blocks, each added before."""
        for block in blocks:
            self.update(block)
            yield block

    def entry(self, path: str) -> ObjectEntry:
        """Return the manifest entry of the bytes so far."""
        return ObjectEntry(path, self.size, self.sha256, crc32c_base64(self.crc32c))


class _Writes(Protocol):
    def write(self, path: str, blocks: Iterable[memoryview]) -> None: ...


def write_object(store: _Writes, path: str, data: memoryview) -> ObjectEntry:
    """Write ``data`` unchanged; return its manifest entry."""
    hasher = Hasher()
    store.write(path, hasher.tee(_split(data)))
    return hasher.entry(path)


def write_chunk(store: _Writes, path: str, data: Iterable[memoryview]) -> ObjectEntry:
    """Write ``data`` and its crc32c in zarr's form; return the manifest entry."""
    hasher = Hasher()

    def blocks() -> Iterator[memoryview]:
        yield from hasher.tee(data)
        yield from hasher.tee([memoryview(hasher.crc32c.to_bytes(4, "little"))])

    store.write(path, blocks())
    return hasher.entry(path)


def _split(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(data), BLOCK):
        yield data[start : start + BLOCK]


def read_object(store: ObjectStore, entry: ObjectEntry, *, chunk: bool = False) -> tuple[memoryview, str]:
    """Return an object's bytes and their SHA-256. Raises as :func:`read_checked` does."""
    buffer = np.empty(entry.size, np.uint8).data
    return buffer, read_checked(store, entry, [buffer], chunk=chunk)


def read_checked(store: ObjectStore, entry: ObjectEntry, into: Iterable[memoryview], *, chunk: bool = False) -> str:
    """Read an object into buffers that together have its size; return its SHA-256.

    Args:
        store: Objects of the checkpoint.
        entry: The object's manifest entry.
        into: Buffers, filled in order. After an error their contents are undefined.
        chunk: Whether the object is a chunk, which ends with its crc32c.

    Raises:
        CheckpointCorruptError: The object is missing, differs from the manifest, or its own crc32c is wrong.
        CheckpointError: The object cannot be opened.
    """
    hasher = Hasher()
    with _named(store, entry.path):
        size = store.size(entry.path)
        if size != entry.size:
            kind = "truncated" if size < entry.size else "too long"
            raise _corrupt(store, entry.path, f"{kind}: {size} bytes, the manifest says {entry.size}")
        count = store.read(entry.path, into, hasher.update, entry.crc32c or "")
    if count != size:
        raise _corrupt(store, entry.path, f"truncated while it was read: {count} of {size} bytes")
    if hasher.sha256 != entry.sha256:
        flaw = f"SHA-256 {hasher.sha256} differs from the manifest's {entry.sha256}"
        if chunk and hasher.crc32c == CRC32C_RESIDUE:
            flaw += "; its own crc32c is right, so it is another chunk under this path"
        raise _corrupt(store, entry.path, flaw)
    if entry.crc32c and crc32c_base64(hasher.crc32c) != entry.crc32c:
        raise _corrupt(store, entry.path, f"crc32c differs from the manifest's {entry.crc32c}")
    if chunk and hasher.crc32c != CRC32C_RESIDUE:
        raise _corrupt(store, entry.path, "the crc32c at its end does not match its data")
    return hasher.sha256


def crc32c_of(data: memoryview, before: int = 0) -> int:
    """Return the crc32c of ``data``, continuing ``before``."""
    # The extension accepts numpy arrays without a copy, but no memoryviews.
    return google_crc32c.extend(before, np.frombuffer(data, np.uint8))  # pyright: ignore


def _corrupt(store: ObjectStore, path: str, flaw: str) -> CheckpointCorruptError:
    return CheckpointCorruptError(f"{store.where}: object {path}: {flaw}")


@contextlib.contextmanager
def _named(store: ObjectStore, path: str) -> Generator[None, None, None]:
    """Translate errors of the file system into errors of the checkpoint."""
    try:
        yield
    except FileNotFoundError as error:
        raise _corrupt(store, path, "missing") from error
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE):
            raise CheckpointError(f"{store.where}: object {path} cannot be opened: {error.strerror}") from error
        raise _corrupt(store, path, f"cannot be read: {error.strerror or error}") from error
