"""Assembly of an array on the devices from its chunks.

Chunks are read into the devices' parts, which are sent when complete.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from midstream_core.records import ArrayEntry
from midstream_engine.array_types import Device, Index
from midstream_engine.checkpoint.boxes import Box, box_of, copy_rows, extent, full_box, overlap, slabs, volume, within
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.host_buffers import BLOCK, BufferPool
from midstream_engine.checkpoint.loading.part_memory import PartBuffers, PartMemory


class ArrayAssembly:
    """One array of a checkpoint under one sharding.

    Chunks may arrive in any order and from any thread.
    """

    def __init__(self, entry: ArrayEntry, sharding: Sharding, parts: PartBuffers | None = None) -> None:
        """Prepare for the chunks.

        Args:
            entry: The array's entry in the manifest.
            sharding: Where its parts are to be.
            parts: Buffers for its parts; `PartBuffers.settle` comes before `finish`. Without them, parts of CPU devices
                are filled in the devices' memory.
        """
        self.entry = entry
        self._parts = PartBuffers(0) if parts is None else parts
        self.shape = tuple(entry.shape)
        self.dtype = numpy_dtype(entry.dtype)
        self.sharding = sharding
        self._devices: dict[Box, list[Device]] = {}
        untyped: Any = sharding
        indices: Mapping[Device, Index | None] = untyped.addressable_devices_indices_map(self.shape)
        for device, index in indices.items():
            box = full_box(self.shape) if index is None else box_of(index, self.shape)
            self._devices.setdefault(box, []).append(device)
        self._open: dict[Box, PartMemory] = {}  # incomplete parts
        self._missing = {part: volume(part) for part in self._devices}  # elements
        self._shards: list[jax.Array] = []
        self._lock = threading.Lock()
        for part, missing in self._missing.items():
            if not missing:
                self._send(PartMemory(extent(part), self.dtype, self._devices[part], self._parts))

    def needs(self, chunk: Box) -> bool:
        """Return whether a device of this process has any of ``chunk``."""
        return any(overlap(part, chunk) is not None for part in self._devices)

    def buffers(self, chunk: Box, blocks: BufferPool) -> Iterator[memoryview]:
        """Yield buffers for the bytes of ``chunk``, in order.

        Each buffer is processed when the next one is requested. Call :meth:`accept` afterwards.
        """
        targets = [(part, shared) for part in self._devices if (shared := overlap(part, chunk)) is not None]
        for slab in slabs(chunk, max(1, BLOCK // self.dtype.itemsize)):
            direct = self._direct(slab, targets)
            if direct is not None:
                yield direct
                continue
            with blocks.lend() as buffer:
                raw = buffer[: volume(slab) * self.dtype.itemsize]
                yield raw.data
                self._scatter(slab, raw.view(self.dtype).reshape(extent(slab)), targets)

    def accept(self, chunk: Box) -> None:
        """Accept verified bytes of ``chunk``; send completed parts to their devices."""
        for part in self._devices:
            shared = overlap(part, chunk)
            if shared is None:
                continue
            with self._lock:
                self._missing[part] -= volume(shared)
                full = self._open.pop(part) if not self._missing[part] else None
            if full is not None:
                self._send(full)

    def put(self, data: np.ndarray) -> None:
        """Accept the complete array."""
        if data.size:
            box = full_box(self.shape)
            self._scatter(box, data, [(part, part) for part in self._devices])
            self.accept(box)

    def finish(self) -> jax.Array:
        """Return the array on its devices."""
        return jax.make_array_from_single_device_arrays(self.shape, self.sharding, self._shards)

    def _part(self, part: Box) -> np.ndarray:
        with self._lock:
            if part not in self._open:
                self._open[part] = PartMemory(extent(part), self.dtype, self._devices[part], self._parts)
            return self._open[part].array

    def _direct(self, slab: Box, targets: list[tuple[Box, Box]]) -> memoryview | None:
        """Return the memory of ``slab`` in the only part that needs it, if contiguous."""
        wanting = [part for part, shared in targets if overlap(shared, slab) is not None]
        if len(wanting) != 1 or overlap(wanting[0], slab) != slab:
            return None
        view = self._part(wanting[0])[within(slab, wanting[0])]
        return view.reshape(-1).view(np.uint8).data if view.flags.c_contiguous else None

    def _scatter(self, slab: Box, data: np.ndarray, targets: list[tuple[Box, Box]]) -> None:
        for part, overlapping in targets:
            shared = overlap(overlapping, slab)
            if shared is not None:
                copy_rows(self._part(part)[(*within(shared, part), ...)], data[within(shared, slab)])

    def _send(self, memory: PartMemory) -> None:
        shards = memory.shards()
        with self._lock:
            self._shards += shards
