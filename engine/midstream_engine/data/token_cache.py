"""The token cache: documents as one sequence of token ids in objects.

Objects have a fixed size and are addressed by content.

``<root>/data/<digest>/`` has ``tokens-00000.bin`` ... (each full but the last), ``offsets.bin`` (int64: where each
document begins, and the end) and ``manifest.json``. The cache is built in a temporary directory and renamed, so it is
complete or absent. Two engines that build the same content use the same name, and the second keeps what the first
built.
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

from midstream_core import records
from midstream_core.json_types import JsonValue, list_or_empty, object_or_empty
from midstream_engine.data.data_manifest import DataManifest
from midstream_engine.data.errors import DataError
from midstream_engine.data.token_ids import first_unknown, unknown_id
from midstream_engine.data.tokenize.tokenizer import Tokenizer
from midstream_engine.data.tokenize.units import token_dtype

FORMAT = "midstream-tokens"
VERSION = 1
OBJECT_BYTES = 64 << 20
OFFSETS = "offsets.bin"
_BUILDING = ".building-"


class CacheObjects:
    """The objects of one cache in a directory.

    ``remote_cache`` has those behind a URL.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def manifest(self) -> DataManifest:
        """Return the manifest.

        Raises:
            DataError: There is none, or an object is missing or has another size.
        """
        path = os.path.join(self.directory, records.MANIFEST)
        try:
            manifest = object_or_empty(records.read_json(path))
        except (FileNotFoundError, records.RecordError) as error:
            raise DataError(f"{self.directory} is no token cache: {error}") from None
        check_sizes(self.directory, map(object_or_empty, list_or_empty(manifest.get("objects"))))
        return manifest

    def read(self, entry: records.ObjectEntry) -> np.ndarray:
        """Return the content of an object, mapped. uint8 [size]."""
        # A plain array: slices of a memmap cost microseconds each.
        return np.asarray(np.memmap(os.path.join(self.directory, entry.path), np.uint8, "r"))

    def prefetch(self, entries: list[records.ObjectEntry]) -> None:
        """Do nothing: local objects need no prefetch."""


class TokenCache:
    """A sequence of tokens, mapped. ``dtype`` is uint16 or uint32, little-endian."""

    def __init__(self, objects: str | CacheObjects) -> None:
        """Open a cache by its directory or its objects.

        Raises:
            DataError: The cache is not complete.
        """
        self._objects = CacheObjects(objects) if isinstance(objects, str) else objects
        self.directory = self._objects.directory
        manifest = self._objects.manifest()
        if manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
            raise DataError(f"{self.directory}/{records.MANIFEST}: not a token cache of version {VERSION}")
        self.manifest: DataManifest = manifest
        self.digest: str = manifest["digest"]
        self.tokenizer: str = manifest["tokenizer"]
        self.eos: int = manifest["eos"]
        self.vocab_size: int = manifest["vocab_size"]
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
        """Whether it is in a directory of this host."""
        return type(self._objects) is CacheObjects

    def offsets(self) -> np.ndarray:
        """Return where each document begins, and the end of the last.

        int64 [documents + 1].
        """
        return np.array(self._objects.read(self._index).view("<i8"))

    def read(self, start: int, count: int) -> np.ndarray:
        """Return tokens [start, start + count) as int32. Shape [count].

        Raises:
            IndexError: The cache does not have all of them.
        """
        if not 0 <= start <= start + count <= self.tokens:
            raise IndexError(f"tokens {start}..{start + count} of {self.tokens}")
        result = np.empty(count, np.int32)
        done = 0
        while done < count:
            number = bisect_right(self._starts, start + done) - 1
            inside = start + done - self._starts[number]
            tokens = self._block(number)[inside : inside + count - done]
            result[done : done + len(tokens)] = tokens
            done += len(tokens)
        return result

    def check_ids(self) -> None:
        """Read all tokens of a local cache, and check that each is in the vocabulary.

        Raises:
            DataError: One is not; its document is named.
        """
        for start, block in zip(self._starts, self._blocks or (), strict=False):
            if (at := first_unknown(block, self.vocab_size)) is not None:
                document = int(np.searchsorted(self.offsets(), start + at, "right")) - 1
                raise unknown_id(f"{self.directory}: document {document}", int(block[at]), self.vocab_size)

    def prefetch(self, starts: np.ndarray, count: int) -> None:
        """Fetch the tokens [start, start + count) of each of ``starts``.

        ``starts`` is int64 [n]. Several objects are fetched at a time.
        """
        if self._blocks is None and len(starts):
            first, last = (np.searchsorted(self._starts, starts + more, "right") - 1 for more in (0, count - 1))
            numbers = np.unique(np.concatenate([first, last]))
            self._objects.prefetch([self._entries[number] for number in numbers if number < len(self._entries)])

    def _block(self, number: int) -> np.ndarray:
        if self._blocks is not None:
            return self._blocks[number]
        return np.asarray(self._objects.read(self._entries[number])).view(self._dtype)


