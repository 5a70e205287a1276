"""Objects on their way: sent and received as a stream of frames.

A sender reads from its stdin what to send, item by item, and writes frames; a receiver writes what arrives into the
staging directory (`staging.py`). An *item* is a whole object, or a range of one. A whole object is hashed while it is
written and takes its own name when its SHA-256 is right. Of an object that arrives in ranges, over several streams
or in several attempts, the staging program hashes the bytes as they join up.

Frame: kind (u8), length of the payload (u32), big-endian, then the payload. ITEM carries JSON: path, size and sha256
of the object, ``offset`` and ``length`` of the item in it; DATA its bytes, in order; FAILED why it cannot be read;
IDLE nothing, so that silence means a dead link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import select
import socket
import struct
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Callable, Dict, List, Optional, Set

from midstream.remote import peer as tls
from midstream.remote import staging
from midstream.remote.lines import SILENCE, Lines
from midstream.remote.tree import emit, inside

HEADER = struct.Struct(">BI")
ITEM, DATA, FAILED, FINISH, IDLE = 1, 2, 3, 4, 5
PAYLOAD = 1 << 20  # bytes of a frame's payload at most
SMALL = 1 << 17  # items up to this many bytes are packed together into one write
BUFFER = 1 << 19  # bytes read from the stream at once
TICK = 5.0  # seconds after which an idle sender says that it lives
REPORT = 4 << 20  # bytes between two reports of progress
CALM = 0.1  # seconds between two reports
SETTLING = 4  # threads that fsync finished objects while the next ones arrive
SYNCED = 1 << 20  # objects from this size on are on the disk before they are named; the others before the manifest is
PIPE = 1 << 20  # bytes that a pipe holds
F_SETPIPE_SZ = 1031


def widen(descriptor: int) -> None:
    """A larger pipe, where it is a pipe and we may: fewer switches between reader and writer."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(descriptor, F_SETPIPE_SZ, PIPE)


# ------------------------------------------------------------------------------------------------- the sender


class _Pace:
    """Holds a stream at a rate in bytes a second; 0: as fast as it goes."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._due = time.monotonic()

    @property
    def piece(self) -> int:
        """Bytes to send at once: a tenth of a second's."""
        return PAYLOAD if not self.rate else int(max(4096, min(PAYLOAD, self.rate / 10)))

    def took(self, count: int) -> None:
        if not self.rate:
            return
        now = time.monotonic()
        self._due = max(self._due, now - 0.2) + count / self.rate
        if self._due > now:
            time.sleep(self._due - now)


class _Pipe:
    """stdout as the way out. Bytes of files go from the page cache into the pipe without a copy."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._zero_copy = True
        widen(descriptor)

    def write(self, view: memoryview) -> None:
        while view:
            view = view[os.write(self._descriptor, view) :]

    def send_file(self, file: int, offset: int, count: int) -> int:
        """Bytes that were sent; less than ``count`` at the file's end."""
        sent = 0
        while sent < count and self._zero_copy:
            try:
                moved = os.sendfile(self._descriptor, file, offset + sent, count - sent)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise
                self._zero_copy = False  # a file system that cannot
                break
            if not moved:
                return sent
            sent += moved
        return sent + _read_and_write(self.write, file, offset + sent, count - sent)


class _Socket:
    """A TLS connection as the way out."""

    def __init__(self, sock: socket.socket):
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


class _Sender:
    def __init__(self, directory: str, out: Any):
        self.directory = directory
        self.out = out
        self.pace = _Pace()
        self.packed = bytearray()

    def flush(self) -> None:
        if self.packed:
            packed, self.packed = self.packed, bytearray()
            self.out.write(memoryview(packed))

    def frame(self, kind: int, payload: bytes = b"") -> None:
        self.packed += HEADER.pack(kind, len(payload))
        self.packed += payload
        if len(self.packed) >= PAYLOAD:
            self.flush()

    def item(self, item: Dict[str, Any]) -> bool:
        """Send one item. False where it cannot be read: that is said in the stream, which ends."""
        start = item["offset"] + item.get("from", 0)
        self.frame(ITEM, json.dumps(item).encode())
        try:
            file = os.open(inside(self.directory, item["path"]), os.O_RDONLY | os.O_CLOEXEC)
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

    def small(self, file: int, start: int, item: Dict[str, Any]) -> bool:
        data = os.pread(file, item["length"], start)
        if len(data) < item["length"]:
            return self.failed(_short(start + len(data), item))
        if data:
            self.frame(DATA, data)
        self.pace.took(len(data))
        return True

    def large(self, file: int, start: int, item: Dict[str, Any]) -> bool:
        sent, length = 0, item["length"]
        while sent < length:
            count = min(self.pace.piece, length - sent)
            self.packed += HEADER.pack(DATA, count)
            self.flush()
            moved = self.out.send_file(file, start + sent, count)
            if moved < count:  # the file became shorter under way: fill the frame that was announced
                self.out.write(memoryview(bytes(count - moved)))
                return self.failed(_short(start + sent + moved, item))
            sent += count
            self.pace.took(count)
        return True


