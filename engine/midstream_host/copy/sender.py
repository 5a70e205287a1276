"""Sender of a stream: reads requests for items from stdin and writes frames."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from functools import partial
from typing import Callable, Optional, Sequence, Union

from midstream_core.json_types import JsonObject
from midstream_host.copy import tls_peer as tls
from midstream_host.copy.frames import DATA, FAILED, FINISH, HEADER, IDLE, ITEM, PACKED, PAYLOAD, widen
from midstream_host.copy.packing import Packer, Packing
from midstream_host.copy.stdin_lines import Line, StdinLines
from midstream_host.copy_items import CopyItem
from midstream_host.declarations import program
from midstream_host.object_files import LastFolder, emit, open_plain

SMALL = 1 << 17  # items up to this many bytes are packed together into one write
IDLE_INTERVAL = 5.0  # seconds between two frames of an idle sender


class Pace:
    """Limits a stream to ``rate`` bytes a second; 0: no limit."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._due = time.monotonic()

    @property
    def piece(self) -> int:
        """Bytes to send in one piece: a tenth of a second's."""
        return PAYLOAD if not self.rate else int(max(4096, min(PAYLOAD, self.rate / 10)))

    def wait_after(self, count: int) -> None:
        """Wait until the limit allows more than the ``count`` bytes that were sent."""
        if not self.rate:
            return
        now = time.monotonic()
        self._due = max(self._due, now - 0.2) + count / self.rate
        if self._due > now:
            time.sleep(self._due - now)


