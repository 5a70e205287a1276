"""The objects of a checkpoint under a ``gs://`` prefix.

TensorStore's ``gcs`` driver transfers the arrays: it has connections and retries for many large objects at a time. Each
object is created under the condition that it does not exist (``ifGenerationMatch=0``), and before the commit the crc32c
of every object in the bucket is compared. Until the commit nothing is deleted: there is no lock, and an object might
belong to another process that saves under the same name. Therefore an existing object with other content ends a save,
and of two processes that save under one name at most one commits a complete checkpoint.
"""

from __future__ import annotations

import functools
import io
import os
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import google_crc32c
import numpy as np

from midstream_engine.checkpoint.errors import CheckpointCorruptError, CheckpointError
from midstream_engine.checkpoint.host_buffers import BLOCK
from midstream_engine.checkpoint.stores.bucket_client import bucket_client
from midstream_engine.records import MANIFEST, crc32c_base64
from midstream_engine.requester_pays import tensorstore_context, user_project

ABSENT = b"\x02"  # TensorStore's generation of a missing object
DELETERS = 16  # threads
RETRIES = {"max_retries": 12, "initial_delay": "250ms", "max_delay": "16s"}


class GcsObjects:
    """The objects of one checkpoint; see :class:`ObjectStore`."""

    def __init__(self, url: str) -> None:
        self._bucket, self._prefix = bucket_client.split(url)
        self.where = url.rstrip("/")
        self._written: dict[str, tuple[int, str]] = {}  # path -> size, crc32c
        self._sizes: dict[str, int] | None = None
        self._lock = threading.Lock()

    def prepare(self, needed: int) -> None:
        """Check that the bucket exists; a bucket is never full."""
        del needed
        try:  # by a listing: an account that may write objects need not have storage.buckets.get
            with bucket_client.errors(self.where):
                found = bucket_client.storage().list_blobs(
                    bucket_client.bucket(self.where), prefix=self._prefix, max_results=1
                )
                for _ in found:
                    break
        except FileNotFoundError:
            raise CheckpointError(
                f"{self.where}: there is no bucket {self._bucket} (hint: create it, or correct the name)"
            ) from None

    def write(self, path: str, blocks: Iterable[memoryview]) -> None:
        gathered = io.BytesIO()
        for block in blocks:  # copied one at a time: the next one may use the same memory
            gathered.write(block)
        data = gathered.getvalue()
        crc = crc32c_base64(google_crc32c.value(data))
        try:
            stamp = self._kvstore.write(path, data, if_equal=ABSENT).result()
        except ValueError as error:
            raise self._failed(path, "written", error) from error
        # The object exists: from another process, from our own request whose response was lost, or from an interrupted
        # save. Its crc32c cannot decide: every sound chunk has the same one (`hashed_objects.CRC32C_RESIDUE`).
        if not stamp.generation and self._value(path) != data:
            raise CheckpointError(
                f"{self.where}: object {path} exists with other content: another process saves, or saved, under this "
                "name (hint: midstream --clean lists and removes what an interrupted save left)"
            )
        with self._lock:
            self._written[path] = len(data), crc

    def sync(self) -> None:
        """Compare crc32c and size of every object with what was sent; what a bucket acknowledged is durable."""
        found = bucket_client.entries(self.where)
        for path, (size, crc) in sorted(self._written.items()):
            stored = found.get(path)
            if stored is None:
                raise CheckpointError(f"{self.where}: object {path} is missing: another process removed it")
            if (stored.size, stored.crc32c) != (size, crc):
                raise CheckpointCorruptError(
                    f"{self.where}: object {path}: the bucket has {stored.size} bytes with crc32c {stored.crc32c}, "
                    f"written were {size} with {crc}"
                )

    def close(self) -> None:
        """Do nothing: connections belong to the process."""

    def commit(self, path: str, data: bytes) -> None:
        bucket_client.put(self.where, path, data, 0)

    def abandon(self) -> None:
        """Do nothing: another process may use what was written. ``midstream --clean`` removes it."""

    def tidy(self, listed: Collection[str]) -> None:
        others = {
            path: found for path, found in bucket_client.entries(self.where).items() if path not in {*listed, MANIFEST}
        }
        with ThreadPoolExecutor(DELETERS, thread_name_prefix="delete") as pool:
            for future in [
                pool.submit(bucket_client.delete, self.where, path, others[path].generation) for path in others
            ]:
                future.result()

    def exists(self, path: str) -> bool:
        with bucket_client.errors(f"{self.where}/{path}"):
            return bucket_client.blob(self.where, path).exists()

    def size(self, path: str) -> int:
        """Return the object's bytes. One listing serves all objects: they no longer change."""
        with self._lock:
            if self._sizes is None:
                self._sizes = {name: found.size for name, found in bucket_client.entries(self.where).items()}
        if path not in self._sizes:
            raise FileNotFoundError(f"{self.where}/{path}")
        return self._sizes[path]

    def expect(self, path: str) -> None:
        """Do nothing: a bucket serves many requests at a time."""

    def read(self, path: str, into: Iterable[memoryview], each: Callable[[memoryview], object]) -> int:
        value = self._value(path)
        if value is None:
            raise FileNotFoundError(f"{self.where}/{path}")
        data, total = memoryview(value), 0
        for buffer in into:
            piece = data[total : total + len(buffer)]
            np.copyto(np.frombuffer(buffer[: len(piece)], np.uint8), np.frombuffer(piece, np.uint8))
            for start in range(0, len(piece), BLOCK):
                each(piece[start : start + BLOCK])
            total += len(piece)
            if len(piece) < len(buffer):
                break
        return total

    def get(self, path: str) -> bytes:
        return bucket_client.get(self.where, path)[0]

    def names(self) -> list[str]:
        return list(bucket_client.entries(self.where))

    def clear(self) -> None:
        names = self.names()
        if MANIFEST in names:
            bucket_client.delete(self.where, MANIFEST)
        with ThreadPoolExecutor(DELETERS, thread_name_prefix="delete") as pool:
            for future in [pool.submit(bucket_client.delete, self.where, name) for name in names if name != MANIFEST]:
                future.result()

    def _value(self, path: str) -> bytes | None:
        """Return an object's bytes, None if there is none."""
        try:
            found = self._kvstore.read(path).result()
        except ValueError as error:
            raise self._failed(path, "read", error) from error
        return found.value if found.state == "value" else None

    @property
    def _kvstore(self) -> Any:
        return _kvstore(self.where, user_project(self.where), os.environ.get("TENSORSTORE_GCS_HTTP_URL", ""))

    def _failed(self, path: str, what: str, error: Exception) -> CheckpointError:
        line = str(error).partition(" [")[0]  # the rest is the complete HTTP response
        return CheckpointError(f"{self.where}: object {path} cannot be {what}: {line}")


@functools.lru_cache(64)
def _kvstore(url: str, user_project: str | None, endpoint: str) -> Any:
    """Return TensorStore's key-value store of a prefix.

    ``user_project`` and ``endpoint`` are part of the cache's key; TensorStore reads them from the environment.
    """
    del user_project, endpoint
    import tensorstore  # loads slowly, and only a run with a bucket needs it

    bucket, prefix = bucket_client.split(url)
    context = tensorstore.Context({"gcs_request_retries": RETRIES, **tensorstore_context(url)})
    spec = {"driver": "gcs", "bucket": bucket, "path": f"{prefix}/" if prefix else ""}
    return tensorstore.KvStore.open(spec, context=context).result()
