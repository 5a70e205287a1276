"""Trees of objects on their way: sent and received as a stream of frames.

What arrives is written under ``.incoming/`` below the target directory and hashed while it is written; an object
takes its own name only when size and hash agree, and the manifest is written last. So whatever lies under an
object's own name was verified once, and a copy that was killed goes on from what lies on disk.

``send`` writes frames to stdout; ``receive`` reads them from stdin and writes one JSON object a line. Frame: kind
(u8), object's index in the argument list (u32), offset in the object (u64), length of the payload (u32), big-endian,
then the payload.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import posixpath
import struct
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, BinaryIO, Dict, Optional, Sequence, Set

from midstream.remote.tree import INCOMING, emit, end_with_operator, inside
from midstream_engine import records

HEADER = struct.Struct(">BIQI")
DATA, FAILED, FINISH = 1, 2, 3
FRAME = 1 << 20  # bytes of one write to the stream: headers and payloads, many small files together
MIN_PAYLOAD = 1 << 14  # a frame's payload is cut shorter only at the end of an object
REPORT = 8 << 20  # bytes between two reports of progress inside large objects
SETTLING = 4  # threads that fsync finished objects while the next ones arrive


# --------------------------------------------------------------------------------------------------- the sender


def send(directory: str, objects: Sequence[Dict[str, Any]]) -> int:
    """Write the objects (``{path, size}``, and ``offset`` where only the file's end is wanted) to stdout as
    frames. One that cannot be read, or is shorter than said, is a FAILED frame, and ends the stream."""
    end_with_operator()
    buffer = bytearray(FRAME)
    view = memoryview(buffer)
    out = sys.stdout.buffer
    used = 0

    def flush() -> None:
        nonlocal used
        out.write(view[:used])
        used = 0

    def failed(index: int, what: str) -> None:
        flush()
        payload = what.encode()
        out.write(HEADER.pack(FAILED, index, 0, len(payload)) + payload)

    try:
        for index, entry in enumerate(objects):
            try:
                with open(inside(directory, entry["path"]), "rb", buffering=0) as file:
                    file.seek(entry.get("offset", 0))
                    done = 0
                    while True:
                        left = entry["size"] - done
                        if FRAME - used < HEADER.size + min(left, MIN_PAYLOAD):
                            flush()
                        start = used + HEADER.size
                        count = file.readinto(view[start : min(FRAME, start + left)]) if left else 0
                        if left and not count:
                            failed(index, "{} bytes, the manifest says {}".format(done, entry["size"]))
                            return 1
                        HEADER.pack_into(buffer, used, DATA, index, done, count or 0)
                        used = start + (count or 0)
                        done += count or 0
                        if done == entry["size"]:
                            break
            except BrokenPipeError:
                raise
            except FileNotFoundError:
                failed(index, "missing")
                return 1
            except OSError as error:
                failed(index, "cannot be read: {}".format(error.strerror))
                return 1
        flush()
        out.write(HEADER.pack(FINISH, 0, 0, 0))
        out.flush()
    except BrokenPipeError:  # the receiver has ended, and says why on its own channel
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        return 1
    return 0


# ------------------------------------------------------------------------------------------------- the receiver


class _Problem(Exception):
    """Why the stream cannot be received. ``fields`` go to the operator."""

    def __init__(self, kind: str, **fields: Any):
        super().__init__(kind)
        self.fields = dict(fields, kind=kind)


def _locked_new_file(path: str) -> io.FileIO:
    """A new file that no sweep takes away. A copy that ends removes the directory when it is empty, and sweeps what
    is not locked yet: then make it again."""
    while True:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            file = io.FileIO(path, "x")
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.exists(path):
                return file
            file.close()


class _Arriving:
    """One object on its way in. Its temporary file is locked while its receiver lives, so that another copy can
    tell what a dead one left behind."""

    def __init__(self, directory: str, incoming: str, index: int, entry: Dict[str, Any]):
        self.entry = entry
        self.place = inside(directory, entry["path"])
        self.temporary = posixpath.join(incoming, "{}-{}-{}".format(index, os.getpid(), entry["sha256"][:16]))
        self.received = 0
        self.digest = hashlib.sha256()
        self.file = _locked_new_file(self.temporary)

    def write(self, data: memoryview) -> None:
        self.digest.update(data)
        self.received += len(data)
        while data:
            data = data[self.file.write(data) or 0 :]

    def settle(self) -> None:
        """Wait until the bytes are on the disk, then give the object its name."""
        os.fsync(self.file.fileno())
        os.makedirs(os.path.dirname(self.place), exist_ok=True)
        os.replace(self.temporary, self.place)
        self.file.close()

    def discard(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.temporary)
        self.file.close()


def _read(source: BinaryIO, view: memoryview) -> None:
    """Fill ``view``. _Problem where the stream ends before."""
    filled = 0
    while filled < len(view):
        count = source.readinto(view[filled:])  # type: ignore[attr-defined]
        if not count:
            raise _Problem("truncated")
        filled += count


class _Receiver:
    def __init__(self, directory: str, objects: Sequence[Dict[str, Any]]):
        self.directory = directory
        self.objects = objects
        self.incoming = posixpath.join(directory, INCOMING)
        self.arriving: Optional[_Arriving] = None
        self.settling: Set[Future] = set()
        self.unsettled: Set[_Arriving] = set()
        self.reported = 0
        self.spoke = time.monotonic()

    def run(self, source: BinaryIO) -> None:
        header = memoryview(bytearray(HEADER.size))
        buffer = memoryview(bytearray(FRAME))
        pool = ThreadPoolExecutor(SETTLING)
        done = 0
        try:
            while True:
                _read(source, header)
                kind, index, offset, length = HEADER.unpack(header)
                if kind == FINISH:
                    self._report()
                    break
                if length > FRAME or index >= len(self.objects):
                    raise _Problem("protocol", message="a frame of {} bytes for object {}".format(length, index))
                payload = buffer[:length]
                _read(source, payload)
                if kind == FAILED:
                    raise _Problem("source", path=self.objects[index]["path"], message=bytes(payload).decode())
                if self._take(index, offset, payload, pool):
                    done += 1
            self._wait_for(0)
            if done != len(self.objects):
                raise _Problem("truncated")
        finally:
            pool.shutdown(wait=True)
            for arriving in list(self.unsettled):
                arriving.discard()
            with contextlib.suppress(OSError):  # another stream of this copy still uses it
                os.rmdir(self.incoming)

    def _take(self, index: int, offset: int, payload: memoryview, pool: ThreadPoolExecutor) -> bool:
        """Append a frame to its object. True where that completed it."""
        entry = self.objects[index]
        if self.arriving is None:
            self.arriving = _Arriving(self.directory, self.incoming, index, entry)
            self.unsettled.add(self.arriving)
        arriving = self.arriving
        if arriving.entry is not entry or arriving.received != offset:
            raise _Problem("protocol", message="a frame for {} at {} out of order".format(entry["path"], offset))
        arriving.write(payload)
        self._progress(len(payload))
        if arriving.received < entry["size"]:
            return False
        found = arriving.digest.hexdigest()
        if arriving.received != entry["size"] or found != entry["sha256"]:
            raise _Problem("hash", path=entry["path"], message="SHA-256 is {}".format(found))
        self.arriving = None
        self._wait_for(4 * SETTLING)
        self.settling.add(pool.submit(self._settle, arriving))
        return True

    def _settle(self, arriving: _Arriving) -> None:
        arriving.settle()
        self.unsettled.discard(arriving)
        emit("object", path=arriving.entry["path"], bytes=arriving.entry["size"])

    def _wait_for(self, at_most: int) -> None:
        """Until no more than ``at_most`` objects are being settled. Raises what a settling thread raised."""
        while self.settling and len(self.settling) > at_most:
            finished, self.settling = wait(self.settling, return_when=FIRST_COMPLETED)
            for future in finished:
                future.result()

    def _progress(self, count: int) -> None:
        self.reported += count
        if self.reported >= REPORT or time.monotonic() - self.spoke > 0.2:
            self._report()

    def _report(self) -> None:
        emit("bytes", bytes=self.reported)
        self.reported, self.spoke = 0, time.monotonic()


def receive(directory: str, objects: Sequence[Dict[str, Any]]) -> int:
    """Read frames from stdin into ``directory``. Lines: ``bytes`` (since the last such line), ``object`` (verified, on
    the disk, under its own name), and at the end ``done`` or ``problem`` (kinds truncated, source, hash, full,
    protocol, system). After a problem no temporary file of this process is left; objects that were verified stay."""
    receiver = _Receiver(directory, objects)
    try:
        receiver.run(sys.stdin.buffer)
    except _Problem as problem:
        emit("problem", **problem.fields)
        return 1
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        emit("problem", kind="full" if full else "system", message=str(error), free=free_bytes(directory))
        return 1
    emit("done")
    return 0


def free_bytes(path: str) -> int:
    """Bytes that we may still write on the file system of ``path``, or of its nearest parent that exists."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    usage = os.statvfs(path)
    return usage.f_bavail * usage.f_frsize


def prepare(directory: str, manifest: Optional[str], needed: int) -> Dict[str, Any]:
    """Make ready to receive ``needed`` bytes: drop what dead copies left in ``.incoming``, make the directory if the
    bytes fit. Returns ``{free, fits, manifest}``, the last one the text of the manifest that is already there."""
    swept = _sweep(directory)
    free = free_bytes(directory)
    fits = needed <= free
    if fits:
        os.makedirs(directory, exist_ok=True)
    present = None if manifest is None else _text_or_none(posixpath.join(directory, manifest))
    return {"free": free, "fits": fits, "manifest": present, "swept": swept}


def _text_or_none(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _sweep(directory: str) -> int:
    """Remove temporary files whose receiver is dead: a living one holds their locks."""
    incoming = posixpath.join(directory, INCOMING)
    swept = 0
    try:
        names = os.listdir(incoming)
    except FileNotFoundError:
        return 0
    for name in names:
        path = posixpath.join(incoming, name)
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
                swept += 1
    with contextlib.suppress(OSError):  # a living copy works there
        os.rmdir(incoming)
    return swept


def commit(directory: str, manifest: str, text: str, objects: Sequence[Dict[str, Any]]) -> None:
    """Write the manifest, last and atomically, once every object is in its place with its size."""
    parents = {directory}
    for entry in objects:
        path = inside(directory, entry["path"])
        if os.stat(path).st_size != entry["size"]:
            raise records.RecordError("{}: not {} bytes any more".format(path, entry["size"]))
        parents.add(os.path.dirname(path))
    for parent in sorted(parents):
        records.sync_directory(parent)
    _sweep(directory)
    records.write_bytes(posixpath.join(directory, manifest), text.encode())