class Pipe:
    """Output on stdout.

    Bytes of files go from the page cache into the pipe without a copy.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._zero_copy = True
        widen(descriptor)

    def write(self, view: memoryview) -> None:
        while view:
            view = view[os.write(self._descriptor, view) :]

    def send_file(self, file: int, offset: int, count: int) -> int:
        """Send part of a file; return the bytes sent, fewer than ``count`` at its end."""
        sent = 0
        while sent < count and self._zero_copy:
            try:
                moved = os.sendfile(self._descriptor, file, offset + sent, count - sent)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise
                self._zero_copy = False  # the file system does not support it
                break
            if not moved:
                return sent
            sent += moved
        return sent + _read_and_write(self.write, file, offset + sent, count - sent)


class SocketOut:
    """A TLS connection as the output."""

    def __init__(self, sock: socket.socket) -> None:
        self.write = sock.sendall

    def send_file(self, file: int, offset: int, count: int) -> int:
        return _read_and_write(self.write, file, offset, count)


def _read_and_write(write: Callable[[memoryview], None], file: int, offset: int, count: int) -> int:
    view = memoryview(bytearray(min(count, 1 << 18)))
    sent = 0
    while sent < count:
        got = os.preadv(file, [view[: min(len(view), count - sent)]], offset + sent)
        if not got:
            break
        write(view[:got])
        sent += got
    return sent


class Sender:
    """Writes the frames of items; small items share one write."""

    def __init__(self, directory: str, out: "Union[Pipe, SocketOut]") -> None:
        self.directory = directory
        self.out = out
        self.pace = Pace()
        self._frames = memoryview(bytearray(PAYLOAD + SMALL + (1 << 16)))  # those that share one write
        self._pending = 0  # bytes of them
        self.folder = LastFolder(directory)
        self.packing = Packing()
        self.packer = Packer()

    def flush(self) -> None:
        if self._pending:
            count, self._pending = self._pending, 0
            self.out.write(self._frames[:count])

    def frame(self, kind: int, payload: bytes = b"") -> None:
        if HEADER.size + len(payload) > len(self._frames) - self._pending:
            self.flush()
        self._append(HEADER.pack(kind, len(payload)))
        if len(payload) > len(self._frames) - self._pending:
            self.flush()
            self.out.write(memoryview(payload))
        else:
            self._append(payload)
        if self._pending >= PAYLOAD:
            self.flush()

    def _append(self, data: bytes) -> None:
        end = self._pending + len(data)
        self._frames[self._pending : end] = data
        self._pending = end

    def item(self, item: CopyItem) -> bool:
        """Send one item.

        Return False where it cannot be read: a FAILED frame then ends the stream.
        """
        start = item["offset"] + item.get("begin", 0)
        self.frame(ITEM, json.dumps(item).encode())
        try:
            parent, name = self.folder.parent(item["path"])
            file = open_plain(name, item["path"], dir_fd=parent)
        except FileNotFoundError:
            return self.failed("missing")
        except OSError as error:
            return self.failed("cannot be read: {}".format(error.strerror))
        try:
            there = os.fstat(file).st_size
            if there < start + item["length"]:
                return self.failed(_short(there, item))
            return self.small(file, start, item) if item["length"] <= SMALL else self.large(file, start, item)
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.ECONNRESET):
                raise
            return self.failed("cannot be read: {}".format(error.strerror))
        finally:
            os.close(file)

    def failed(self, what: str) -> bool:
        self.frame(FAILED, what.encode())
        self.flush()
        return False

    def small(self, file: int, start: int, item: CopyItem) -> bool:
        length = item["length"]
        if HEADER.size + length > len(self._frames) - self._pending:
            self.flush()
        begin = self._pending + HEADER.size
        got = os.preadv(file, [self._frames[begin : begin + length]], start) if length else 0
        if got < length:
            return self.failed(_short(start + got, item))
        if length:
            HEADER.pack_into(self._frames, self._pending, DATA, length)
            self._pending = begin + length
            if self._pending >= PAYLOAD:
                self.flush()
        self.pace.wait_after(length)
        return True

    def large(self, file: int, start: int, item: CopyItem) -> bool:
        sent, length = 0, item["length"]
        while sent < length:
            at, count = start + sent, min(self.packing.window, length - sent)
            self.packing.begin(partial(_peek, file, at, count))
            moved = self.plain(file, at, count) if self.packing.layout is None else self.packed(file, at, count)
            self.packing.end()
            sent += moved
            if moved < count:
                return self.failed(_short(start + sent, item))
        return True

    def plain(self, file: int, start: int, count: int) -> int:
        """Send part of a file as it is.

        Return the bytes of the file, fewer than ``count`` at its end.
        """
        sent = 0
        while sent < count:
            piece = min(self.pace.piece, count - sent)
            self._append(HEADER.pack(DATA, piece))
            began = time.monotonic()
            self.flush()
            moved = self.out.send_file(file, start + sent, piece)
            if moved < piece:  # the file was truncated: fill the frame whose size was sent
                self.out.write(memoryview(bytes(piece - moved)))
                return sent + moved
            sent += piece
            self.pace.wait_after(piece)
            self.packing.sent(piece, time.monotonic() - began)
        return sent

    def packed(self, file: int, start: int, count: int) -> int:
        """Send part of a file packed.

        Return the bytes of the file, fewer than ``count`` at its end.
        """
        assert self.packing.layout is not None
        sent = 0
        for data, packed in self.packer.chunks(file, start, count, self.packing.layout):
            began = time.monotonic()
            self.frame(DATA if packed is None else PACKED, data if packed is None else packed)
            self.flush()
            self.pace.wait_after(len(data if packed is None else packed))
            self.packing.sent(len(data), time.monotonic() - began)
            sent += len(data)
        return sent


def _peek(file: int, offset: int, count: int, most: int) -> bytes:
    return os.pread(file, min(most, count), offset)


def _short(size: int, item: CopyItem) -> str:
    return "{} bytes, the manifest says {}".format(size, item["size"] + item.get("begin", 0))


Take = Callable[[Sequence[CopyItem]], bool]
Wait = Callable[[Optional[float]], Optional[Line]]  # returns the next line, or None after seconds


def feed(wait: Wait, sender: Sender, take: Take) -> bool:
    """Send what lines request, up to the last.

    Return False where an item cannot be read, after a FAILED frame.
    """
    while True:
        line = wait(0.0)
        if line is None:
            sender.flush()
            line = wait(IDLE_INTERVAL)
        if line is None:
            sender.frame(IDLE)
            continue
        if "rate" in line:
            sender.pace.rate = line["rate"]
        if not take(line.get("items", ())):
            return False
        if line.get("end"):
            sender.frame(FINISH)
            sender.flush()
            return True


def serve(directory: str, peer: Optional[JsonObject], begin: Callable[[Sender], Take]) -> int:
    """Run a sender; return the exit status of the program.

    ``begin`` returns a function that sends items; it returns False where they cannot be read, after a FAILED frame.
    Input lines: see `send`.
    """
    lines = StdinLines()
    # With TLS the listening end reports its port on stdout, and the frames go over the connection.
    try:
        sock = tls.connect(peer) if peer is not None else None
    except OSError as error:
        emit("problem", kind="truncated", message="no connection: {}".format(error))
        return 1
    sender = Sender(directory, Pipe(sys.stdout.buffer.fileno()) if sock is None else SocketOut(sock))
    try:
        if not feed(lines.get, sender, begin(sender)):
            return 1
        if sock is not None:
            tls.end(sock)
        return 0
    except OSError as error:  # the receiver has exited and reports why on its own channel
        if error.errno not in (errno.EPIPE, errno.ECONNRESET) and sock is None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.buffer.fileno())
        return 1


def take_from_disk(sender: Sender) -> Take:
    """Return a function that sends items of the sender's directory."""
    return lambda items: all(sender.item(item) for item in items)


@program
def send(directory: str, peer: Optional[JsonObject] = None) -> int:
    """Send the items that lines on stdin request.

    A program. Lines: ``{"items": [...]}``, ``{"rate": BYTES_PER_SECOND}``, ``{"end": true}``. Frames go to stdout, or
    over TLS to ``peer``.
    """
    return serve(directory, peer, take_from_disk)
