"""Reading of a checkpoint while its objects arrive, before its manifest exists.

A copy gives an object its name once it is complete, and the manifest its name last. Objects are read into their arrays
and hashed before that; the restore compares those hashes with the manifest's, and reads the other objects.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from jax.sharding import Sharding

from midstream_core.attempt.errors import CheckpointError
from midstream_core.records import ArrayEntry, Manifest, ObjectEntry
from midstream_engine.checkpoint import zarr
from midstream_engine.checkpoint.boxes import Box, volume
from midstream_engine.checkpoint.chunk_grid import chunks_of
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.host_buffers import BufferPool
from midstream_engine.checkpoint.loading.array_assembly import ArrayAssembly
from midstream_engine.checkpoint.loading.part_memory import expect_parts
from midstream_engine.checkpoint.stores.directory_objects import DirectoryObjects
from midstream_engine.checkpoint.stores.hashed_objects import CRC32C_RESIDUE, Hasher

log = logging.getLogger(__name__)
INTERVAL = 0.1  # seconds between looks at least; a look takes a tenth of the time at most
NICENESS = 10  # of the thread: the copy, which shares the processor, goes before
CHECKSUM = 4  # bytes of a chunk's crc32c


class EarlyArrays:
    """Arrays of one checkpoint, and the objects of it that were read."""

    def __init__(self, directory: str, entries: Sequence[ArrayEntry], shardings: Mapping[str, Sharding]) -> None:
        self.directory = directory
        expect_parts((shardings[entry.name], entry.shape, numpy_dtype(entry.dtype)) for entry in entries)
        # Without `PartBuffers`, because parts stay incomplete for long here.
        self.assemblies = {entry.name: ArrayAssembly(entry, shardings[entry.name]) for entry in entries}
        self.objects: dict[str, ObjectEntry] = {}  # by path, with the hashes of the bytes in the arrays
        self._store, self._blocks = DirectoryObjects(directory), BufferPool()
        self._missing: dict[str, tuple[ArrayAssembly, Box]] = {
            zarr.chunk_path(entry.name, index): (assembly, box)
            for entry in entries
            for assembly in [self.assemblies[entry.name]]
            for index, box in chunks_of(entry.shape, entry.grid)
            if assembly.needs(box)
        }

    def look(self, ended: threading.Event) -> bool:
        """Read the objects that have arrived; return whether there were any.

        Args:
            ended: Ends this after the object that is being read.

        Raises:
            CheckpointError: An object is not a chunk of the expected array.
            OSError: An object cannot be read.
        """
        arrived = [path for path in self._missing if self._store.exists(path)]
        for path in arrived:
            if ended.is_set():
                break
            assembly, box = self._missing.pop(path)
            size = volume(box) * assembly.dtype.itemsize + CHECKSUM
            if self._store.size(path) != size:
                raise CheckpointError(f"{self.directory}: object {path} has not the {size} bytes of such a chunk")
            hasher = Hasher()
            into = chain(assembly.buffers(box, self._blocks), [memoryview(bytearray(CHECKSUM))])
            if self._store.read(path, into, hasher.update) != size or hasher.crc32c != CRC32C_RESIDUE:
                raise CheckpointError(f"{self.directory}: object {path} is damaged")
            assembly.accept(box)
            self.objects[path] = hasher.entry(path)
        return bool(arrived)

    def fit(self, manifest: Manifest) -> bool:
        """Return whether the manifest has these arrays and objects, with these hashes."""
        entries = {entry.name: entry for entry in manifest.array_entries}
        objects = {entry.path: entry for entry in manifest.object_entries}
        for name, assembly in self.assemblies.items():
            if name not in entries or entries[name] != assembly.entry:
                return False
        for path, early in self.objects.items():
            entry = objects.get(path)
            if entry is None or (entry.size, entry.sha256) != (early.size, early.sha256):
                return False
            if entry.crc32c not in ("", early.crc32c):
                return False
        return not manifest.hosts


class Arrival:
    """A thread that reads the arriving checkpoint; see the module."""

    def __init__(
        self, find: Callable[[], str | None], entries: Sequence[ArrayEntry], shardings: Mapping[str, Sharding]
    ) -> None:
        """Prepare; nothing is read before `start`.

        Args:
            find: Returns the directory of the checkpoint that arrives; None while there is none.
            entries: The arrays that it will have, as an earlier checkpoint of the run has them.
            shardings: Of the arrays, by name.
        """
        self._find, self._shardings = find, shardings
        self._entries = [entry for entry in entries if entry.grid]
        self._early: EarlyArrays | None = None
        self._refused = ""  # directory whose objects are not those of the expected arrays
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="arrival", daemon=True)

    def start(self) -> None:
        """Start to read."""
        self._thread.start()

    def close(self) -> None:
        """Stop to read, and drop what was read."""
        self._stop()
        self._early = None

    def _stop(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def take(self, directory: str, manifest: Manifest) -> EarlyArrays | None:
        """Stop reading; return what was read of a checkpoint.

        None if nothing was read, or the manifest has other hashes.

        Args:
            directory: Directory of the checkpoint.
            manifest: Its manifest.
        """
        self._stop()
        early, self._early = self._early, None
        if early is None or os.path.realpath(early.directory) != os.path.realpath(directory) or not early.objects:
            return None
        if not early.fit(manifest):
            log.warning("%s: what was read while it arrived is not what its manifest has; it is read again", directory)
            return None
        log.info("read %d objects of %s while it arrived", len(early.objects), os.path.basename(directory))
        return early

    def _follow(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # a system without priorities of threads
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while not self._ended.is_set():
            began = time.monotonic()
            if not self._look():
                self._ended.wait(max(INTERVAL, 10 * (time.monotonic() - began)))

    def _look(self) -> bool:
        directory = None
        try:
            directory = self._find()
            if directory is None or directory == self._refused:
                self._early = None
                return False
            if self._early is None or self._early.directory != directory:
                self._early = None  # its memory, before the next one's is taken
                self._early = EarlyArrays(directory, self._entries, self._shardings)
            return self._early.look(self._ended)
        except Exception as error:  # noqa: BLE001 (any error: the restore reads what this did not)
            log.warning("%s is not read while it arrives: %s", directory, " ".join(str(error).split())[:300])
            self._early, self._refused = None, directory or ""
            return False
