"""The token cache: documents as one long row of token ids, in fixed-size objects, by content.

``<root>/data/<digest>/`` holds ``tokens-00000.bin`` ... (each full but the last), ``offsets.bin`` (int64: where each
document begins, and the end) and ``manifest.json``. It is built beside its place and renamed into it, so it is whole
or absent; two engines that build the same content arrive at the same name, and the second finds it taken.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import os
import shutil
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

import google_crc32c
import numpy as np

from midstream_engine import records
from midstream_engine.data.errors import DataError
from midstream_engine.data.tokenize.tokenizer import Tokenizer
from midstream_engine.data.tokenize.units import token_dtype

FORMAT = "midstream-tokens"
VERSION = 1
OBJECT_BYTES = 64 << 20
OFFSETS = "offsets.bin"
_BUILDING = ".building-"


class Objects:
    """Where the objects of one cache are read from: a directory. Elsewhere: ``remote``."""

    def __init__(self, directory: str):
        self.directory = directory

    def manifest(self) -> dict[str, Any]:
        """DataError where there is none, or an object is missing or has another size than it says."""
        path = os.path.join(self.directory, records.MANIFEST)
        try:
            manifest = records.read_json(path)
        except (FileNotFoundError, records.RecordError) as error:
            raise DataError(f"{self.directory} is no token cache: {error}") from None
        check_sizes(self.directory, manifest.get("objects", []))
        return manifest

    def read(self, entry: records.ObjectEntry) -> np.ndarray:
        """The content of an object, mapped. uint8 [size]."""
        # A plain array: slices of a memmap cost microseconds each.
        return np.asarray(np.memmap(os.path.join(self.directory, entry.path), np.uint8, "r"))

    def bring(self, entries: list[records.ObjectEntry]) -> None:
        """Make sure that these are at hand: here they are."""


class TokenCache:
    """A row of tokens, mapped. ``dtype`` is uint16 or uint32, little-endian."""

    def __init__(self, place: str | Objects):
        """Opens what lies in a directory, or elsewhere. DataError where it is not whole."""
        self._objects = Objects(place) if isinstance(place, str) else place
        self.directory = self._objects.directory
        manifest = self._objects.manifest()
        if manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
            raise DataError(f"{self.directory}/{records.MANIFEST}: not a token cache of version {VERSION}")
        self.manifest: dict[str, Any] = manifest
        self.digest: str = manifest["digest"]
        self.tokenizer: str = manifest["tokenizer"]
        self.eos: int = manifest["eos"]
        self.tokens: int = manifest["tokens"]
        self.documents: int = manifest["documents"]
        self._dtype = np.dtype(manifest["dtype"]).newbyteorder("<")
        entries = [records.ObjectEntry(**entry) for entry in manifest["objects"]]
        self._entries = [entry for entry in entries if entry.path.startswith("tokens-")]
        (self._index,) = (entry for entry in entries if entry.path == OFFSETS)
        sizes = [entry.size // self._dtype.itemsize for entry in self._entries]
        self._starts = [0, *np.cumsum(sizes).tolist()]
        self._blocks: list[np.ndarray] | None = None
        if self.local:
            self._blocks = [self._objects.read(entry).view(self._dtype) for entry in self._entries]

    @property
    def local(self) -> bool:
        """Whether it lies in a directory of this host."""
        return type(self._objects) is Objects

    def offsets(self) -> np.ndarray:
        """Where each document begins, and the end of the last. int64 [documents + 1]."""
        return np.array(self._objects.read(self._index).view("<i8"))

    def read(self, start: int, count: int) -> np.ndarray:
        """Tokens [start, start + count) as int32. Shape [count]."""
        if not 0 <= start <= start + count <= self.tokens:
            raise IndexError(f"tokens {start}..{start + count} of {self.tokens}")
        result = np.empty(count, np.int32)
        done = 0
        while done < count:
            number = bisect_right(self._starts, start + done) - 1
            inside = start + done - self._starts[number]
            part = self._block(number)[inside : inside + count - done]
            result[done : done + len(part)] = part
            done += len(part)
        return result

    def bring(self, starts: np.ndarray, count: int) -> None:
        """Make sure that the tokens [start, start + count) of each of ``starts`` are at hand, several objects at a
        time. Int64 [n]."""
        if self._blocks is None and len(starts):
            first, last = (np.searchsorted(self._starts, starts + more, "right") - 1 for more in (0, count - 1))
            wanted = np.unique(np.concatenate([first, last]))
            self._objects.bring([self._entries[number] for number in wanted if number < len(self._entries)])

    def _block(self, number: int) -> np.ndarray:
        if self._blocks is not None:
            return self._blocks[number]
        return np.asarray(self._objects.read(self._entries[number])).view(self._dtype)


def check_sizes(directory: str, entries: Iterable[dict[str, Any]]) -> None:
    """DataError where an object that a manifest names is not there in its size."""
    for entry in entries:
        file = os.path.join(directory, entry["path"])
        size = os.path.getsize(file) if os.path.exists(file) else None
        if size != entry["size"]:
            raise DataError(f"{file}: {size} bytes where the manifest says {entry['size']}; remove {directory}")


class ObjectWriter:
    """Writes a stream of bytes as objects of ``limit`` bytes, hashing as it goes."""

    def __init__(self, directory: str, pattern: str, limit: int):
        self.entries: list[records.ObjectEntry] = []
        self._directory, self._pattern, self._limit = directory, pattern, limit
        self._buffer = bytearray()

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while len(self._buffer) + len(rest) >= self._limit:
            taken = self._limit - len(self._buffer)
            self._buffer += rest[:taken]
            self._object(bytes(self._buffer))
            self._buffer.clear()
            rest = rest[taken:]
        self._buffer += rest

    def close(self) -> None:
        if self._buffer:
            self._object(bytes(self._buffer))
            self._buffer.clear()

    def _object(self, data: bytes) -> None:
        name = self._pattern.format(len(self.entries))
        with open(os.path.join(self._directory, name), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        crc = records.crc32c_base64(google_crc32c.value(data))
        self.entries.append(records.ObjectEntry(name, len(data), hashlib.sha256(data).hexdigest(), crc))


def build(data_root: str, texts: Iterable[bytes], tokenizer: Tokenizer, object_bytes: int = OBJECT_BYTES) -> TokenCache:
    """Tokenize ``texts`` here and now into a cache under ``data_root``; each document ends with EOS.

    Raises DataError where there is no text at all.
    """

    def parts() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for text in texts:
            ids = np.append(tokenizer.encode(text), tokenizer.eos)
            yield ids, np.asarray([len(ids)])

    return build_from_tokens(data_root, parts(), tokenizer, object_bytes)


def build_from_tokens(
    data_root: str,
    parts: Iterable[tuple[np.ndarray, np.ndarray]],
    tokenizer: Tokenizer,
    object_bytes: int = OBJECT_BYTES,
) -> TokenCache:
    """A cache of (tokens of some documents with their EOS, tokens of each of these documents), one part after the
    other. What is built does not depend on how the documents are parted. Peak memory: one object, one part, and
    eight bytes a document. Raises DataError where there is no document."""
    with building(data_root) as directory:
        manifest = _write(directory, parts, tokenizer, object_bytes)
        return TokenCache(commit(directory, data_root, manifest))


@contextlib.contextmanager
def building(data_root: str) -> Iterator[str]:
    """A directory beside the caches to build one in. What is left in it at the end is removed."""
    os.makedirs(data_root, exist_ok=True)
    _remove_abandoned(data_root)
    process = records.this_process()
    owner = (
        base64.urlsafe_b64encode(f"{process.boot_id} {process.pid} {process.start_ticks}".encode()).decode().rstrip("=")
    )
    directory = tempfile.mkdtemp(prefix=f"{_BUILDING}{owner}.", dir=data_root)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def commit(directory: str, data_root: str, manifest: dict[str, Any]) -> str:
    """Write the manifest into a directory that was built and give it its name, the digest. Returns where it lies."""
    records.write_json(os.path.join(directory, records.MANIFEST), manifest)
    final = os.path.join(data_root, manifest["digest"])
    os.chmod(directory, 0o755)
    if not os.path.exists(os.path.join(final, records.MANIFEST)):
        with contextlib.suppress(OSError):  # another engine was first; what lies there is what the caller opens
            os.rename(directory, final)
            records.sync_directory(data_root)
    return final


def _write(
    directory: str, parts: Iterable[tuple[np.ndarray, np.ndarray]], tokenizer: Tokenizer, object_bytes: int
) -> dict[str, Any]:
    dtype = token_dtype(tokenizer)
    tokens = ObjectWriter(directory, "tokens-{:05d}.bin", object_bytes // dtype.itemsize * dtype.itemsize)
    counts: list[np.ndarray] = []
    for ids, lengths in parts:
        tokens.write(ids.astype(dtype, copy=False).tobytes())
        counts.append(lengths)
    offsets = np.cumsum(np.concatenate([[0], *counts]), dtype="<i8")
    if len(offsets) == 1:
        raise DataError("data: there is no document in the files that the urls name")
    tokens.close()
    index = ObjectWriter(directory, OFFSETS, 1 << 62)
    index.write(offsets.tobytes())
    index.close()
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "tokenizer": tokenizer.id,
        "vocab_size": tokenizer.vocab_size,
        "eos": tokenizer.eos,
        "dtype": dtype.name,
        "tokens": int(offsets[-1]),
        "documents": len(offsets) - 1,
        "objects": [dataclasses.asdict(entry) for entry in tokens.entries + index.entries],
    }
    manifest["digest"] = hashlib.sha256(records.canonical_json(manifest)).hexdigest()
    return manifest


def _remove_abandoned(data_root: str) -> None:
    """Remove what engines of this machine left that were killed while they built."""
    for name in os.listdir(data_root):
        if not name.startswith(_BUILDING):
            continue
        encoded = name[len(_BUILDING) :].partition(".")[0]
        try:
            boot_id, pid, ticks = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode().split(" ")
            owner = records.ProcessIdentity(boot_id, int(pid), int(ticks))
        except ValueError:
            continue
        if owner.boot_id == records.boot_id() and not records.is_running(owner):
            shutil.rmtree(os.path.join(data_root, name), ignore_errors=True)
