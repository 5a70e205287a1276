"""Writes of a copy into a bucket, by concurrent requests.

Objects up to `ONE_REQUEST` are created in one request. Larger ones arrive as parts (`session`), which the service joins
once the hash of the complete object was verified.
"""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, Dict, Optional

from midstream_core.object_store.bucket_client import AT_ONCE, CHUNK, BucketClient, StoredObject
from midstream_host.bucket.memory import RequestMemory
from midstream_host.bucket.session import part_path
from midstream_host.copy.progress_reports import ProgressReports
from midstream_host.copy.staging import part_name
from midstream_host.copy_items import CopyItem
from midstream_host.object_files import INCOMING

# Bytes up to which an object is written in one request: a checkpoint's chunk of 16 MiB with its checksum.
ONE_REQUEST = 2 * CHUNK + (64 << 10)


class ObjectParts:
    """A large object that arrives in parts."""

    def __init__(self, item: CopyItem) -> None:
        self.item = item
        self.uploaded: Dict[int, StoredObject] = {}  # by offset
        self.uploading = 0
        self.complete = False  # no further part follows

    @staticmethod
    def are_of(item: CopyItem) -> bool:
        """Whether an item is an object that is too large for one request."""
        return item["length"] == item["size"] > ONE_REQUEST


class CopyThreads:
    """Threads of a copy that share its memory. The first error ends it: `raise_error`."""

    def __init__(self) -> None:
        self.memory = RequestMemory()
        self.error: Optional[BaseException] = None
        self._pool = ThreadPoolExecutor(2 * AT_ONCE)  # half of them may wait for the disk, without memory

    def run(self, work: Callable[..., None], *arguments: object) -> "Future[None]":
        """Run ``work`` with memory that the caller gives back."""
        return self._pool.submit(work, *arguments)

    def submit(self, buffer: bytearray, work: Callable[..., Optional[Callable[[], None]]], *arguments: object) -> None:
        """Run ``work`` with ``buffer`` of `memory` and the arguments.

        The buffer is given back. Then what ``work`` has returned is called, which does without it.
        """

        def guarded() -> None:
            rest: Optional[Callable[[], None]] = None
            try:
                try:
                    if self.error is None:
                        rest = work(buffer, *arguments)
                finally:
                    self.memory.give(buffer)
                if rest is not None:
                    rest()
            except BaseException as error:  # noqa: BLE001  raised in the thread of the stream
                self.error = self.error or error

        self._pool.submit(guarded)

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def finish(self) -> None:
        """Wait for everything; raise the first error."""
        self.close()
        self.raise_error()

    def close(self) -> None:
        """Wait for everything."""
        self._pool.shutdown(wait=True)


class Writes:
    """Writes of one copy. The methods run in the threads of its `CopyThreads`."""

    def __init__(self, bucket: BucketClient, reports: ProgressReports) -> None:
        self._bucket, self._reports = bucket, reports
        self._lock = threading.Lock()

    def item(self, data: bytearray, item: CopyItem, sha256: str) -> None:
        """Write an object, or a range of a large one as a part. ``sha256``: of ``data``."""
        if item["length"] == item["size"]:
            self._bucket.put(item["path"], data, sha256)
            self._reports.landed(len(data), [item["path"]])
            return
        self._bucket.put(part_path(item, item["offset"], item["length"]), data, sha256, part=True)
        self._reports.landed(item["length"], ranges=[[item["path"], item["offset"], item["length"]]])

    def begin_part(self, parts: ObjectParts, *, last: bool) -> None:
        """Count a part that `part` will write.

        ``last``: none follows, and the object's hash was verified.
        """
        with self._lock:
            parts.uploading += 1
            parts.complete = last

    def part(self, data: bytearray, parts: ObjectParts, offset: int) -> None:
        """Write a part of a large object; the last one to be written joins them."""
        item = parts.item
        path = part_path(item, offset, len(data))
        part = self._bucket.put(path, data, hashlib.sha256(data).hexdigest(), part=True)
        self._reports.landed(len(data))
        with self._lock:
            parts.uploaded[offset] = part
            parts.uploading -= 1
            complete = parts.complete and not parts.uploading
        if complete:
            given = [piece for _, piece in sorted(parts.uploaded.items())]
            temporary = "{}/{}/joined".format(INCOMING, part_name(item))
            self._bucket.join(item["path"], given, item["size"], item["sha256"], temporary)
            self._reports.landed(objects=[item["path"]])
