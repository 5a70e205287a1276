"""Memory that receives a part of an array, and becomes the part on its devices."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from midstream_engine.checkpoint import host_buffers

# Of the bytes that a device's memory is made from: jax's CPU devices copy memory that is not aligned to 64 bytes.
_MISALIGNMENT = 16


def expect_parts(arrays: Iterable[tuple[Sharding, Sequence[int], np.dtype]]) -> None:
    """Prepare for the memory of arrays, given by sharding, shape and type."""
    size = 0
    for sharding, shape, dtype in arrays:
        if all(device.platform == "cpu" for device in sharding.addressable_devices):
            size += math.prod(sharding.shard_shape(tuple(shape))) * dtype.itemsize * len(sharding.addressable_devices)
    if size:
        host_buffers.advise_heap(size)


class PartMemory:
    """Uninitialized memory of one part.

    A part of one CPU device is filled in the device's own memory. jax could adopt host memory instead, but a program
    that is given (donated) memory which jax does not own copies it first: the first update after a restore would copy
    the complete state in one thread, and need twice its memory.
    """

    def __init__(self, shape: Sequence[int], dtype: np.dtype, devices: Sequence[Any]) -> None:
        """Allocate memory for ``shape`` elements.

        Args:
            shape: Extent of the part on each axis.
            dtype: Of the elements.
            devices: jax devices that hold the part.
        """
        self._devices = devices
        self._owned: jax.Array | None = None
        size = math.prod(shape) * dtype.itemsize
        same_type = jax.dtypes.canonicalize_dtype(dtype) == dtype  # jax may turn 64 bits into 32
        if len(devices) == 1 and devices[0].platform == "cpu" and size and same_type:
            self._owned = _device_memory(shape, dtype, devices[0])
            address = self._owned.unsafe_buffer_pointer()
            memory = memoryview((ctypes.c_uint8 * size).from_address(address))
            self.array = np.frombuffer(memory, np.uint8).view(dtype).reshape(shape)
        else:
            self.array = host_buffers.empty(shape, dtype)

    def shards(self) -> list[jax.Array]:
        """Return the part on each of its devices.

        ``array`` may not be written any more.
        """
        if self._owned is not None:
            return [self._owned]
        return [jax.device_put(self.array, device) for device in self._devices]


def _device_memory(shape: Sequence[int], dtype: np.dtype, device: Any) -> jax.Array:
    """Return an array in memory of its own, to which nothing else refers."""
    size = math.prod(shape) * dtype.itemsize
    # Only read here: where it is large, it is the kernel's page of zeros.
    nothing = host_buffers.empty((size + _MISALIGNMENT,), np.dtype(np.uint8))[_MISALIGNMENT:]
    return jax.block_until_ready(jax.device_put(nothing.view(dtype).reshape(shape), device))
