"""The objects of a checkpoint under a prefix of a bucket.

Each object is created under the condition that it does not exist, and before the commit every object in the bucket is
compared with what was sent. Until the commit nothing is deleted: there is no lock, and an object might belong to
another process that saves under the same name. Therefore an existing object with other content ends a save, and of two
processes that save under one name at most one commits a complete checkpoint. A service without conditional writes
cannot promise that for processes on two hosts; those of one host have the run's lock.
"""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

import google_crc32c
import numpy as np

from midstream_core.attempt.errors import CheckpointError
from midstream_core.object_store.bucket_client import ABSENT, READS, StoredObject
from midstream_core.object_store.errors import BucketMissingError, StoreError
from midstream_core.object_store.urls import split_url
from midstream_core.records import MANIFEST, crc32c_base64
from midstream_engine.checkpoint.errors import CheckpointCorruptError
from midstream_engine.checkpoint.host_buffers import BLOCK
from midstream_engine.checkpoint.stores.array_transfer import array_transfer
from midstream_engine.checkpoint.stores.run_bucket import RunBucket, checkpoint_errors

log = logging.getLogger(__name__)
DELETERS = 16  # threads

_warned: set[str] = set()  # URLs of services without conditional writes


class BucketObjects:
    """The objects of one checkpoint; see :class:`ObjectStore`."""

    def __init__(self, url: str) -> None:
        self.where = url.rstrip("/")
        try:
            split_url(self.where)
        except StoreError as error:
            raise CheckpointError(error.with_hint()) from None
        self._bucket, self._arrays = RunBucket(self.where), array_transfer(self.where)
        self._written: dict[str, StoredObject] = {}
        self._listed: dict[str, StoredObject] | None = None
        self._lock = threading.Lock()

    def prepare(self, needed: int) -> None:
        """Check that the bucket exists; a bucket is never full."""
        del needed
        try:  # by a listing: an account that may write objects need not have storage.buckets.get
            with checkpoint_errors():
                client = self._bucket.client
                client.probe()
                conditional = client.has_conditions()
        except CheckpointError as error:
            if isinstance(error.__cause__, BucketMissingError):
                raise CheckpointError(f"{self.where}: {error}") from None
            raise
        if not conditional and client.bucket not in _warned:
            _warned.add(client.bucket)
            log.warning(
                "%s: the service has no conditional writes: two hosts that save under one name at the same time are "
                "not kept apart there; processes of this host are, by the run's lock", self.where,
            )  # fmt: skip

    def write(self, path: str, blocks: Iterable[memoryview]) -> None:
        gathered = io.BytesIO()
        for block in blocks:  # copied one at a time: the next one may use the same memory
            gathered.write(block)
        with checkpoint_errors():
            made = self._arrays.create(path, gathered.getvalue())
        if made is None:
            raise CheckpointError(
                f"{self.where}: object {path} exists with other content: another process saves, or saved, under this "
                "name (hint: midstream --clean lists and removes what an interrupted save left)"
            )
        with self._lock:
            self._written[path] = made

    def sync(self) -> None:
        """Compare every object with what was sent; what a bucket acknowledged is durable."""
        entries = self._bucket.entries()
        for path, written in sorted(self._written.items()):
            stored = entries.get(path) or self._bucket.look(path)  # a listing may be behind
            if stored is None:
                raise CheckpointError(f"{self.where}: object {path} is missing: another process removed it")
            same = [stored.size == written.size]
            same += [
                getattr(stored, field) == value for field in ("crc32c", "version") if (value := getattr(written, field))
            ]
            if not all(same):
                raise CheckpointCorruptError(
                    f"{self.where}: object {path}: the bucket has {_text(stored)}, written were {_text(written)}"
                )

    def close(self) -> None:
        """Do nothing: connections belong to the process."""

    def commit(self, path: str, data: bytes) -> None:
        self._bucket.put(path, data, ABSENT)

    def abandon(self) -> None:
        """Do nothing: another process may use what was written.

        ``midstream --clean`` removes it.
        """

    def tidy(self, listed: Collection[str]) -> None:
        self._delete([entry for path, entry in self._bucket.entries().items() if path not in {*listed, MANIFEST}])

    def exists(self, path: str) -> bool:
        return self._bucket.look(path) is not None

    def size(self, path: str) -> int:
        """Return the object's bytes.

        One listing serves all objects: they no longer change.
        """
        with self._lock:
            if self._listed is None:
                self._listed = self._bucket.entries()
        entry = self._listed.get(path) or self._bucket.look(path)
        if entry is None:
            raise FileNotFoundError(f"{self.where}/{path}")
        return entry.size

    def expect(self, path: str) -> None:
        """Do nothing: a bucket serves many requests at a time."""

    def read(
        self, path: str, into: Iterable[memoryview], take: Callable[[memoryview], object], crc32c: str = ""
    ) -> int:
        data, total = memoryview(self._sound(path, crc32c)), 0
        for buffer in into:
            piece = data[total : total + len(buffer)]
            np.copyto(np.frombuffer(buffer[: len(piece)], np.uint8), np.frombuffer(piece, np.uint8))
            for start in range(0, len(piece), BLOCK):
                take(piece[start : start + BLOCK])
            total += len(piece)
            if len(piece) < len(buffer):
                break
        return total

    def _sound(self, path: str, crc32c: str) -> bytes:
        """Return an object's bytes; request them again if they have another crc32c."""
        value = b""
        for _ in range(READS):
            with checkpoint_errors():
                stored_value = self._arrays.value(path)
            if stored_value is None:
                raise FileNotFoundError(f"{self.where}/{path}")
            value = stored_value
            if not crc32c or crc32c_base64(google_crc32c.value(value)) == crc32c:  # pyright: ignore
                break
        return value

    def get(self, path: str) -> bytes:
        return self._bucket.get(path)[0]

    def names(self) -> list[str]:
        return list(self._bucket.entries())

    def clear(self) -> None:
        entries = self._bucket.entries()
        if MANIFEST in entries:
            self._bucket.delete(MANIFEST)
        self._delete([entry for path, entry in entries.items() if path != MANIFEST])

    def _delete(self, objects: list[StoredObject]) -> None:
        with ThreadPoolExecutor(DELETERS, thread_name_prefix="delete") as pool:
            for future in [pool.submit(self._bucket.delete, entry.path, entry.version) for entry in objects]:
                future.result()


def _text(entry: StoredObject) -> str:
    return f"{entry.size} bytes with " + (f"crc32c {entry.crc32c}" if entry.crc32c else f"ETag {entry.version}")
