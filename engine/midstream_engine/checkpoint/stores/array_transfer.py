"""Transfer of a checkpoint's objects to and from a bucket.

TensorStore's ``gcs`` driver transfers objects of Google's: it has connections and retries for many large objects at a
time. The bucket's client transfers objects of S3; its conditional writes are tried on each service.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Protocol

import google_crc32c

from midstream_core.attempt.errors import CheckpointError
from midstream_core.object_store.access import engine_access
from midstream_core.object_store.bucket_client import ABSENT, StoredObject, hashed
from midstream_core.object_store.errors import ObjectExistsError
from midstream_core.object_store.urls import GCS, split_url
from midstream_core.records import crc32c_base64
from midstream_engine.checkpoint.stores.run_bucket import RunBucket

NO_GENERATION = b"\x02"  # TensorStore's generation of a missing object
RETRIES = {"max_retries": 12, "initial_delay": "250ms", "max_delay": "16s"}


class ArrayTransfer(Protocol):
    """Writes and reads the objects below a URL. Raises CheckpointError."""

    def create(self, path: str, data: bytes) -> StoredObject | None:
        """Create an object; None if another one exists."""
        ...

    def value(self, path: str) -> bytes | None:
        """Return an object's bytes, None if there is none."""
        ...


def array_transfer(url: str) -> ArrayTransfer:
    """Return the transfer for a bucket's kind."""
    return TensorStoreTransfer(url) if url.startswith(GCS) else ClientTransfer(url)


class ClientTransfer:
    """Transfer by the bucket's own client; see :class:`ArrayTransfer`."""

    def __init__(self, url: str) -> None:
        self._bucket = RunBucket(url)

    def create(self, path: str, data: bytes) -> StoredObject | None:
        try:
            return self._bucket.client.put(path, data, hashed(data), replaces=ABSENT)
        except ObjectExistsError:
            return None

    def value(self, path: str) -> bytes | None:
        try:
            return self._bucket.client.get(path)[0]
        except FileNotFoundError:
            return None


class TensorStoreTransfer:
    """Transfer by TensorStore; see :class:`ArrayTransfer`."""

    def __init__(self, url: str) -> None:
        self._url = url

    def create(self, path: str, data: bytes) -> StoredObject | None:
        try:
            stamp: Any = self._kvstore.write(path, data, if_equal=NO_GENERATION).result()
        except ValueError as error:
            raise self._failed(path, "written", error) from error
        # No generation: the object exists, from another process, from our own request whose response was lost, or from
        # an interrupted save. Its crc32c cannot decide: every sound chunk has the same one.
        if not stamp.generation and self.value(path) != data:
            return None
        return StoredObject(path, len(data), "", 0.0, crc32c_base64(google_crc32c.value(data)))  # pyright: ignore

    def value(self, path: str) -> bytes | None:
        try:
            result: Any = self._kvstore.read(path).result()
        except ValueError as error:
            raise self._failed(path, "read", error) from error
        return result.value if result.state == "value" else None

    @property
    def _kvstore(self) -> Any:
        project = engine_access(self._url).user_project
        return _kvstore(self._url, project, os.environ.get("TENSORSTORE_GCS_HTTP_URL", ""))

    def _failed(self, path: str, what: str, error: Exception) -> CheckpointError:
        line = str(error).partition(" [")[0]  # the rest is the complete HTTP response
        return CheckpointError(f"{self._url}: object {path} cannot be {what}: {line}")


@functools.lru_cache(64)
def _kvstore(url: str, user_project: str, endpoint: str) -> Any:
    """Return TensorStore's key-value store of a prefix.

    ``endpoint`` is part of the cache's key; TensorStore reads it from the environment.
    """
    del endpoint
    import tensorstore  # loads slowly, and only a run with a bucket needs it

    _, bucket, prefix = split_url(url)
    billed = {"gcs_user_project": {"project_id": user_project}} if user_project else {}
    context = tensorstore.Context({"gcs_request_retries": RETRIES, **billed})
    spec = {"driver": "gcs", "bucket": bucket, "path": f"{prefix}/" if prefix else ""}
    return tensorstore.KvStore.open(spec, context=context).result()
