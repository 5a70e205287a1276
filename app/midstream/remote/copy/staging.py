"""Where what arrives is put together, at the target of a copy.

What arrives is written under ``.incoming/<generation>/`` below the target directory; a generation belongs to one copy,
and each of its programs holds a shared lock on the generation's ``lock``. So a later copy can tell what dead ones left
behind, and takes over their parts: chunks of them whose hash is the source's are not sent again. An object takes its
own name only when size and hash agree. There is no journal: what lies on the disk is all that is known.

Nothing is written through a link. Below the target directory no symbolic link is followed, neither to a directory nor
to a file; a part is a file of its own (an object is never written in place, only replaced by name), so objects that
other trees share by hard links stay as they are.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import posixpath
import stat
import threading
import time
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from midstream.remote.copy.object_files import (
    INCOMING,
    LastFolder,
    NotPlain,
    descriptor_sha256,
    emit,
    inside,
    open_parent,
    open_plain,
)
from midstream.remote.copy.stdin_lines import SILENCE

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
                return self._lock_file()

    def _lock_file(self) -> int:
        path = posixpath.join(INCOMING, posixpath.basename(self.here), LOCK)
        parent, name = open_parent(self.directory, path, create=True)
        try:
            return open_plain(name, posixpath.join(self.here, LOCK), os.O_RDWR | os.O_CREAT, dir_fd=parent)
        finally:
            os.close(parent)

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

    def open_part(self, part: str, fresh: bool) -> int:
        """A descriptor for writing a part. ``fresh``: without what an earlier copy left of it. NotPlain where it is a
        link, or has another name too."""
        flags = os.O_WRONLY | os.O_CREAT | (os.O_EXCL if fresh else 0)
        try:
            descriptor = open_plain(part, part, flags)
        except FileExistsError:
            os.unlink(part)
            descriptor = open_plain(part, part, flags)
        if os.fstat(descriptor).st_nlink != 1:
            os.close(descriptor)
            raise NotPlain(part)
        return descriptor

    def name(self, part: str, path: str, folder: Optional[LastFolder] = None) -> None:
        """Give an object that was verified its name: ``path`` below the directory. NotPlain where a link is in it.
        ``folder`` is the caller's own, where it names many."""
        own = folder or LastFolder(self.directory, create=True)
        try:
            parent, name = own.parent(path)
            os.replace(part, name, dst_dir_fd=parent)
        finally:
            if folder is None:
                own.close()

    def write(self, name: str, data: bytes) -> None:
        """A file of the tree, atomically. What a kill leaves of it lies in the staging directory."""
        self.enter()
        part = posixpath.join(self.here, "written")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        with os.fdopen(open_plain(part, part, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.name(part, name)

    def adopt(self, objects: Sequence[Dict[str, Any]]) -> None:
        """Take over what dead copies left of these objects, and remove what else they left. One that lives keeps its
        own; receivers of a dead one may need a while to notice."""
        import shutil  # it costs more than all the rest, and a receiver does without

        try:
            if os.path.islink(self.incoming):
                raise NotPlain(self.incoming)
            generations = [name for name in os.listdir(self.incoming) if name != posixpath.basename(self.here)]
        except FileNotFoundError:
            return
        wanted = {part_name(entry) for entry in objects}
        deadline = time.monotonic() + LATE
        for name in generations:
            old = posixpath.join(self.incoming, name)
            if os.path.islink(old) or not os.path.isdir(old):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(old)
                continue
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path = posixpath.join(old, LOCK)
                with os.fdopen(open_plain(path, path, os.O_RDWR | os.O_CREAT), "r+b") as lock:
                    if not _taken(lock.fileno(), deadline):
                        continue
                    for part in os.listdir(old):
                        if part in wanted and is_part(posixpath.join(old, part)):
                            self.enter()
                            os.replace(posixpath.join(old, part), posixpath.join(self.here, part))
                    shutil.rmtree(old, ignore_errors=True)


def is_part(path: str) -> bool:
    """Whether it is a regular file with no other name: what may be written into."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1


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
        descriptor = open_plain(path)  # the folders were looked at as it was named; nothing is written here
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
    with os.fdopen(open_plain(path), "rb", buffering=0) as file:
        end = os.fstat(file.fileno()).st_size
        for offset, length in chunks(size):
            if offset + length > end:
                break
            if not _is_hole(file.fileno(), offset, length):
                found.append([offset, length, descriptor_sha256(file.fileno(), offset, length)])
    return found


def _is_hole(descriptor: int, offset: int, length: int) -> bool:
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA) >= offset + length
    except OSError as error:
        return error.errno == errno.ENXIO  # no data from here on; EINVAL: nothing is known
