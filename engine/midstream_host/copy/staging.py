"""Staging directory of a copy, at its target.

Objects are written below ``.incoming/<generation>/`` in the target directory. A generation belongs to one copy; each
of its programs has a shared lock on the generation's ``lock``. A later copy therefore recognizes the directories of
ended copies and adopts their parts: chunks with the right hash are not sent again. An object gets its name only when
size and hash are right. There is no journal: the files are the only state.

Nothing is written through a link. Below the target directory no symbolic link is followed, neither to a directory nor
to a file. An object is never written in place, only replaced by name, so that objects which other trees share by hard
links do not change.
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
from functools import partial
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from midstream_core.json_types import JsonValue
from midstream_host.copy.stdin_lines import IDLE_TIMEOUT
from midstream_host.copy_items import CopyObject
from midstream_host.object_files import (
    INCOMING,
    LastFolder,
    NotPlainError,
    descriptor_sha256,
    emit,
    open_parent,
    open_plain,
)

LOCK = "lock"
CHUNK = 8 << 20  # bytes; a stream that was cut sends at most so many again
SYNC_THREADS = 16  # fsync in parallel: a file system's journal commits many files together
SYNC_OBJECTS = 64  # synced by one thread before the next ones are taken
FIRST_SYNCED = 4  # objects that show whether syncs wait for the disk
SLACK = 1 << 20  # bytes of the disk beside the objects: manifest and directories
LOCK_TIMEOUT = IDLE_TIMEOUT + 5.0  # seconds; receivers of an ended copy exit after IDLE_TIMEOUT


class Stage:
    """Staging directory of one generation; created with the first write."""

    def __init__(self, directory: str, generation: str) -> None:
        if not generation.isalnum():
            raise ValueError("generation {!r}".format(generation))
        self.directory = directory
        self.incoming = posixpath.join(directory, INCOMING)
        self.here = posixpath.join(self.incoming, generation)
        self._lock = -1
        self._has_left = False
        self._folder = -1  # descriptor of ``here``, once `place` needs it
        self._written = "written-{}".format(os.urandom(8).hex())
        self._entering = threading.Lock()  # one descriptor: a second would hold the lock against `leave`

    def enter(self) -> None:
        """Lock the directory. Idempotent, any thread. Raises OSError after `leave`."""
        with self._entering:
            if self._has_left:
                raise OSError(errno.ECANCELED, "this copy has ended")
            while self._lock < 0:
                lock = self._opened()
                fcntl.flock(lock, fcntl.LOCK_SH)
                # The last program of this copy that left, or a later copy, may have removed the directory since.
                if os.fstat(lock).st_nlink:
                    self._lock = lock
                else:
                    os.close(lock)

    def _opened(self) -> int:
        while True:
            os.makedirs(self.directory, exist_ok=True)
            # Another generation that leaves removes the shared parent directory where it is empty.
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
        """Unlock the directory.

        The last program removes it unless it has parts of objects.
        """
        with self._entering:
            self._has_left = True
            if self._folder >= 0:
                os.close(self._folder)
                self._folder = -1
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

    def exists(self) -> bool:
        """Return whether parts were adopted or a receiver has begun: the directory exists."""
        return os.path.isdir(self.here)

    def part(self, entry: CopyObject) -> str:
        """Return the path of an object's part, the same in each copy of these bytes."""
        self.enter()
        return posixpath.join(self.here, part_name(entry))

    def open_part(self, part: str, fresh: bool) -> int:
        """Open a part for writing. ``fresh``: discard the bytes of an earlier copy.

        Raises NotPlainError where it is a symbolic link or has a second hard link.
        """
        if fresh:
            # No other process has a name of a file that this call creates.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            try:
                return os.open(part, flags, 0o644)
            except FileExistsError:
                os.unlink(part)
                return os.open(part, flags, 0o644)
        descriptor = open_plain(part, part, os.O_WRONLY | os.O_CREAT)
        if os.fstat(descriptor).st_nlink != 1:
            os.close(descriptor)
            raise NotPlainError(part)
        return descriptor

    def name(self, part: str, path: str, folder: Optional[LastFolder] = None) -> None:
        """Move a verified object to its name, ``path`` below the directory.

        Raises NotPlainError where the path has a link. ``folder`` is the caller's, where it names many objects.
        """
        own = folder or LastFolder(self.directory, create=True)
        try:
            parent, name = own.parent(path)
            os.replace(part, name, dst_dir_fd=parent)
        finally:
            if folder is None:
                own.close()

    def place(self, path: str, data: Union[bytes, memoryview], folder: LastFolder) -> None:
        """Write and name a verified object at once, one thread at a time.

        Raises NotPlainError where the path has a link. ``folder`` is as in `name`.
        """
        self.enter()
        if self._folder < 0:
            self._folder = os.open(self.here, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        parent, name = folder.parent(path)
        part = self._written
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(part, flags, 0o644, dir_fd=self._folder)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.replace(part, name, src_dir_fd=self._folder, dst_dir_fd=parent)
        except BaseException:
            os.unlink(part, dir_fd=self._folder)
            raise
        finally:
            os.close(descriptor)

    def write(self, name: str, data: bytes) -> None:
        """Write a file of the tree atomically, through the staging directory."""
        self.enter()
        part = posixpath.join(self.here, "written")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        with os.fdopen(open_plain(part, part, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.name(part, name)

    def adopt(self, objects: Sequence[CopyObject]) -> None:
        """Adopt the parts of these objects that ended copies left; remove their others.

        The directory of a running copy is left alone. Waits `LOCK_TIMEOUT` for the receivers of an ended one.
        """
        import shutil  # slow to import, and receivers do not need it

        try:
            if os.path.islink(self.incoming):
                raise NotPlainError(self.incoming)
            generations = [name for name in os.listdir(self.incoming) if name != posixpath.basename(self.here)]
        except FileNotFoundError:
            return
        names = {part_name(entry) for entry in objects}
        deadline = time.monotonic() + LOCK_TIMEOUT
        for name in generations:
            old = posixpath.join(self.incoming, name)
            if os.path.islink(old) or not os.path.isdir(old):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(old)
                continue
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                path = posixpath.join(old, LOCK)
                with os.fdopen(open_plain(path, path, os.O_RDWR | os.O_CREAT), "r+b") as lock:
                    if not _locked(lock.fileno(), deadline):
                        continue
                    for part in os.listdir(old):
                        if part in names and is_part(posixpath.join(old, part)):
                            self.enter()
                            os.replace(posixpath.join(old, part), posixpath.join(self.here, part))
                    shutil.rmtree(old, ignore_errors=True)


def is_part(path: str) -> bool:
    """Return whether it is a regular file without other hard links: safe to write to."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def part_name(entry: CopyObject) -> str:
    return "{}-{}".format(hashlib.sha256(entry["path"].encode()).hexdigest()[:16], entry["sha256"][:16])


def _locked(descriptor: int, deadline: float) -> bool:
    reported = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            if not reported:
                emit("waiting", message="another copy to this directory has not ended yet")
                reported = True
            time.sleep(0.05)


def sync_directory(path: str) -> None:
    """Sync a directory, where the file system supports it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _sync_folder(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EROFS, errno.ENOTSUP):
            raise


def sync_objects(directory: str, objects: Sequence[CopyObject]) -> None:
    """Sync every object (``{path, size}``), and the folders around it.

    Raises ValueError where one has another size.
    """
    synced: Dict[str, object] = {}  # folders

    def leave(path: str, descriptor: int) -> None:
        this = object()
        if synced.setdefault(path, this) is this:  # no other thread was here before
            _sync_folder(descriptor)

    def sync(entries: Sequence[CopyObject]) -> None:
        # A folder's name is an entry of the folder above it: all are synced as they are left.
        folder = LastFolder(directory, leaving=leave)
        try:
            for entry in entries:
                parent, name = folder.parent(entry["path"])
                descriptor = open_plain(name, posixpath.join(directory, entry["path"]), dir_fd=parent)
                try:
                    if os.fstat(descriptor).st_size != entry["size"]:
                        path = posixpath.join(directory, entry["path"])
                        raise ValueError("{}: no longer {} bytes".format(path, entry["size"]))
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        finally:
            folder.close()

    # One object after another in a folder. Threads share the interpreter, so they pay off only where syncs wait for the
    # disk, which answers many at once: 4,000 clean files take one thread 0.04 s and sixteen 0.08 to 0.12 s.
    ordered = sorted(objects, key=lambda entry: entry["path"])
    lots = _lots(ordered, max(1, min(SYNC_OBJECTS, len(ordered) // SYNC_THREADS)))
    if any(_waits(partial(sync, lot)) for lot in lots):
        from concurrent.futures import ThreadPoolExecutor  # receivers do not need it

        with ThreadPoolExecutor(SYNC_THREADS) as pool:
            for _ in pool.map(sync, lots):
                pass


def _lots(objects: Sequence[CopyObject], size: int) -> Iterator[Sequence[CopyObject]]:
    """Yield objects in groups of ``size``, the first ones in a smaller group."""
    at, end = 0, min(FIRST_SYNCED, size)
    while at < len(objects):
        yield objects[at:end]
        at, end = end, end + size


def _waits(work: Callable[[], None]) -> bool:
    """Do ``work``; return whether most of the time it waited."""
    began, used = time.monotonic(), time.thread_time()
    work()
    return time.monotonic() - began > 2 * (time.thread_time() - used)


def free_bytes(path: str) -> int:
    """Free bytes of the file system of ``path`` or of its nearest existing parent."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    usage = os.statvfs(path)
    return usage.f_bavail * usage.f_frsize


def problem(error: OSError, directory: str, report: Callable[..., None] = emit) -> None:
    """Report an error of the disk to the app."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    report("problem", kind="full" if full else "system", message=str(error), free=free_bytes(directory))


def chunks(size: int, chunk: int = CHUNK) -> Iterator[Tuple[int, int]]:
    """Yield (offset, length) of the chunks of an object."""
    for offset in range(0, size, chunk):
        yield offset, min(chunk, size - offset)


def chunk_hashes(path: str, size: int) -> List[List[JsonValue]]:
    """Hash the complete chunks of a part, without holes: ``[offset, length, sha256]``."""
    hashes: List[List[JsonValue]] = []
    with os.fdopen(open_plain(path), "rb", buffering=0) as file:
        end = os.fstat(file.fileno()).st_size
        for offset, length in chunks(size):
            if offset + length > end:
                break
            if not _is_hole(file.fileno(), offset, length):
                hashes.append([offset, length, descriptor_sha256(file.fileno(), offset, length)])
    return hashes


def _is_hole(descriptor: int, offset: int, length: int) -> bool:
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA) >= offset + length
    except OSError as error:
        return error.errno == errno.ENXIO  # no data from here on; EINVAL: the file system does not support it
