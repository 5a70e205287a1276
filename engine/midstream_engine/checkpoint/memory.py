"""Host memory for arrays on their way: what the system gets back at once, and what is used again and again.

Touching fresh memory costs more than copying into memory that was touched before, several times over.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import threading
from collections.abc import Iterator, Sequence

import numpy as np

BLOCK = 4 << 20  # bytes hashed, read and written at a time: large enough for the threads, small enough for the caches
ALIGNMENT = 64  # bytes; jax's CPU devices take over memory that is aligned like this, and copy any other


def pages(size: int) -> np.ndarray:
    """Fresh memory for ``size`` bytes (uint8), in huge pages where there are any. The system has it back as soon as
    nothing refers to it; what malloc hands out it may keep."""
    # Private: huge pages are not for shared memory, which is mmap's default.
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)[:size]


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
