"""The local block cache: objects of token caches that lie elsewhere, on this machine's disk, by their SHA-256.

Bounded: what was not used for longest goes first. An object is fetched into a file of another name, hashed as it comes,
and renamed: it is whole or absent. Each process hashes what it finds once before it trusts it, because a power cut may
leave a file of the right length with the wrong content. Several processes share one cache: a lock lets one of them
fetch an object, and a file that another one removes stays readable for who has it mapped.
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

from midstream_engine.data.errors import DataError
from midstream_engine.records import ObjectEntry

log = logging.getLogger(__name__)
FETCHES = 8  # objects that are fetched at a time
_PIECE = 1 << 20  # bytes that are hashed and written at a time
_PARTIAL = ".partial-"
_ABANDONED = 3600.0  # seconds after which a partial file belongs to nobody
_FRESH = 60.0  # seconds during which a use need not be noted again

Open = Callable[[], AbstractContextManager[IO[bytes]]]


class BlockCache:
    """At most ``limit`` bytes under ``directory``. Safe for threads and for processes."""

    def __init__(self, directory: str, limit: int):
        self.directory, self.limit = directory, limit
        os.makedirs(directory, exist_ok=True)
        self._mapped: OrderedDict[str, tuple[np.memmap, float]] = OrderedDict()  # and when its use was noted
        self._lock = threading.Lock()

    def get(self, entry: ObjectEntry, source: Open, name: str) -> np.ndarray:
        """The content of ``entry``, uint8 [size], from the disk or through ``source``; ``name`` is for messages.

        Raises DataError where it cannot be fetched, is not what ``entry`` says, or does not fit under the limit.
        """
        with self._lock:
            found = self._mapped.get(entry.sha256)
            if found is not None:
                self._mapped.move_to_end(entry.sha256)
                if time.monotonic() - found[1] > _FRESH:
                    self._mapped[entry.sha256] = found[0], self._note(entry)
                return found[0]
        if entry.size > self.limit:
            raise DataError(
                f"data.block_cache_bytes: {self.limit} is less than one object of the token cache ({entry.size} bytes)"
            )
        mapped = self._open(entry)
        if mapped is None:
            with self._locked(entry.sha256[:2]):
                mapped = self._open(entry)  # by another process
                if mapped is None:
                    self._fetch(entry, source, name)
                    mapped = np.memmap(self._path(entry), np.uint8, "r")
        with self._lock:
            self._mapped[entry.sha256] = mapped, self._note(entry)
            while sum(len(array) for array, _ in self._mapped.values()) > self.limit:
                self._mapped.popitem(last=False)
        return mapped

    def get_all(self, wanted: list[tuple[ObjectEntry, Open, str]]) -> None:
        """Bring several at a time. Raises the first error."""
        with self._lock:
            missing = [one for one in wanted if one[0].sha256 not in self._mapped]
        if len(missing) < 2:
            return  # who reads it brings it
        with ThreadPoolExecutor(min(FETCHES, len(missing)), "fetch") as pool:
            for done in [pool.submit(self.get, *one) for one in missing]:
                done.result()

    def _path(self, entry: ObjectEntry) -> str:
        return os.path.join(self.directory, entry.sha256)

    def _note(self, entry: ObjectEntry) -> float:
        """That it is in use. It may just have been removed by another process."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._path(entry))
        return time.monotonic()

    def _open(self, entry: ObjectEntry) -> np.memmap | None:
        """What is on the disk where it is sound; what is not sound is removed."""
        try:
            with open(self._path(entry), "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                if digest == entry.sha256:
                    return np.memmap(file, np.uint8, "r")
        except FileNotFoundError:
            return None
        log.warning("%s is damaged; fetched again", self._path(entry))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(entry))
        return None

    def _fetch(self, entry: ObjectEntry, source: Open, name: str) -> None:
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
                        f"{name}: {size} bytes with SHA-256 {digest.hexdigest()[:12]} where its manifest says "
                        f"{entry.size} with {entry.sha256[:12]}: this token cache is damaged; remove it there"
                    )
                os.replace(partial, self._path(entry))
            except BaseException:
                os.unlink(partial)
                raise
        except OSError as error:
            raise DataError(f"{name}: cannot be kept in {self.directory}: {error}") from None

    def _make_room(self, size: int) -> None:
        """Remove what was used longest ago until ``size`` more bytes fit, and partial files that nobody writes."""
        found: list[tuple[float, int, str]] = []
        for item in os.scandir(self.directory):
            with contextlib.suppress(FileNotFoundError):
                status = item.stat()
                if item.name.startswith(_PARTIAL) and time.time() - status.st_mtime > _ABANDONED:
                    os.unlink(item.path)
                elif not item.name.startswith(".lock-"):
                    found.append((status.st_mtime, status.st_size, item.path))
        total = sum(one[1] for one in found)
        for _, freed, path in sorted(found):
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
