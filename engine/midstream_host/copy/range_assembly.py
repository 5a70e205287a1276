"""Objects that arrive in ranges: hashed as the ranges join up, then named."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from typing import Any, Dict

from midstream_host.copy.staging import Stage, problem
from midstream_host.copy_items import CopyObject
from midstream_host.object_files import BLOCK, HASHERS, emit, open_plain


class Assembly:
    """One object whose ranges arrive in any order; hashed from its beginning."""

    def __init__(self, entry: CopyObject) -> None:
        self.entry = entry
        self.ranges: Dict[int, int] = {}  # offset -> end of ranges that do not join up yet
        self.front = 0
        self.hashed = 0
        self.busy = False
        self.digest = hashlib.sha256()

    def landed(self, offset: int, length: int) -> None:
        self.ranges[offset] = max(offset + length, self.ranges.get(offset, 0))
        while True:
            joined = [start for start in self.ranges if start <= self.front]
            if not joined:
                return
            for start in joined:
                self.front = max(self.front, self.ranges.pop(start))


class Assemblies:
    """All objects of a copy that arrive in ranges; named once their hash is verified."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._pool: Any = None  # slow to import: with the first range
        self._lock = threading.Lock()
        self._open: Dict[str, Assembly] = {}
        self._failed = False

    def landed(self, entry: CopyObject, offset: int, length: int) -> None:
        with self._lock:
            assembly = self._open.setdefault(entry["path"], Assembly(entry))
            assembly.landed(offset, length)
            if assembly.busy or assembly.front == assembly.hashed:
                return
            assembly.busy = True
            if self._pool is None:
                from concurrent.futures import ThreadPoolExecutor

                self._pool = ThreadPoolExecutor(HASHERS)
        self._pool.submit(self._hash, assembly)

    def _hash(self, assembly: Assembly) -> None:
        part, entry = self._stage.part(assembly.entry), assembly.entry
        view = memoryview(bytearray(BLOCK))
        try:
            with os.fdopen(open_plain(part), "rb", buffering=0) as file:
                while True:
                    with self._lock:
                        if assembly.front == assembly.hashed:
                            assembly.busy = False
                            break
                        end = assembly.front
                    while assembly.hashed < end:
                        count = os.preadv(file.fileno(), [view[: min(BLOCK, end - assembly.hashed)]], assembly.hashed)
                        if not count:
                            raise OSError(errno.EIO, "the part ends at {} bytes".format(assembly.hashed))
                        assembly.digest.update(view[:count])
                        assembly.hashed += count
                if assembly.hashed == entry["size"]:
                    self._settle(assembly, part, file.fileno())
        except OSError as error:
            self._failed = True
            problem(error, self._stage.directory)

    def finish(self) -> bool:
        """Wait until all that has landed is hashed.

        Return whether every object of it is complete and named. What is wrong is reported. Nothing lands afterwards.
        """
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        incomplete = [file for file in self._open.values() if file.hashed < file.entry["size"]]
        if incomplete and not self._failed:
            entry, count = incomplete[0].entry, incomplete[0].hashed
            message = "{}: {} bytes of {} have landed".format(entry["path"], count, entry["size"])
            emit("problem", kind="system", message=message)
        return not incomplete and not self._failed

    def _settle(self, assembly: Assembly, part: str, descriptor: int) -> None:
        entry, digest = assembly.entry, assembly.digest.hexdigest()
        if digest != entry["sha256"]:
            self._failed = True
            os.unlink(part)
            emit("problem", kind="hash", path=entry["path"], message="SHA-256 is {}".format(digest))
            return
        os.fsync(descriptor)
        self._stage.name(part, entry["path"])
        emit("placed", objects=[entry["path"]])
