"""A bucket's end of a stream: creates objects of what arrives, several requests at a time."""

from __future__ import annotations

import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Optional

from midstream.remote import gcs
from midstream.remote import peer as tls
from midstream.remote.files import INCOMING, emit, inside
from midstream.remote.frames import DATA, FAILED, FINISH, HEADER, IDLE, ITEM, Bytes, Problem, from_stdin, widen
from midstream.remote.gcs_arrivals import part_path
from midstream.remote.lines import Lines
from midstream.remote.staging import part_name
from midstream.remote.telling import Telling


class _Arriving:
    """One item on its way in: its bytes since the last chunk, and, of a whole object that is larger, its parts."""

    def __init__(self, item: Dict[str, Any]):
        inside("", item["path"])
        self.item = item
        self.whole = item["length"] == item["size"]
        self.large = self.whole and item["size"] > gcs.CHUNK
        self.digest = hashlib.sha256()
        self.received = 0
        self.chunk = bytearray()
        self.parts: Dict[int, Any] = {}  # offset -> blob
        self.sent = False  # all of its parts are under way
        self.under_way = 0


class _Receiver:
    def __init__(self, bucket: gcs.Bucket, stream: Bytes):
        self.bucket, self.stream = bucket, stream
        self.arriving: Optional[_Arriving] = None
        self.pool = ThreadPoolExecutor(gcs.AT_ONCE)
        self.room = threading.Semaphore(gcs.AT_ONCE + 4)  # chunks in memory
        self.lock = threading.Lock()
        self.error: Optional[BaseException] = None
        self.telling = Telling()

    def run(self) -> None:
        try:
            while True:
                kind, length = HEADER.unpack(self.stream.exactly(HEADER.size))
                if kind == DATA:
                    self._data(length)
                elif kind == ITEM:
                    self._item(json.loads(bytes(self.stream.exactly(length))))
                elif kind == FINISH:
                    break
                elif kind == FAILED:
                    path = self.arriving.item["path"] if self.arriving else ""
                    raise Problem("source", path=path, message=bytes(self.stream.exactly(length)).decode())
                elif kind != IDLE:
                    raise Problem("protocol", message="a frame of kind {}".format(kind))
                self._look()
            if self.arriving is not None:
                raise Problem("truncated")
        finally:
            self.pool.shutdown(wait=True)
            self.telling.close()
        self._look()

    def _look(self) -> None:
        """Raise what a thread raised."""
        if self.error is not None:
            raise self.error

    def _item(self, item: Dict[str, Any]) -> None:
        if self.arriving is not None:
            raise Problem("protocol", message="{} begins inside another".format(item["path"]))
        self.arriving = _Arriving(item)
        if not item["length"]:
            self._arrived(self.arriving)

    def _data(self, length: int) -> None:
        arriving = self.arriving
        if arriving is None or arriving.received + length > arriving.item["length"]:
            raise Problem("protocol", message="more bytes than announced")
        while length:
            data = self.stream.some(min(length, gcs.CHUNK - len(arriving.chunk)))
            arriving.digest.update(data)
            arriving.chunk += data
            arriving.received += len(data)
            length -= len(data)
            if arriving.large and (len(arriving.chunk) == gcs.CHUNK or arriving.received == arriving.item["size"]):
                self._part(arriving)
        if arriving.received == arriving.item["length"]:
            self._arrived(arriving)

    def _part(self, arriving: _Arriving) -> None:
        """A chunk of a large object. The one that comes last waits until the hash of all is known to be right."""
        chunk, arriving.chunk = arriving.chunk, bytearray()
        last = arriving.received == arriving.item["size"]
        if last and arriving.digest.hexdigest() != arriving.item["sha256"]:
            raise self._wrong(arriving)
        with self.lock:
            arriving.under_way += 1
            arriving.sent = last
        self._submit(self._put_part, arriving, arriving.received - len(chunk), chunk)

    def _arrived(self, arriving: _Arriving) -> None:
        self.arriving = None
        if arriving.large:
            return
        found = arriving.digest.hexdigest()
        if arriving.whole and found != arriving.item["sha256"]:
            raise self._wrong(arriving)
        self._submit(self._put_whole if arriving.whole else self._put_range, arriving, found)

    def _wrong(self, arriving: _Arriving) -> Problem:
        message = "SHA-256 is {}".format(arriving.digest.hexdigest())
        return Problem("hash", path=arriving.item["path"], message=message)

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


def receive(directory: str, generation: str, access: Dict[str, Any], peer: Optional[Dict[str, Any]] = None) -> int:
    """As ``receiving.receive``, whose lines it speaks, into a bucket: ``directory`` is ``gs://bucket/prefix``."""
    if peer is None:
        widen(0)
        read_into = from_stdin
    else:
        Lines()
        try:
            read_into = tls.reader(tls.meet(peer))
        except OSError as error:
            emit("problem", kind="truncated", message="no connection: {}".format(error))
            return 1
    try:
        _Receiver(gcs.Bucket(directory, access), Bytes(read_into)).run()
    except Problem as problem:
        emit("problem", **problem.fields)
        return 1
    except (gcs.GcsError, OSError, ValueError) as error:
        gcs.tell(error, emit)
        return 1
    emit("done")
    return 0
