"""Host memory for arrays on their way: what the system gets back at once, and what is used again and again.

Touching fresh memory costs more than copying into memory that was touched before, several times over.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import threading
import weakref
from collections.abc import Iterator, Sequence

import numpy as np

BLOCK = 4 << 20  # bytes hashed, read and written at a time: large enough for the threads, small enough for the caches
ALIGNMENT = 64  # bytes; jax's CPU devices take over memory that is aligned like this, and copy any other


def pages(size: int) -> np.ndarray:
    """Fresh memory for ``size`` bytes (uint8), in huge pages where there are any. The system has it back as soon as
    nothing refers to it; what malloc hands out it may keep."""
    return np.frombuffer(_mapped(size), np.uint8)[:size]


def _mapped(size: int) -> mmap.mmap:
    # Private: huge pages are not for shared memory, which is mmap's default.
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Kept:
    """Memory for what is as large every time: the newest mapping that nobody refers to any more is kept for the next,
    one alone. In a virtual machine its pages may cost more than all that is done with them."""

    def __init__(self) -> None:
        self._free: mmap.mmap | None = None
        self._lock = threading.RLock()  # what is given back may be collected while it is held

    def take(self, size: int) -> np.ndarray:
        """``size`` bytes (uint8) with any contents. They are free again when no array refers to them any more."""
        if not size:
            return np.empty(0, np.uint8)
        with self._lock:
            memory, self._free = self._free, None
        if memory is None or not size <= len(memory) <= 2 * size:
            memory = _mapped(size)
        lender = (ctypes.c_uint8 * len(memory)).from_buffer(memory)
        weakref.finalize(lender, self._back, memory).atexit = False
        return np.frombuffer(memoryview(lender), np.uint8)[:size]

    def _back(self, memory: mmap.mmap) -> None:
        with self._lock:
            self._free = memory


class Slices:
    """Aligned arrays that are cut off one piece of memory, one after the other."""

    def __init__(self, memory: np.ndarray):
        self._memory, self._used = memory, 0

    def cut(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        start, self._used = self._used, self._used + self.room(math.prod(shape) * dtype.itemsize)
        return self._memory[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)

    @staticmethod
    def room(size: int) -> int:
        """Bytes that an array of ``size`` bytes takes up."""
        return -(-size // ALIGNMENT) * ALIGNMENT


def empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array to be filled and then handed to a device."""
    size = math.prod(shape) * dtype.itemsize
    if size >= BLOCK // 4:
        return pages(size).view(dtype).reshape(shape)
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


class Blocks:
    """Buffers of ``BLOCK`` bytes, lent to threads and used again."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lend(self) -> Iterator[np.ndarray]:
        """A buffer (uint8), for as long as the context lasts."""
        with self._lock:
            buffer = self._free.pop() if self._free else np.empty(BLOCK, np.uint8)
        try:
            yield buffer
        finally:
            with self._lock:
                self._free.append(buffer)
