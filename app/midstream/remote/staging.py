"""Where what arrives is put together, at the target of a copy.

What arrives is written under ``.incoming/<generation>/`` below the target directory; a generation belongs to one copy,
and each of its programs holds a shared lock on the generation's ``lock``. So a later copy can tell what dead ones left
behind, and takes over their parts: chunks of them whose hash is the source's are not sent again. An object takes its
own name only when size and hash agree. There is no journal: what lies on the disk is all that is known.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import posixpath
import threading
import time
from typing import Any, Dict, Iterator, List, Sequence, Set, Tuple

from midstream.remote.files import INCOMING, emit, file_sha256, inside
from midstream.remote.lines import SILENCE

LOCK = "lock"
CHUNK = 8 << 20  # bytes: what is sent again at most of each stream that was cut
SYNCERS = 16  # threads that wait for the disk: a journal commits many files at once
SLACK = 1 << 20  # bytes of the disk beside the objects: manifest and directories
LATE = SILENCE + 5.0  # seconds that receivers of a dead copy may take to notice


class Stage:
    """One generation of arrivals. Made when something is first written."""

    def __init__(self, directory: str, generation: str):
        if not generation.isalnum():
            raise ValueError("generation {!r}".format(generation))
        self.directory = directory
        self.incoming = posixpath.join(directory, INCOMING)
        self.here = posixpath.join(self.incoming, generation)
        self._lock = -1
        self._left = False
        self._entering = threading.Lock()  # one descriptor: a second would hold the lock against `leave`
        self._parents: Set[str] = set()

    def enter(self) -> None:
        """Idempotent; several threads may. OSError once it was left."""
        with self._entering:
            if self._left:
                raise OSError(errno.ECANCELED, "this copy has ended")
            if self._lock < 0:
                self._lock = self._opened()
                fcntl.flock(self._lock, fcntl.LOCK_SH)

    def _opened(self) -> int:
        while True:
            os.makedirs(self.directory, exist_ok=True)
            # Another generation that leaves takes the directory that both share away with it, where it is empty.
            with contextlib.suppress(FileNotFoundError):
                os.makedirs(self.here, exist_ok=True)
                return os.open(posixpath.join(self.here, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def leave(self) -> None:
        """Whoever goes last takes the directory away, unless parts of objects are left in it. There is no way back."""
        with self._entering:
            self._left = True
            if self._lock < 0:
                return
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.listdir(self.here) == [LOCK]:
                    os.unlink(posixpath.join(self.here, LOCK))
                    os.rmdir(self.here)
                    os.rmdir(self.incoming)
            os.close(self._lock)
            self._lock = -1

    def part(self, entry: Dict[str, Any]) -> str:
        """Where an object is put together. The same for every copy of the same bytes to the same name."""
        self.enter()
        return posixpath.join(self.here, part_name(entry))

    def name(self, part: str, place: str) -> None:
        """Give an object that was verified its name."""
        parent = posixpath.dirname(place)
        if parent not in self._parents:
            os.makedirs(parent, exist_ok=True)
            self._parents.add(parent)
        os.replace(part, place)

    def write(self, name: str, data: bytes) -> None:
        """A file of the tree, atomically. What a kill leaves of it lies in the staging directory."""
        self.enter()
        part = posixpath.join(self.here, "written")
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.name(part, inside(self.directory, name))

    def adopt(self, objects: Sequence[Dict[str, Any]]) -> None:
        """Take over what dead copies left of these objects, and remove what else they left. One that lives keeps its
        own; receivers of a dead one may need a while to notice."""
        import shutil  # it costs more than all the rest, and a receiver does without

        try:
            generations = [name for name in os.listdir(self.incoming) if name != posixpath.basename(self.here)]
        except FileNotFoundError:
            return
        wanted = {part_name(entry) for entry in objects}
        deadline = time.monotonic() + LATE
        for name in generations:
            old = posixpath.join(self.incoming, name)
            if not os.path.isdir(old):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(old)
                continue
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                with open(posixpath.join(old, LOCK), "ab") as lock:
                    if not _taken(lock.fileno(), deadline):
                        continue
                    for part in os.listdir(old):
                        if part in wanted:
                            self.enter()
                            os.replace(posixpath.join(old, part), posixpath.join(self.here, part))
                    shutil.rmtree(old, ignore_errors=True)


def part_name(entry: Dict[str, Any]) -> str:
    return "{}-{}".format(hashlib.sha256(entry["path"].encode()).hexdigest()[:16], entry["sha256"][:16])


def _taken(descriptor: int, deadline: float) -> bool:
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            if not told:
                emit("waiting", message="another copy to this directory has not ended yet")
                told = True
            time.sleep(0.05)


def sync_directory(path: str) -> None:
    """Wait until the names in a directory are on the disk, where the file system can be asked."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EROFS, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def sync_objects(directory: str, objects: Sequence[Dict[str, Any]]) -> None:
    """Wait until every object (``{path, size}``) is on the disk under its name. ValueError: it has another size."""
    from concurrent.futures import ThreadPoolExecutor  # a receiver does without

    def sync(entry: Dict[str, Any]) -> str:
        path = inside(directory, entry["path"])
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size != entry["size"]:
                raise ValueError("{}: not {} bytes any more".format(path, entry["size"]))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return posixpath.dirname(path)

    with ThreadPoolExecutor(SYNCERS) as pool:
        parents = {directory, *pool.map(sync, objects)}
    for parent in sorted(parents):
        sync_directory(parent)


def free_bytes(path: str) -> int:
    """Bytes that we may still write on the file system of ``path``, or of its nearest parent that exists."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    usage = os.statvfs(path)
    return usage.f_bavail * usage.f_frsize


def problem(error: OSError, directory: str) -> None:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    emit("problem", kind="full" if full else "system", message=str(error), free=free_bytes(directory))


def chunks(size: int, chunk: int = CHUNK) -> Iterator[Tuple[int, int]]:
    """(offset, length) of the chunks of an object."""
    for offset in range(0, size, chunk):
        yield offset, min(chunk, size - offset)


def chunk_hashes(path: str, size: int) -> List[List[Any]]:
    """``[offset, length, sha256]`` of the chunks that a part may hold: whole ones before its end, holes left out."""
    found = []
    with open(path, "rb", buffering=0) as file:
        end = os.fstat(file.fileno()).st_size
        for offset, length in chunks(size):
            if offset + length > end:
                break
            if not _is_hole(file.fileno(), offset, length):
                found.append([offset, length, file_sha256(path, offset, length)])
    return found


def _is_hole(descriptor: int, offset: int, length: int) -> bool:
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA) >= offset + length
    except OSError as error:
        return error.errno == errno.ENXIO  # no data from here on; EINVAL: nothing is known
