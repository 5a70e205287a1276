"""The objects of a checkpoint as files in a directory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from midstream_core.records import MANIFEST, sync_directory, write_bytes
from midstream_engine.checkpoint.errors import CheckpointFullError
from midstream_engine.checkpoint.host_buffers import BLOCK
from midstream_engine.checkpoint.stores.mounts import check_mount

OPEN = 256  # files that stay open until they are synced, at most
SYNCERS = 16  # threads that wait for the disk, which syncs many files in little more time than one


class DirectoryObjects:
    """The objects of one checkpoint; see :class:`ObjectStore`.

    The disk starts writing each file immediately; :meth:`sync` waits for all files together, so that one commit of the
    file system's journal serves many of them.
    """

    def __init__(self, path: str) -> None:
        self.where = path
        self._unsynced: deque[int] = deque()  # descriptors: only these are sure to report a failed write
        self._made: set[str] = set()  # directories that exist
        self._expected: set[str] = set()  # paths whose read-ahead has started
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
            raise CheckpointFullError(
                f"{self.where}: no room for the checkpoint: {needed} bytes needed, {free} free; older checkpoints are "
                "unchanged (hint: free some and save again)"
            )

    def write(self, path: str, blocks: Iterable[memoryview]) -> None:
        target = self._at(path)
        parent = os.path.dirname(target)
        if parent not in self._made:  # most objects share a directory with another
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
        """Create an object.

        The caller has the run's lock, so that no process writes between check and rename.
        """
        if self.exists(path):
            raise FileExistsError(self._at(path))
        write_bytes(self._at(path), data)

    def abandon(self) -> None:
        self.clear()

    def tidy(self, listed: Collection[str]) -> None:
        """Do nothing: the directory was empty when the save began."""

    def exists(self, path: str) -> bool:
        try:
            os.stat(self._at(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True  # any other error is raised: the object may exist, and what is absent may be removed or replaced

    def size(self, path: str) -> int:
        return os.stat(self._at(path)).st_size

    def expect(self, path: str) -> None:
        with contextlib.suppress(OSError), open(self._at(path), "rb", buffering=0) as file:  # `read` reports the error
            _fetch_soon(file.fileno())
            self._expected.add(path)

    def read(
        self, path: str, into: Iterable[memoryview], take: Callable[[memoryview], object], crc32c: str = ""
    ) -> int:
        del crc32c  # what a disk returns is what it has
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
                    take(buffer[done : done + count])
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


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fetch_soon(descriptor: int) -> None:
    """Start reading the file ahead, without waiting."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)


def _start_writing(descriptor: int) -> None:
    """Start writing the file's pages to the disk, without waiting.

    A failure is left to the final sync.
    """
    if _sync_file_range is not None:
        _sync_file_range(descriptor, 0, 0, 2)  # SYNC_FILE_RANGE_WRITE


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)  # only Linux has it
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return function


_sync_file_range = _find_sync_file_range()
