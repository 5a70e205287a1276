"""The receiving end of a stream: one loop over its frames. What becomes of the items is said by whoever keeps them: a
disk (`disk_receiver.py`) or a bucket (`gcs/receiver.py`)."""

from __future__ import annotations

import hashlib
from typing import Any, Callable, Dict, Optional

from midstream.remote.copy import tls_peer as tls
from midstream.remote.copy.allowlist import shown
from midstream.remote.copy.frames import (
    DATA,
    FAILED,
    FINISH,
    HEADER,
    IDLE,
    ITEM,
    Bytes,
    Problem,
    from_stdin,
    widen,
)
from midstream.remote.copy.object_files import emit
from midstream.remote.copy.progress_reports import ProgressReports
from midstream.remote.copy.requested_items import RequestedItems
from midstream.remote.copy.stdin_lines import Lines


class Arriving:
    """One item on its way in."""

    def __init__(self, item: Dict[str, Any]):
        self.item = item
        self.whole = item["length"] == item["size"]
        self.digest = hashlib.sha256()
        self.received = 0

    def check(self) -> None:
        """Of a whole object, that its bytes are the source's. Problem."""
        found = self.digest.hexdigest()
        if found != self.item["sha256"]:
            raise Problem("hash", path=self.item["path"], message="SHA-256 is {}".format(found))


class Receiver:
    """Subclasses say how an item begins, takes bytes and ends. ``arriving`` is the one under way."""

    arriving: Any = None

    def __init__(self, stream: Bytes, kind: str, key: str):
        self.stream, self.kind = stream, kind
        self.requests = RequestedItems(key)
        self.telling = ProgressReports()

    def begin(self, item: Dict[str, Any]) -> Arriving:
        """Make ready for an item. Problem where its path leads elsewhere."""
        raise NotImplementedError

    def most(self, arriving: Any) -> int:
        """Bytes that it can take now, at least 1."""
        raise NotImplementedError

    def take(self, arriving: Any, data: memoryview) -> None:
        """Some of its bytes, in order. The memory is used again afterwards."""
        raise NotImplementedError

    def arrived(self, arriving: Any) -> None:
        """All of its bytes are there. Problem where they are not the source's."""
        raise NotImplementedError

    def look(self) -> None:
        """After each frame: raise what was found out meanwhile."""

    def finish(self) -> None:
        """Nothing more comes: wait for what is under way, and raise what became of it."""

    def close(self) -> None:
        """Give everything back, however it ended; what is of use to a later copy stays."""

    def run(self) -> None:
        """Until the sender has said everything. Problem; whatever the subclass raises."""
        try:
            while True:
                kind, length = HEADER.unpack(self.stream.exactly(HEADER.size))
                if kind == DATA:
                    self._data(length)
                elif kind == ITEM:
                    self._item(bytes(self.stream.exactly(length)))
                elif kind == FAILED:
                    words = bytes(self.stream.exactly(length)).decode(errors="replace")
                    raise Problem("source", path=self._path, message=shown(words))
                elif kind == FINISH and not length:
                    break
                elif kind != IDLE or length:
                    raise Problem("protocol", message="a frame of kind {}".format(kind))
                self.look()
            if self.arriving is not None:
                raise Problem("truncated")
            self.finish()
        finally:
            self.close()
            self.telling.close()

    @property
    def _path(self) -> str:
        return self.arriving.item["path"] if self.arriving is not None else ""

    def _item(self, payload: bytes) -> None:
        if self.arriving is not None:
            raise Problem("unrequested", path=self._path, message="another object begins before its end")
        item = self.requests.checked(self.kind, payload)
        self.arriving = self.begin(item)
        if not item["length"]:
            self._arrived()

    def _data(self, length: int) -> None:
        arriving = self.arriving
        if arriving is None or arriving.received + length > arriving.item["length"]:
            raise Problem("unrequested", path=self._path, message="more bytes than were requested")
        while length:
            data = self.stream.some(min(length, self.most(arriving)))
            self.take(arriving, data)
            length -= len(data)
        if arriving.received == arriving.item["length"]:
            self._arrived()

    def _arrived(self) -> None:
        arriving, self.arriving = self.arriving, None
        self.arrived(arriving)


def receive(peer: Optional[Dict[str, Any]], keep: Callable[[Bytes], None]) -> int:
    """``keep`` gets the stream from stdin, or through TLS from ``peer``. The program's exit status; its last line is
    ``done`` or ``problem``."""
    if peer is None:
        widen(0)
        read_into = from_stdin
    else:
        Lines()  # the operator's end is ours
        try:
            read_into = tls.reader(tls.connect(peer))
        except OSError as error:
            emit("problem", kind="truncated", message="no connection: {}".format(error))
            return 1
    try:
        keep(Bytes(read_into))
    except Problem as found:
        emit("problem", **found.fields)
        return 1
    emit("done")
    return 0