def _short(found: int, item: Dict[str, Any]) -> str:
    return "{} bytes, the manifest says {}".format(found, item["size"] + item.get("from", 0))


def send(directory: str, peer: Optional[Dict[str, Any]] = None) -> int:
    """Send what the lines on stdin ask for: ``{"items": [...]}``, ``{"rate": BYTES_PER_SECOND}``, ``{"end": true}``.
    Frames go to stdout, or through TLS to ``peer``."""
    lines = Lines()
    # With TLS the certificate's key is in memory only; the listening side says its port on stdout.
    sock = tls.meet(peer) if peer is not None else None
    sender = _Sender(directory, _Pipe(sys.stdout.buffer.fileno()) if sock is None else _Socket(sock))
    try:
        while True:
            line = lines.get(0.0)
            if line is None:
                sender.flush()
                line = lines.get(TICK)
            if line is None:
                sender.frame(IDLE)
                continue
            if "rate" in line:
                sender.pace.rate = line["rate"]
            for item in line.get("items", ()):
                if not sender.item(item):
                    return 1
            if line.get("end"):
                sender.frame(FINISH)
                sender.flush()
                if sock is not None:
                    tls.part(sock)
                return 0
    except OSError as error:  # the receiver has ended, and says why on its own channel
        if error.errno not in (errno.EPIPE, errno.ECONNRESET) and sock is None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.buffer.fileno())
        return 1


# ----------------------------------------------------------------------------------------------- the receiver


class _Problem(Exception):
    """Why the stream cannot be received. ``fields`` go to the operator."""

    def __init__(self, kind: str, **fields: Any):
        super().__init__(kind)
        self.fields = dict(fields, kind=kind)