def check_sizes(directory: str, entries: Iterable[dict[str, Any]]) -> None:
    """Check that every object of a manifest exists and has its size.

    Raises:
        DataError: One does not.
    """
    for entry in entries:
        file = os.path.join(directory, entry["path"])
        size = os.path.getsize(file) if os.path.exists(file) else None
        if size != entry["size"]:
            raise DataError(f"{file}: {size} bytes, in the manifest {entry['size']} (hint: remove {directory})")


class ObjectWriter:
    """Writer of a byte stream as objects of ``limit`` bytes, with their hashes."""

    def __init__(self, directory: str, pattern: str, limit: int) -> None:
        self.entries: list[records.ObjectEntry] = []
        self._directory, self._pattern, self._limit = directory, pattern, limit
        self._buffer = bytearray()

    def write(self, data: bytes) -> None:
        """Append bytes to the stream."""
        rest = memoryview(data)
        while len(self._buffer) + len(rest) >= self._limit:
            taken = self._limit - len(self._buffer)
            self._buffer += rest[:taken]
            self._object(bytes(self._buffer))
            self._buffer.clear()
            rest = rest[taken:]
        self._buffer += rest

    def close(self) -> None:
        """Write the last object."""
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


def build_from_tokens(
    data_root: str,
    parts: Iterable[tuple[np.ndarray, np.ndarray]],
    tokenizer: Tokenizer,
    object_bytes: int = OBJECT_BYTES,
) -> TokenCache:
    """Build a cache of parts.

    A part is (tokens of some documents with their EOS, number of tokens of each document).

    The result does not depend on how documents are divided into parts. Peak memory: one object, one part, and eight
    bytes per document.

    Raises:
        DataError: There is no document, or an id is beyond the tokenizer's vocabulary.
    """
    with building(data_root) as directory:
        manifest = _write(directory, parts, tokenizer, object_bytes)
        return TokenCache(commit(directory, data_root, manifest))


@contextlib.contextmanager
def building(data_root: str) -> Iterator[str]:
    """Context manager: a temporary directory to build a cache in, removed at the end."""
    os.makedirs(data_root, exist_ok=True)
    _remove_abandoned(data_root)
    process = records.this_process()
    owner = (
        base64.urlsafe_b64encode(f"{process.boot_id} {process.pid} {process.start_ticks} {process.namespace}".encode())
        .decode()
        .rstrip("=")
    )
    directory = tempfile.mkdtemp(prefix=f"{_BUILDING}{owner}.", dir=data_root)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def commit(directory: str, data_root: str, manifest: DataManifest) -> str:
    """Write a built directory's manifest, rename it to its digest; return the path."""
    records.write_json(os.path.join(directory, records.MANIFEST), manifest)
    final = os.path.join(data_root, manifest["digest"])
    os.chmod(directory, 0o755)
    if not os.path.exists(os.path.join(final, records.MANIFEST)):
        with contextlib.suppress(OSError):  # another engine was first; the caller opens its cache
            os.rename(directory, final)
            records.sync_directory(data_root)
    return final


def _write(
    directory: str, parts: Iterable[tuple[np.ndarray, np.ndarray]], tokenizer: Tokenizer, object_bytes: int
) -> dict[str, JsonValue]:
    dtype = token_dtype(tokenizer)
    tokens = ObjectWriter(directory, "tokens-{:05d}.bin", object_bytes // dtype.itemsize * dtype.itemsize)
    counts: list[np.ndarray] = []
    documents = 0
    for ids, lengths in parts:
        if (at := first_unknown(ids, tokenizer.vocab_size)) is not None:
            document = documents + int(np.searchsorted(np.cumsum(lengths), at, "right"))
            raise unknown_id(f"document {document}", int(ids[at]), tokenizer.vocab_size)
        documents += len(lengths)
        tokens.write(ids.astype(dtype, copy=False).tobytes())
        counts.append(lengths)
    offsets = np.cumsum(np.concatenate([[0], *counts]), dtype="<i8")
    if len(offsets) == 1:
        raise DataError("data: the files of the URLs have no document")
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
    """Remove the temporary directories of engines of this machine that were killed."""
    for name in os.listdir(data_root):
        if not name.startswith(_BUILDING):
            continue
        encoded = name[len(_BUILDING) :].partition(".")[0]
        try:
            words = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode().split(" ")
            boot_id, pid, ticks, *namespace = words
            owner = records.ProcessIdentity(boot_id, int(pid), int(ticks), namespace="".join(namespace))
        except ValueError:
            continue
        if records.has_ended(owner, 0.0):  # without a machine, only one of this boot
            shutil.rmtree(os.path.join(data_root, name), ignore_errors=True)
