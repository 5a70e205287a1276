"""Receiver of a stream that creates objects in a bucket."""

from __future__ import annotations

from typing import Optional

from midstream_core.json_types import JsonObject
from midstream_core.object_store.access import Access
from midstream_core.object_store.bucket_client import CHUNK, BucketClient
from midstream_core.object_store.errors import StoreError
from midstream_core.object_store.open_bucket import open_bucket
from midstream_host.bucket.access_problem import report_problem
from midstream_host.bucket.writes import CopyThreads, ObjectParts, Writes
from midstream_host.copy import receiver
from midstream_host.copy.frames import Incoming
from midstream_host.copy_items import CopyItem
from midstream_host.declarations import program
from midstream_host.object_files import emit, inside


class _Arriving(receiver.Arriving):
    """An item, and its bytes that wait to be written: all, or those of a part."""

    def __init__(self, item: CopyItem) -> None:
        super().__init__(item)
        inside("", item["path"])
        self.parts = ObjectParts(item) if ObjectParts.are_of(item) else None
        self.chunk: Optional[bytearray] = None
        self.filled: int = 0  # bytes of ``chunk``

    @property
    def limit(self) -> int:
        """Bytes of the next request."""
        if self.parts is None:
            return self.item["length"]
        return min(CHUNK, self.item["size"] - self.received + self.filled)


class _Receiver(receiver.Receiver[_Arriving]):
    def __init__(self, bucket: BucketClient, stream: Incoming, kind: str, key: str) -> None:
        super().__init__(stream, kind, key)
        self.writes = Writes(bucket, self.reports)
        self.work = CopyThreads()

    def begin(self, item: CopyItem) -> _Arriving:
        return _Arriving(item)

    def most(self, arriving: _Arriving) -> int:
        return arriving.limit - arriving.filled

    def take(self, arriving: _Arriving, data: memoryview) -> None:
        if arriving.chunk is None:
            arriving.chunk = self.work.memory.take(arriving.limit)
        arriving.digest.update(data)
        arriving.chunk[arriving.filled : arriving.filled + len(data)] = data
        arriving.filled += len(data)
        arriving.received += len(data)
        if arriving.parts is not None and arriving.filled == len(arriving.chunk):
            self._part(arriving, arriving.parts, arriving.chunk)

    def _part(self, arriving: _Arriving, parts: ObjectParts, chunk: bytearray) -> None:
        """Write a part of a large object; the last after the object's hash is verified."""
        arriving.chunk, arriving.filled = None, 0
        last = arriving.received == arriving.item["size"]
        if last:
            arriving.check()
        self.writes.begin_part(parts, last=last)
        self.work.submit(chunk, self.writes.part, parts, arriving.received - len(chunk))

    def arrived(self, arriving: _Arriving) -> None:
        if arriving.parts is not None:
            return
        if arriving.complete:
            arriving.check()
        chunk = self.work.memory.take(0) if arriving.chunk is None else arriving.chunk
        self.work.submit(chunk, self.writes.item, arriving.item, arriving.digest.hexdigest())

    def raise_error(self) -> None:
        self.work.raise_error()

    def finish(self) -> None:
        self.work.finish()

    def close(self) -> None:
        self.work.close()


@program
def receive(
    directory: str,
    generation: str,
    kind: str,
    key: str,
    access: JsonObject,
    peer: Optional[JsonObject] = None,
) -> int:
    """Receive a stream into a bucket.

    A program. Events are those of ``copy.disk_receiver.receive``.

    Args:
        directory: ``SCHEME://bucket/prefix``.
        generation: Name of the staging directory of this copy; not used here.
        kind: What the copy may contain (`allowlist`).
        key: Key that the items were requested with (`requested_items`), in hex.
        access: Fields of `Access`.
        peer: The TLS peer that sends the stream; None: stdin.
    """
    try:
        done = receiver.receive(
            peer, lambda stream: _Receiver(open_bucket(directory, Access.from_json(access)), stream, kind, key).run()
        )
        return 0 if done else 1
    except (StoreError, OSError, ValueError) as error:
        report_problem(error, emit)
        return 1
