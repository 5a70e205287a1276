"""Receiver of a stream: the loop over its frames.

The items are written to a disk (`disk_receiver`) or a bucket (`bucket.receiver`).
"""

from __future__ import annotations

import hashlib
from typing import Callable, Generic, Optional, Protocol, TypeVar

from midstream_core.json_types import JsonObject
from midstream_host.allowlist import shown
from midstream_host.copy import tls_peer as tls
from midstream_host.copy.byte_planes import MalformedError, unpack
from midstream_host.copy.frames import (
    DATA,
    FAILED,
    FINISH,
    HEADER,
    IDLE,
    ITEM,
    PACKED,
    Bytes,
    Incoming,
    ProblemError,
    from_stdin,
    widen,
)
from midstream_host.copy.progress_reports import ProgressReports
from midstream_host.copy.requested_items import RequestedItems
from midstream_host.copy.stdin_lines import StdinLines
from midstream_host.copy_items import CopyItem
from midstream_host.object_files import emit

SMALL = 1 << 17  # bytes of a complete object up to which `Receiver.take` gets it in one piece


class Arriving:
    """The item that is being received."""

    def __init__(self, item: CopyItem) -> None:
        self.item = item
        self.complete = item["length"] == item["size"]
        self.digest = hashlib.sha256()
        self.received: int = 0  # bytes

    def check(self) -> None:
        """Compare the hash of an object that arrived in one item. Raises ProblemError."""
        check(self.item, self.digest)


class Digest(Protocol):
    """A hash of `hashlib`."""

    def hexdigest(self) -> str: ...


def check(item: CopyItem, digest: Digest) -> None:
    """Compare a digest with an object's. Raises ProblemError."""
    sha256 = digest.hexdigest()
    if sha256 != item["sha256"]:
        raise ProblemError("hash", path=item["path"], message="SHA-256 is {}".format(sha256))


ArrivingItem = TypeVar("ArrivingItem", bound=Arriving)


class Receiver(Generic[ArrivingItem]):
    """Base of the receivers. ``arriving`` is the item that is being received."""

    arriving: Optional[ArrivingItem] = None

    def __init__(self, stream: Incoming, kind: str, key: str, report: Callable[..., None] = emit) -> None:
        self.stream, self.kind = stream, kind
        self.requests = RequestedItems(key)
        self.reports = ProgressReports(report)

    def begin(self, item: CopyItem) -> ArrivingItem:
        """Prepare for an item. Raises ProblemError where its path is not allowed."""
        raise NotImplementedError

    def most(self, arriving: ArrivingItem) -> int:
        """Bytes of the item that `take` accepts now, at least 1."""
        raise NotImplementedError

    def take(self, arriving: ArrivingItem, data: memoryview) -> None:
        """Write bytes of the item, in order. ``data`` is overwritten afterwards.

        An object of at most `SMALL` bytes that arrives in one frame is passed in one piece.
        """
        raise NotImplementedError

    def arrived(self, arriving: ArrivingItem) -> None:
        """Finish an item that has all its bytes.

        Raises ProblemError where its hash is wrong.
        """
        raise NotImplementedError

    def raise_error(self) -> None:
        """Raise an error of another thread. Called after each frame."""

    def finish(self) -> None:
        """Wait until everything is written after the last frame; raise its errors."""

    def close(self) -> None:
        """Release files and threads; parts that a later copy can use stay."""

    def run(self) -> None:
        """Receive until the sender finishes.

        Raises ProblemError and the errors of the subclass.
        """
        try:
            while True:
                kind, length = HEADER.unpack(self.stream.exactly(HEADER.size))
                if kind == DATA:
                    self._data(length)
                elif kind == PACKED:
                    self._packed(self.stream.exactly(length))
                elif kind == ITEM:
                    self._item(bytes(self.stream.exactly(length)))
                elif kind == FAILED:
                    reason = bytes(self.stream.exactly(length)).decode(errors="replace")
                    raise ProblemError("source", path=self._path, message=shown(reason))
                elif kind == FINISH and not length:
                    break
                elif kind != IDLE or length:
                    raise ProblemError("protocol", message="a frame of kind {}".format(kind))
                self.raise_error()
            if self.arriving is not None:
                raise ProblemError("truncated")
            self.finish()
        finally:
            self.close()
            self.reports.close()

    @property
    def _path(self) -> str:
        return self.arriving.item["path"] if self.arriving is not None else ""

    def _item(self, payload: bytes) -> None:
        if self.arriving is not None:
            raise ProblemError("unrequested", path=self._path, message="another object begins before its end")
        item = self.requests.checked(self.kind, payload)
        self.arriving = self.begin(item)
        if not item["length"]:
            self._arrived(self.arriving)

    def _data(self, length: int) -> None:
        arriving = self._expecting(length)
        self.reports.received(length)
        if 0 < length == arriving.item["size"] <= SMALL and length <= self.most(arriving):
            self.take(arriving, self.stream.exactly(length))
            length = 0
        while length:
            data = self.stream.some(min(length, self.most(arriving)))
            self.take(arriving, data)
            length -= len(data)
        self._arrived_if_complete(arriving)

    def _packed(self, packed: memoryview) -> None:
        try:
            data = memoryview(unpack(packed))
        except MalformedError as error:
            raise ProblemError("protocol", path=self._path, message="a packed chunk: {}".format(error)) from None
        arriving = self._expecting(len(data))
        self.reports.received(len(packed))
        while data:
            count = min(len(data), self.most(arriving))
            self.take(arriving, data[:count])
            data = data[count:]
        self._arrived_if_complete(arriving)

    def _expecting(self, length: int) -> ArrivingItem:
        """Return the item that arrives.

        Raises ProblemError where it has no ``length`` further bytes.
        """
        arriving = self.arriving
        if arriving is None or arriving.received + length > arriving.item["length"]:
            raise ProblemError("unrequested", path=self._path, message="more bytes than were requested")
        return arriving

    def _arrived_if_complete(self, arriving: ArrivingItem) -> None:
        if arriving.received == arriving.item["length"]:
            self._arrived(arriving)

    def _arrived(self, arriving: ArrivingItem) -> None:
        self.arriving = None
        self.arrived(arriving)


def receive(peer: Optional[JsonObject], write: Callable[[Incoming], None]) -> bool:
    """Pass the stream from stdin, or from a TLS ``peer``, to ``write``.

    Returns whether it is done; the last line is ``done`` or ``problem``.
    """
    if peer is None:
        widen(0)
        read_into = from_stdin
    else:
        StdinLines()  # ends this program when the app closes stdin
        try:
            read_into = tls.reader(tls.connect(peer))
        except OSError as error:
            emit("problem", kind="truncated", message="no connection: {}".format(error))
            return False
    return received(Bytes(read_into), write, emit)


def received(stream: Incoming, write: Callable[[Incoming], None], report: Callable[..., None]) -> bool:
    """Pass a stream to ``write``, and report ``done`` or the ``problem``.

    Return whether it is done.
    """
    try:
        write(stream)
    except ProblemError as error:
        report("problem", **error.fields)
        return False
    report("done")
    return True
