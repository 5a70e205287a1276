"""A bucket's end of a stream: creates objects of what arrives, several requests at a time."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Optional

from midstream.remote.copy import receiver
from midstream.remote.copy.frames import Bytes
from midstream.remote.copy.object_files import INCOMING, emit, inside
from midstream.remote.copy.staging import part_name
from midstream.remote.gcs import client
from midstream.remote.gcs.session import part_path


class _Arriving(receiver.Arriving):
    """Its bytes since the last chunk, and, of a whole object that is larger, its parts."""

    def __init__(self, item: Dict[str, Any]):
        super().__init__(item)
        inside("", item["path"])
        self.large = self.whole and item["size"] > client.CHUNK
        self.chunk = bytearray()
        self.parts: Dict[int, Any] = {}  # offset -> blob
        self.sent = False  # all of its parts are under way
        self.under_way = 0


class _Receiver(receiver.Receiver):
    def __init__(self, bucket: client.Bucket, stream: Bytes, kind: str, key: str):
        super().__init__(stream, kind, key)
        self.bucket = bucket
        self.pool = ThreadPoolExecutor(client.AT_ONCE)
        self.room = threading.Semaphore(client.AT_ONCE + 4)  # chunks in memory
        self.lock = threading.Lock()
        self.error: Optional[BaseException] = None

    def begin(self, item: Dict[str, Any]) -> _Arriving:
        return _Arriving(item)

    def most(self, arriving: _Arriving) -> int:
        return client.CHUNK - len(arriving.chunk)

    def take(self, arriving: _Arriving, data: memoryview) -> None:
        arriving.digest.update(data)
        arriving.chunk += data
        arriving.received += len(data)
        if arriving.large and (len(arriving.chunk) == client.CHUNK or arriving.received == arriving.item["size"]):
            self._part(arriving)

    def _part(self, arriving: _Arriving) -> None:
        """A chunk of a large object. The one that comes last waits until the hash of all is known to be right."""
        chunk, arriving.chunk = arriving.chunk, bytearray()
        last = arriving.received == arriving.item["size"]
        if last:
            arriving.check()
        with self.lock:
            arriving.under_way += 1
            arriving.sent = last
        self._submit(self._put_part, arriving, arriving.received - len(chunk), chunk)

    def arrived(self, arriving: _Arriving) -> None:
        if arriving.large:
            return
        if arriving.whole:
            arriving.check()
        work = self._put_whole if arriving.whole else self._put_range
        self._submit(work, arriving, arriving.digest.hexdigest())

    def look(self) -> None:
        if self.error is not None:
            raise self.error

    def finish(self) -> None:
        self.pool.shutdown(wait=True)
        self.look()

    def close(self) -> None:
        self.pool.shutdown(wait=True)

    # ------------------------------------------------------------------------------------------------- requests

    def _submit(self, work: Callable[..., None], *arguments: Any) -> None:
        self.room.acquire()

        def guarded() -> None:
            try:
                if self.error is None:
                    work(*arguments)
            except BaseException as error:  # noqa: BLE001  raised where the stream is read
                self.error = error
            finally:
                self.room.release()

        self.pool.submit(guarded)

    def _put_whole(self, arriving: _Arriving, sha256: str) -> None:
        self.bucket.put(arriving.item["path"], arriving.chunk, sha256)
        self.telling.landed(len(arriving.chunk), [arriving.item["path"]])

    def _put_range(self, arriving: _Arriving, sha256: str) -> None:
        item = arriving.item
        self.bucket.put(part_path(item, item["offset"], item["length"]), arriving.chunk, sha256, part=True)
        self.telling.landed(item["length"], ranges=[[item["path"], item["offset"], item["length"]]])

    def _put_part(self, arriving: _Arriving, offset: int, chunk: bytearray) -> None:
        item = arriving.item
        path = part_path(item, offset, len(chunk))
        blob = self.bucket.put(path, chunk, hashlib.sha256(chunk).hexdigest(), part=True)
        self.telling.landed(len(chunk))
        with self.lock:
            arriving.parts[offset] = blob
            arriving.under_way -= 1
            whole = arriving.sent and not arriving.under_way
        if whole:  # by whoever was last
            parts = [blob for _, blob in sorted(arriving.parts.items())]
            temporary = "{}/{}/joined".format(INCOMING, part_name(item))
            self.bucket.join(item["path"], parts, item["size"], item["sha256"], temporary)
            self.telling.landed(objects=[item["path"]])


def receive(
    directory: str,
    generation: str,
    kind: str,
    key: str,
    access: Dict[str, Any],
    peer: Optional[Dict[str, Any]] = None,
) -> int:
    """As ``copy.disk_receiver.receive``, whose lines it speaks, into a bucket: ``directory`` is ``gs://bucket/prefix``."""
    try:
        return receiver.receive(
            peer, lambda stream: _Receiver(client.Bucket(directory, access), stream, kind, key).run()
        )
    except (client.GcsError, OSError, ValueError) as error:
        client.tell(error, emit)
        return 1
