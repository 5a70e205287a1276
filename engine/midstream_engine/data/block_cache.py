"""The local block cache: objects of remote token caches on this machine's disk.

Objects are found by their SHA-256.

The cache has a size limit and removes the least recently used objects. An object is fetched into a file of another
name, hashed, and renamed, so it is complete or absent. Each process hashes a file once before it uses it, because a
power cut may leave a file of the right length with wrong content. Several processes share one cache: a lock lets one of
them fetch an object, and a removed file stays readable for a process that has mapped it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import IO

import numpy as np

from midstream_core.records import ObjectEntry
from midstream_engine.data.errors import DataError

log = logging.getLogger(__name__)
FETCHES = 8  # objects fetched at a time
_PIECE = 1 << 20  # bytes hashed and written at a time
_PARTIAL = ".partial-"
_ABANDONED = 3600.0  # seconds after which a partial file is removed
_FRESH = 60.0  # seconds between two updates of a file's time of use

Open = Callable[[], AbstractContextManager[IO[bytes]]]


class BlockCache:
    """At most ``limit`` bytes under ``directory``. Safe for threads and processes."""

    def __init__(self, directory: str, limit: int) -> None:
        self.directory, self.limit = directory, limit
        os.makedirs(directory, exist_ok=True)
        self._mapped: OrderedDict[str, tuple[np.memmap, float]] = OrderedDict()  # and when its time of use was updated
        self._lock = threading.Lock()

    def get(self, entry: ObjectEntry, source: Open, name: str) -> np.ndarray:
        """Return the content of ``entry``, from the disk or through ``source``.

        The content is uint8 [size].

        ``name`` is for messages.

        Raises:
            DataError: The object cannot be fetched, differs from ``entry``, or exceeds the limit.
        """
        with self._lock:
            data = self._mapped.get(entry.sha256)
            if data is not None:
                self._mapped.move_to_end(entry.sha256)
                if time.monotonic() - data[1] > _FRESH:
                    self._mapped[entry.sha256] = data[0], self._note(entry)
                return data[0]
        if entry.size > self.limit:
            raise DataError(
                f"data.block_cache_bytes: {self.limit} is less than one object of the token cache ({entry.size} bytes)"
            )
        mapped = self._open(entry)
        if mapped is None:
            with self._locked(entry.sha256[:2]):
                mapped = self._open(entry)  # another process may have fetched it
                if mapped is None:
                    mapped = self._fetch(entry, source, name)
        with self._lock:
            self._mapped[entry.sha256] = mapped, self._note(entry)
            while sum(len(array) for array, _ in self._mapped.values()) > self.limit:
                self._mapped.popitem(last=False)
        return mapped

    def get_all(self, requested: list[tuple[ObjectEntry, Open, str]]) -> None:
        """Fetch several objects at a time. Raises the first error."""
        with self._lock:
            missing = [request for request in requested if request[0].sha256 not in self._mapped]
        if len(missing) < 2:
            return  # `get` fetches it
        with ThreadPoolExecutor(min(FETCHES, len(missing)), "fetch") as pool:
            for done in [pool.submit(self.get, *request) for request in missing]:
                done.result()

    def _path(self, entry: ObjectEntry) -> str:
        return os.path.join(self.directory, entry.sha256)

    def _note(self, entry: ObjectEntry) -> float:
        """Update the file's time of use."""
        with contextlib.suppress(FileNotFoundError):  # another process may have removed it
            os.utime(self._path(entry))
        return time.monotonic()

    def _open(self, entry: ObjectEntry) -> np.memmap | None:
        """Map the file if it is sound, else remove it."""
        try:
            with open(self._path(entry), "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                if digest == entry.sha256:
                    return np.memmap(file, np.uint8, "r")
        except FileNotFoundError:
            return None
        log.warning("%s is damaged and will be fetched again", self._path(entry))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(entry))
        return None

    def _fetch(self, entry: ObjectEntry, source: Open, name: str) -> np.memmap:
        try:
            with self._locked("room"):
                self._make_room(entry.size)
            descriptor, partial = tempfile.mkstemp(prefix=_PARTIAL, dir=self.directory)
            try:
                digest, size = hashlib.sha256(), 0
                with os.fdopen(descriptor, "wb") as file, source() as stream:
                    while size < entry.size and (piece := stream.read(min(_PIECE, entry.size - size))):
                        digest.update(piece)
                        file.write(piece)
                        size += len(piece)
                if size != entry.size or digest.hexdigest() != entry.sha256:
                    raise DataError(
                        f"{name}: {size} bytes with SHA-256 {digest.hexdigest()[:12]}, in the manifest "
                        f"{entry.size} with {entry.sha256[:12]}: this token cache is damaged (hint: remove it there)"
                    )
                mapped = np.memmap(partial, np.uint8, "r")  # before others can find the file, and remove it
                os.replace(partial, self._path(entry))
                return mapped
            except BaseException:
                os.unlink(partial)
                raise
        except OSError as error:
            raise DataError(f"{name}: cannot be stored in {self.directory}: {error}") from None

    def _make_room(self, size: int) -> None:
        """Remove the least recently used objects until ``size`` bytes fit.

        Abandoned partial files are removed as well.
        """
        files: list[tuple[float, int, str]] = []
        for item in os.scandir(self.directory):
            with contextlib.suppress(FileNotFoundError):
                status = item.stat()
                if item.name.startswith(_PARTIAL) and time.time() - status.st_mtime > _ABANDONED:
                    os.unlink(item.path)
                elif not item.name.startswith(".lock-"):
                    files.append((status.st_mtime, status.st_size, item.path))
        total = sum(file[1] for file in files)
        for _, freed, path in sorted(files):
            if total + size <= self.limit:
                break
            if not os.path.basename(path).startswith(_PARTIAL):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                total -= freed

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        descriptor = os.open(os.path.join(self.directory, f".lock-{name}"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
