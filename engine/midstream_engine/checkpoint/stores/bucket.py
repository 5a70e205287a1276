"""Checkpoints as objects under a ``gs://`` prefix.

Arrays pass through TensorStore's ``gcs`` driver, which has the connections and the retries for many large objects at a
time. Each is created under the condition that it is not there (``ifGenerationMatch=0``), and before the commit the
bucket is asked for the crc32c of all that it holds. Until then nothing is deleted: there is no lock, and it might be a
rival's. So an object that is there with other content ends a save, and of two savers of one name one commits a whole
checkpoint, or none does.
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

from midstream_engine.checkpoint.errors import CheckpointCorrupt, CheckpointError
from midstream_engine.checkpoint.saving.host_buffers import BLOCK
from midstream_engine.checkpoint.stores import gcs_client
from midstream_engine.records import MANIFEST, crc32c_base64
from midstream_engine.requester_pays import tensorstore_context, user_project

ABSENT = b"\x02"  # TensorStore's generation of what is not there
DELETERS = 16  # threads
RETRIES = {"max_retries": 12, "initial_delay": "250ms", "max_delay": "16s"}


class Bucket:
    """The objects of one checkpoint."""

    def __init__(self, url: str):
        self._bucket, self._prefix = gcs_client.split(url)
        self.where = url.rstrip("/")
        self._written: dict[str, tuple[int, str]] = {}  # path -> size, crc32c
        self._sizes: dict[str, int] | None = None
        self._lock = threading.Lock()

    def prepare(self, needed: int) -> None:
        """A bucket has room for everything."""
        try:  # by a listing: who may write objects need not be allowed to look at the bucket itself
            with gcs_client.errors(self.where):
                found = gcs_client.client().list_blobs(
                    gcs_client.bucket(self.where), prefix=self._prefix, max_results=1
                )
                for _ in found:
                    break
        except FileNotFoundError:
            raise CheckpointError(
                f"{self.where}: there is no bucket {self._bucket}; create it, or mend the name"
            ) from None

    def write(self, path: str, blocks: Iterable[memoryview]) -> None:
        gathered = io.BytesIO()
        for block in blocks:  # one at a time: the next one may lie in the same memory
            gathered.write(block)
        data = gathered.getvalue()
        crc = crc32c_base64(google_crc32c.value(data))
        try:
            stamp = self._kvstore.write(path, data, if_equal=ABSENT).result()
        except ValueError as error:
            raise self._failed(path, "written", error) from error
        # Where it was there: somebody else's, or our own of a request whose answer was lost, or of a try that was cut
        # off. Its crc32c tells nothing: that of every sound cell is the same (`objects.CRC32C_RESIDUE`).
        if not stamp.generation and self._value(path) != data:
            raise CheckpointError(
                f"{self.where}: object {path} is there already with other content: another process saves under this "
                "name, or did (midstream --clean names and removes what a cut-off save left)"
            )
        with self._lock:
            self._written[path] = len(data), crc

    def sync(self) -> None:
        """What a bucket has acknowledged lasts. That it is what was sent is asked here: crc32c and size of each."""
        found = gcs_client.entries(self.where)
        for path, (size, crc) in sorted(self._written.items()):
            there = found.get(path)
            if there is None:
                raise CheckpointError(f"{self.where}: object {path} is gone again: another process removed it")
            if (there.size, there.crc32c) != (size, crc):
                raise CheckpointCorrupt(
                    f"{self.where}: object {path}: the bucket has {there.size} bytes with crc32c {there.crc32c}, "
                    f"written were {size} with {crc}"
                )

    def close(self) -> None:
        """Connections are the process's."""

    def commit(self, path: str, data: bytes) -> None:
        gcs_client.put(self.where, path, data, 0)

    def abandon(self) -> None:
        """Nothing: a rival may have taken over what was written. ``midstream --clean`` removes it."""

    def tidy(self, listed: Collection[str]) -> None:
        beside = {
            path: found for path, found in gcs_client.entries(self.where).items() if path not in {*listed, MANIFEST}
        }
        with ThreadPoolExecutor(DELETERS, thread_name_prefix="delete") as pool:
            for future in [
                pool.submit(gcs_client.delete, self.where, path, beside[path].generation) for path in beside
            ]:
                future.result()

    def exists(self, path: str) -> bool:
        with gcs_client.errors(f"{self.where}/{path}"):
            return gcs_client.blob(self.where, path).exists()

    def size(self, path: str) -> int:
        """One listing answers for all objects: what is read does not change any more."""
        with self._lock:
            if self._sizes is None:
                self._sizes = {name: found.size for name, found in gcs_client.entries(self.where).items()}
        if path not in self._sizes:
            raise FileNotFoundError(f"{self.where}/{path}")
        return self._sizes[path]

    def expect(self, path: str) -> None:
        """A bucket serves many requests at a time: threads are enough."""

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
        return gcs_client.get(self.where, path)[0]

    def names(self) -> list[str]:
        return list(gcs_client.entries(self.where))

    def clear(self) -> None:
        names = self.names()
        if MANIFEST in names:
            gcs_client.delete(self.where, MANIFEST)
        with ThreadPoolExecutor(DELETERS, thread_name_prefix="delete") as pool:
            for future in [pool.submit(gcs_client.delete, self.where, name) for name in names if name != MANIFEST]:
                future.result()

    def _value(self, path: str) -> bytes | None:
        """All of an object; None where there is none."""
        try:
            found = self._kvstore.read(path).result()
        except ValueError as error:
            raise self._failed(path, "read", error) from error
        return found.value if found.state == "value" else None

    @property
    def _kvstore(self) -> Any:
        return _kvstore(self.where, user_project(self.where), os.environ.get("TENSORSTORE_GCS_HTTP_URL", ""))

    def _failed(self, path: str, what: str, error: Exception) -> CheckpointError:
        line = str(error).partition(" [")[0]  # what follows is the whole HTTP answer
        return CheckpointError(f"{self.where}: object {path} cannot be {what}: {line}")


@functools.lru_cache(64)
def _kvstore(url: str, user_project: str | None, endpoint: str) -> Any:
    """``user_project`` and ``endpoint`` are read from the environment where they are used; here they tell one store
    from
    another."""
    import tensorstore

    bucket, prefix = gcs_client.split(url)
    context = tensorstore.Context({"gcs_request_retries": RETRIES, **tensorstore_context(url)})
    spec = {"driver": "gcs", "bucket": bucket, "path": f"{prefix}/" if prefix else ""}
    return tensorstore.KvStore.open(spec, context=context).result()
