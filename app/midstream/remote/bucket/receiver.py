"""Receiver of a stream that creates objects in a bucket, by concurrent requests."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Optional

from midstream.remote.bucket.access_problem import report_problem
from midstream.remote.bucket.session import part_path
from midstream.remote.copy.stream import receiver
from midstream.remote.copy.stream.frames import Bytes
from midstream.remote.copy.target.staging import part_name
from midstream.remote.declarations import program
from midstream.remote.files.copy_items import CopyItem
from midstream.remote.files.object_files import INCOMING, emit, inside
from midstream_engine.object_store.access import Access
from midstream_engine.object_store.bucket_client import AT_ONCE, CHUNK, BucketClient, StoredObject
from midstream_engine.object_store.errors import StoreError
from midstream_engine.object_store.open_bucket import open_bucket

# Bytes up to which an object is written in one request: a checkpoint's chunk of 16 MiB with its checksum.
ONE_REQUEST = 2 * CHUNK + (64 << 10)


class _Arriving(receiver.Arriving):
    """An item's bytes since the last chunk and, if it is a large object, its parts."""

    def __init__(self, item: CopyItem) -> None:
        super().__init__(item)
        inside("", item["path"])
        self.large = self.complete and item["size"] > ONE_REQUEST
        self.limit = CHUNK if self.large else item["length"]  # bytes of a request
        self.chunk = bytearray()
        self.parts: Dict[int, StoredObject] = {}  # by offset
        self.sent = False  # all of its parts are being uploaded or are there
        self.uploading = 0  # parts


class _Receiver(receiver.Receiver):
    def __init__(self, bucket: BucketClient, stream: Bytes, kind: str, key: str) -> None:
        super().__init__(stream, kind, key)
        self.bucket = bucket
        self.pool = ThreadPoolExecutor(AT_ONCE)
        self.room = threading.Semaphore(AT_ONCE + 4)  # chunks of memory
        self.lock = threading.Lock()
        self.error: Optional[BaseException] = None

    def begin(self, item: CopyItem) -> _Arriving:
        return _Arriving(item)

    def most(self, arriving: _Arriving) -> int:
        return arriving.limit - len(arriving.chunk)

    def take(self, arriving: _Arriving, data: memoryview) -> None:
        arriving.digest.update(data)
        arriving.chunk += data
        arriving.received += len(data)
        if arriving.large and (len(arriving.chunk) == CHUNK or arriving.received == arriving.item["size"]):
            self._part(arriving)

    def _part(self, arriving: _Arriving) -> None:
        """Upload a chunk of a large object; the last after the object's hash is verified."""
        chunk, arriving.chunk = arriving.chunk, bytearray()
        last = arriving.received == arriving.item["size"]
        if last:
            arriving.check()
        with self.lock:
            arriving.uploading += 1
            arriving.sent = last
        self._submit(1, self._put_part, arriving, arriving.received - len(chunk), chunk)

    def arrived(self, arriving: _Arriving) -> None:
        if arriving.large:
            return
        if arriving.complete:
            arriving.check()
        work = self._put_object if arriving.complete else self._put_range
        self._submit(max(1, -(-len(arriving.chunk) // CHUNK)), work, arriving, arriving.digest.hexdigest())

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def finish(self) -> None:
        self.pool.shutdown(wait=True)
        self.raise_error()

    def close(self) -> None:
        self.pool.shutdown(wait=True)

    # ------------------------------------------------------------------------------------------------- requests

    def _submit(self, chunks: int, work: Callable[..., None], *arguments: Any) -> None:
        for _ in range(chunks):
            self.room.acquire()

        def guarded() -> None:
            try:
                if self.error is None:
                    work(*arguments)
            except BaseException as error:  # noqa: BLE001  raised where the stream is read
                self.error = error
            finally:
                self.room.release(chunks)

        self.pool.submit(guarded)

    def _put_object(self, arriving: _Arriving, sha256: str) -> None:
        self.bucket.put(arriving.item["path"], arriving.chunk, sha256)
        self.reports.landed(len(arriving.chunk), [arriving.item["path"]])

    def _put_range(self, arriving: _Arriving, sha256: str) -> None:
        item = arriving.item
        self.bucket.put(part_path(item, item["offset"], item["length"]), arriving.chunk, sha256, part=True)
        self.reports.landed(item["length"], ranges=[[item["path"], item["offset"], item["length"]]])

    def _put_part(self, arriving: _Arriving, offset: int, chunk: bytearray) -> None:
        item = arriving.item
        path = part_path(item, offset, len(chunk))
        part = self.bucket.put(path, chunk, hashlib.sha256(chunk).hexdigest(), part=True)
        self.reports.landed(len(chunk))
        with self.lock:
            arriving.parts[offset] = part
            arriving.uploading -= 1
            complete = arriving.sent and not arriving.uploading
        if complete:
            parts = [each for _, each in sorted(arriving.parts.items())]
            temporary = "{}/{}/joined".format(INCOMING, part_name(item))
            self.bucket.join(item["path"], parts, item["size"], item["sha256"], temporary)
            self.reports.landed(objects=[item["path"]])


@program
def receive(
    directory: str,
    generation: str,
    kind: str,
    key: str,
    access: Dict[str, Any],
    peer: Optional[Dict[str, Any]] = None,
) -> int:
    """Receive a stream into a bucket.

    A program. Events are those of ``copy.stream.disk_receiver.receive``.

    Args:
        directory: ``SCHEME://bucket/prefix``.
        generation: Name of the staging directory of this copy; not used here.
        kind: What the copy may contain (`allowlist`).
        key: Key that the items were requested with (`requested_items`), in hex.
        access: Fields of `Access`.
        peer: The TLS peer that sends the stream; None: stdin.
    """
    try:
        return receiver.receive(
            peer, lambda stream: _Receiver(open_bucket(directory, Access(**access)), stream, kind, key).run()
        )
    except (StoreError, OSError, ValueError) as error:
        report_problem(error, emit)
        return 1