class _Bytes:
    """The stream, read in large pieces and handed out without copying."""

    def __init__(self, read_into: Callable[[memoryview], int]):
        self._read_into = read_into
        self._view = memoryview(bytearray(BUFFER))
        self._start = self._end = 0

    def _more(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._view):
            rest = bytes(self._view[self._start : self._end])
            self._view[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        count = self._read_into(self._view[self._end :])
        if not count:
            raise _Problem("truncated")
        self._end += count

    def exactly(self, count: int) -> memoryview:
        if count > len(self._view):
            raise _Problem("protocol", message="a frame of {} bytes".format(count))
        while self._end - self._start < count:
            self._more()
        return self.some(count)

    def some(self, most: int) -> memoryview:
        """Between 1 and ``most`` bytes; none for 0."""
        if most and self._start == self._end:
            self._more()
        view = self._view[self._start : min(self._end, self._start + most)]
        self._start += len(view)
        return view


class _Arriving:
    """One item on its way in."""

    def __init__(self, stage: "staging.Stage", item: Dict[str, Any]):
        self.item = item
        self.whole = item["length"] == item["size"]
        self.place = inside(stage.directory, item["path"])
        self.part = stage.part(item)
        self.digest = hashlib.sha256() if self.whole else None
        self.received = 0
        # Whole or not: what a cut leaves behind is looked at again chunk by chunk.
        self.file = os.open(self.part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, data: memoryview) -> None:
        if self.digest is not None:
            self.digest.update(data)
        at = self.item["offset"] + self.received
        self.received += len(data)
        while data:
            count = os.pwrite(self.file, data, at)
            data, at = data[count:], at + count

    def give_up(self) -> None:
        """Keep what a later copy may go on from: whole chunks."""
        self.close()
        if self.whole and self.received < staging.CHUNK:
            os.unlink(self.part)

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


class _Receiver:
    def __init__(self, stage: "staging.Stage", stream: _Bytes):
        self.stage = stage
        self.stream = stream
        self.arriving: Optional[_Arriving] = None
        self.settling: Set[Future] = set()
        self.bytes = 0
        self.objects: List[str] = []
        self.ranges: List[List[Any]] = []
        self.spoke = time.monotonic()

    def run(self) -> None:
        pool = ThreadPoolExecutor(SETTLING)
        try:
            while True:
                kind, length = HEADER.unpack(self.stream.exactly(HEADER.size))
                if kind == DATA:
                    self._data(length, pool)
                elif kind == ITEM:
                    self._item(json.loads(bytes(self.stream.exactly(length))), pool)
                elif kind == FINISH:
                    break
                elif kind == FAILED:
                    words = bytes(self.stream.exactly(length)).decode()
                    raise _Problem("source", path=self._item_path(), message=words)
                elif kind != IDLE:
                    raise _Problem("protocol", message="a frame of kind {}".format(kind))
                if time.monotonic() - self.spoke > CALM:
                    self._report()
            if self.arriving is not None:
                raise _Problem("truncated")
            self._wait_for(0)
        finally:
            pool.shutdown(wait=True)
            if self.arriving is not None:
                self.arriving.give_up()
            self._report()

    def _item_path(self) -> str:
        return self.arriving.item["path"] if self.arriving is not None else ""

    def _item(self, item: Dict[str, Any], pool: ThreadPoolExecutor) -> None:
        if self.arriving is not None:
            raise _Problem("protocol", message="{} begins inside another".format(item["path"]))
        self.arriving = _Arriving(self.stage, item)
        if not item["length"]:
            self._arrived(pool)

    def _data(self, length: int, pool: ThreadPoolExecutor) -> None:
        arriving = self.arriving
        if arriving is None or arriving.received + length > arriving.item["length"]:
            raise _Problem("protocol", message="more bytes than announced for {}".format(self._item_path()))
        while length:
            data = self.stream.some(length)
            arriving.write(data)
            length -= len(data)
            self.bytes += len(data)
            if self.bytes >= REPORT and time.monotonic() - self.spoke > CALM:
                self._report()
        if arriving.received == arriving.item["length"]:
            self._arrived(pool)

    def _arrived(self, pool: ThreadPoolExecutor) -> None:
        arriving, self.arriving = self.arriving, None
        assert arriving is not None
        item = arriving.item
        if arriving.digest is None:
            self.ranges.append([item["path"], item["offset"], item["length"]])
            self._wait_for(2 * SETTLING)
            self.settling.add(pool.submit(self._sync, arriving))
            return
        found = arriving.digest.hexdigest()
        if found != item["sha256"]:
            arriving.close()
            os.unlink(arriving.part)
            raise _Problem("hash", path=item["path"], message="SHA-256 is {}".format(found))
        if item["size"] < SYNCED:
            self._settle(arriving)
        else:
            self._wait_for(2 * SETTLING)
            self.settling.add(pool.submit(self._settle, arriving, True))

    def _sync(self, arriving: _Arriving) -> None:
        """Begin writing a range to the disk while others arrive."""
        with contextlib.suppress(OSError):  # the staging program syncs again, and reports
            os.fdatasync(arriving.file)
        arriving.close()

    def _settle(self, arriving: _Arriving, sync: bool = False) -> None:
        if sync:
            os.fsync(arriving.file)
        arriving.close()
        self.stage.name(arriving.part, arriving.place)
        self.objects.append(arriving.item["path"])

    def _wait_for(self, at_most: int) -> None:
        """Until no more than ``at_most`` objects are being settled. Raises what a settling thread raised."""
        while self.settling and len(self.settling) > at_most:
            finished, self.settling = wait(self.settling, return_when=FIRST_COMPLETED)
            for future in finished:
                future.result()

    def _report(self) -> None:
        self.spoke = time.monotonic()
        count, self.bytes = self.bytes, 0
        objects, ranges = self.objects[:], self.ranges[:]
        del self.objects[: len(objects)], self.ranges[: len(ranges)]
        if count or objects or ranges:
            emit("landed", bytes=count, objects=objects, ranges=ranges)


def receive(directory: str, generation: str, peer: Optional[Dict[str, Any]] = None) -> int:
    """Read frames from stdin, or through TLS from ``peer``, into the staging directory ``generation`` of ``directory``.
    Lines: ``landed`` (``bytes`` since the last such line; ``objects``, verified and named; ``ranges``, written), and at
    the end ``done`` or ``problem`` (kinds truncated, source, hash, full, protocol, system)."""
    if peer is None:
        widen(0)
        read_into = _from_stdin
    else:
        Lines()  # the operator's end is ours
        try:
            read_into = tls.reader(tls.meet(peer))
        except OSError as error:
            emit("problem", kind="truncated", message="no connection: {}".format(error))
            return 1
    stage = staging.Stage(directory, generation)
    try:
        _Receiver(stage, _Bytes(read_into)).run()
    except _Problem as problem:
        emit("problem", **problem.fields)
        return 1
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        emit("problem", kind="full" if full else "system", message=str(error), free=staging.free_bytes(directory))
        return 1
    finally:
        stage.leave()
    emit("done")
    return 0


def _from_stdin(view: memoryview) -> int:
    if not select.select([0], [], [], SILENCE)[0]:
        raise _Problem("truncated", message="nothing came for {:.0f} s".format(SILENCE))
    return os.readv(0, [view])
