"""Checkpoints as files below a directory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from midstream_engine.checkpoint.errors import CheckpointFull
from midstream_engine.checkpoint.saving.host_buffers import BLOCK
from midstream_engine.checkpoint.stores.checkpoint_store import TRASH
from midstream_engine.checkpoint.stores.mounts import check_mount
from midstream_engine.records import MANIFEST, sync_directory, write_bytes

OPEN = 256  # files that are kept open until they are synced, at most
SYNCERS = 16  # threads that wait for the disk: it syncs many files in little more time than one


class Directory:
    """The objects of one checkpoint.

    What is written is on its way to the disk at once, but waited for in :meth:`sync` alone, for all files together:
    a file system's journal then serves many of them with one commit.
    """

    def __init__(self, path: str):
        self.where = path
        self._unsynced: deque[int] = deque()  # descriptors: only those are sure to report that a write went wrong
        self._made: set[str] = set()  # directories that are there
        self._expected: set[str] = set()  # what the disk was asked for ahead of being read
        self._lock = threading.Lock()

    def close(self) -> None:
        while self._unsynced:
            os.close(self._unsynced.popleft())

    __del__ = close

    def _at(self, path: str) -> str:
        return os.path.join(self.where, path)

    def prepare(self, needed: int) -> None:
        if os.path.lexists(self.where):
            shutil.rmtree(self.where)
        os.makedirs(self.where)
        check_mount(self.where)
        free = shutil.disk_usage(self.where).free
        if needed > free:
            raise CheckpointFull(
                f"{self.where}: no room for the checkpoint: {needed} bytes needed, {free} free; "
                "free some there and save again; older checkpoints are untouched"
            )

    def write(self, path: str, blocks: Iterable[memoryview]) -> None:
        target = self._at(path)
        parent = os.path.dirname(target)
        if parent not in self._made:  # most objects lie in a directory that another one has made
            os.makedirs(parent, exist_ok=True)
            self._made.add(parent)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            for block in blocks:
                while block:
                    block = block[os.write(descriptor, block) :]
            _start_writing(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        with self._lock:
            self._unsynced.append(descriptor)
            oldest = self._unsynced.popleft() if len(self._unsynced) > OPEN else None
        if oldest is not None:
            _sync(oldest)

    def sync(self) -> None:
        with self._lock:
            descriptors, self._unsynced = self._unsynced, deque()
        directories = [parent for parent, _, _ in os.walk(self.where)]
        with ThreadPoolExecutor(SYNCERS, thread_name_prefix="sync") as pool:
            waiting = [pool.submit(_sync, descriptor) for descriptor in descriptors]
            waiting += [pool.submit(sync_directory, directory) for directory in directories]
        for future in waiting:
            future.result()
        sync_directory(os.path.dirname(self.where))

    def commit(self, path: str, data: bytes) -> None:
        """The caller holds the run's lock, so that nobody comes between the look and the renaming."""
        if os.path.exists(self._at(path)):
            raise FileExistsError(self._at(path))
        write_bytes(self._at(path), data)

    def abandon(self) -> None:
        self.clear()

    def tidy(self, listed: Collection[str]) -> None:
        """Nothing: it was empty in the beginning."""

    def exists(self, path: str) -> bool:
        return os.path.exists(self._at(path))

    def size(self, path: str) -> int:
        return os.stat(self._at(path)).st_size

    def expect(self, path: str) -> None:
        with contextlib.suppress(OSError), open(self._at(path), "rb", buffering=0) as file:  # reading will tell
            _fetch_soon(file.fileno())
            self._expected.add(path)

    def read(self, path: str, into: Iterable[memoryview], each: Callable[[memoryview], object]) -> int:
        total = 0
        with open(self._at(path), "rb", buffering=0) as file:
            if path not in self._expected:
                _fetch_soon(file.fileno())  # all of it, while its first block is hashed
            for buffer in into:
                done = 0
                while done < len(buffer):
                    count = file.readinto(buffer[done : done + BLOCK])
                    if not count:
                        return total
                    each(buffer[done : done + count])
                    done += count
                    total += count
        return total

    def get(self, path: str) -> bytes:
        with open(self._at(path), "rb") as file:
            return file.read()

    def names(self) -> list[str]:
        return [
            os.path.relpath(os.path.join(parent, name), self.where)
            for parent, _, files in os.walk(self.where)
            for name in files
        ]

    def clear(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._at(MANIFEST))
            sync_directory(self.where)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.where)


class DirectoryCheckpoints:
    """A folder of checkpoints. The trash is a renamed directory."""

    def __init__(self, path: str):
        self._path = path

    def _at(self, name: str) -> str:
        return os.path.join(self._path, name)

    def names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def store(self, name: str) -> Directory:
        return Directory(self._at(name))

    def set_aside(self, name: str) -> None:
        os.rename(self._at(name), self._at(TRASH + name))

    def bring_back(self, name: str) -> bool:
        # Without its manifest it is half deleted already.
        if os.path.exists(self._at(name)) or not os.path.exists(os.path.join(self._at(TRASH + name), MANIFEST)):
            return False
        os.rename(self._at(TRASH + name), self._at(name))
        return True

    def empty(self, name: str) -> None:
        Directory(self._at(TRASH + name)).clear()


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fetch_soon(descriptor: int) -> None:
    """Have the disk begin to read the whole file, and do not wait for it."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)


def _start_writing(descriptor: int) -> None:
    """Have the disk begin with what was written, and do not wait for it. What it refuses is done in the end."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, 0, 0, 2)  # SYNC_FILE_RANGE_WRITE


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)  # Linux alone has it
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return function


_sync_file_range = _find_sync_file_range()
