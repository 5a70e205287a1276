"""Memory that receives a part of an array, and becomes the part on its devices."""

from __future__ import annotations

import ctypes
import math
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from midstream_engine.array_types import Device, Leaf
from midstream_engine.checkpoint import host_buffers
from midstream_engine.checkpoint.bounded_pool import THREADS
from midstream_engine.checkpoint.jax_functions import functions

# Of the bytes that a device's memory is made from: jax's CPU devices copy memory that is not aligned to 64 bytes.
_MISALIGNMENT = 16
SMALL = 4 << 20  # bytes of a part that is assembled in a `PartBuffers`, at most: it is copied from the caches


def _devices_of(sharding: Any) -> Sequence[Device]:
    return tuple(sharding.addressable_devices)


def expect_parts(arrays: Iterable[tuple[Sharding, Sequence[int], np.dtype]]) -> None:
    """Prepare for the memory of arrays, given by sharding, shape and type."""
    size = 0
    for sharding, shape, dtype in arrays:
        if all(device.platform == "cpu" for device in _devices_of(sharding)):
            size += math.prod(sharding.shard_shape(tuple(shape))) * dtype.itemsize * len(_devices_of(sharding))
    if size:
        host_buffers.advise_heap(size)


class PartBuffers:
    """Host memory that one restore reuses for parts of CPU devices. Thread-safe.

    Small parts are assembled in buffers of ``SMALL`` bytes and copied to the device. The copy costs as much as the
    zeros with which jax would fill the device's memory first, but what is read stays in the processor's caches.
    """

    def __init__(self, most: int = THREADS + 2) -> None:
        """Prepare; memory is allocated when it is needed.

        Args:
            most: Number of buffers.
        """
        self._left = most
        self._free: list[np.ndarray] = []
        self._copies: deque[tuple[Leaf, np.ndarray]] = deque()  # jax arrays, and what they are copied from
        self._zeros = np.empty(0, np.uint8)
        self._lock = threading.Lock()

    def take(self, size: int) -> np.ndarray | None:
        """Return a buffer for ``size`` bytes.

        None if these are more than ``SMALL``, or incomplete parts have all buffers.
        """
        if size > SMALL:
            return None
        with self._lock:
            while True:
                while self._copies and self._copies[0][0].is_ready():
                    self._give_back(*self._copies.popleft())
                if self._free:
                    return self._free.pop()
                if self._left:
                    self._left -= 1
                    return _misaligned(SMALL)
                if not self._copies:
                    return None
                functions.block_until_ready(self._copies[0][0])  # with the lock: `settle` waits for this one, too

    def _give_back(self, copy: jax.Array, buffer: np.ndarray) -> None:
        """Use a buffer again after its part has been copied.

        If jax has adopted it, another one may be allocated instead.
        """
        if _is_in(copy, buffer):
            self._left += 1
        else:
            self._free.append(buffer)

    def copy(self, part: np.ndarray, buffer: np.ndarray, device: Device) -> jax.Array:
        """Start to copy ``part``, which is in ``buffer``, to its device.

        The buffer is reused when it has been copied.
        """
        copy = functions.device_put(part, device)
        with self._lock:
            self._copies.append((copy, buffer))
        return copy

    def settle(self) -> None:
        """Wait for all copies.

        The arrays may be deleted or donated afterwards, not before.
        """
        with self._lock:
            while self._copies:
                copy, buffer = self._copies.popleft()
                self._give_back(functions.block_until_ready(copy), buffer)

    def zeros(self, size: int) -> np.ndarray:
        """Return ``size`` bytes of zeros, for reading alone.

        Where they are many, they are the kernel's page of zeros. All parts read the same addresses: the first access
        to each page of new ones costs more than its copy.
        """
        with self._lock:
            if len(self._zeros) < size:
                self._zeros = _misaligned(size)
                self._zeros.flags.writeable = False
            return self._zeros[:size]


def _misaligned(size: int) -> np.ndarray:
    """Return fresh memory for at least ``size`` bytes, which jax does not adopt."""
    # The kernel begins with a huge page only where the size is a multiple of one.
    size = -(-(size + _MISALIGNMENT) // host_buffers.HUGE_PAGE) * host_buffers.HUGE_PAGE
    return host_buffers.pages(size)[_MISALIGNMENT:]


def _is_in(array: jax.Array, memory: np.ndarray) -> bool:
    """Return whether the bytes of a CPU device's array are in ``memory``.

    Which memory jax adopts is up to its version.
    """
    begin = memory.ctypes.data
    return begin <= array.unsafe_buffer_pointer() < begin + memory.nbytes


class PartMemory:
    """Uninitialized memory of one part.

    A part of one CPU device becomes the device's own memory: it is filled there, or copied from a buffer. jax could
    adopt host memory instead, but a program that is given (donated) memory which jax does not own copies it first: the
    first update after a restore would copy the complete state in one thread, and need twice its memory.
    """

    def __init__(self, shape: Sequence[int], dtype: np.dtype, devices: Sequence[Device], buffers: PartBuffers) -> None:
        """Allocate memory for ``shape`` elements.

        Args:
            shape: Extent of the part on each axis.
            dtype: Of the elements.
            devices: jax devices that hold the part.
            buffers: Memory that is used again for other parts.
        """
        self._devices, self._buffers = devices, buffers
        self._owned: jax.Array | None = None
        self._buffer: np.ndarray | None = None
        size = math.prod(shape) * dtype.itemsize
        same_type = jax.dtypes.canonicalize_dtype(dtype) == dtype  # jax may turn 64 bits into 32
        if not (len(devices) == 1 and devices[0].platform == "cpu" and size and same_type):
            self.array = host_buffers.empty(shape, dtype)
            return
        self._buffer = buffers.take(size)
        if self._buffer is not None:
            memory = self._buffer[:size]
        else:
            nothing = buffers.zeros(size)
            owned = functions.block_until_ready(functions.device_put(nothing.view(dtype).reshape(shape), devices[0]))
            if _is_in(owned, nothing):
                self.array = host_buffers.empty(shape, dtype)
                return
            self._owned = owned
            bytes_of_it = (ctypes.c_uint8 * size).from_address(owned.unsafe_buffer_pointer())
            memory = np.frombuffer(memoryview(bytes_of_it), np.uint8)
        self.array = memory.view(dtype).reshape(shape)

    def shards(self) -> list[jax.Array]:
        """Return the part on each of its devices.

        ``array`` may not be used any more.
        """
        if self._owned is not None:
            return [self._owned]
        if self._buffer is not None:
            return [self._buffers.copy(self.array, self._buffer, self._devices[0])]
        return [functions.device_put(self.array, device) for device in self._devices]
