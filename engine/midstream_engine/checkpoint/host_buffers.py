"""Host memory for arrays between devices and storage.

The first write to a fresh page costs several times as much as copying into memory that was used before, so memory is
reused where possible.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import threading
import weakref
from collections.abc import Generator, Sequence

import numpy as np

BLOCK = 4 << 20  # bytes hashed, read and written at a time: large enough for threads, small enough for caches
HUGE_PAGE = 2 << 20  # bytes; the kernel rounds where it has others
ALIGNMENT = 64  # bytes; jax's CPU devices adopt memory with this alignment and copy any other


def pages(size: int) -> np.ndarray:
    """Return fresh memory for ``size`` bytes (uint8), in huge pages if available.

    The memory returns to the system when the last reference ends; malloc may keep freed memory.
    """
    return np.frombuffer(_mapped(size), np.uint8)[:size]


def _mapped(size: int) -> mmap.mmap:
    # MAP_PRIVATE: shared memory, which is mmap's default, gets no huge pages.
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def advise_heap(size: int) -> None:
    """Let malloc take its next ``size`` bytes from huge pages, if available.

    The heap grows by an empty block of that size. Nothing changes where malloc returns such a block to the system, as
    it does by default and, with the engine's settings, with 2 GiB and more.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    library = ctypes.CDLL(None)
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    library.free.argtypes = (ctypes.c_void_p,)
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    block = library.malloc(size)
    if not block:
        return
    begin, end = -(-block // HUGE_PAGE) * HUGE_PAGE, (block + size) // HUGE_PAGE * HUGE_PAGE
    if begin < end:
        library.madvise(begin, end - begin, mmap.MADV_HUGEPAGE)  # a kernel without huge pages refuses
    library.free(block)


class ReusedMemory:
    """Memory for repeated requests of about the same size.

    The latest mapping without references is kept for the next request. In a virtual machine new pages may cost more
    than all work on their contents.
    """

    def __init__(self) -> None:
        self._free: mmap.mmap | None = None
        self._lock = threading.RLock()  # the garbage collector may run `_back` while this thread has the lock

    @property
    def free(self) -> int:
        """Bytes that wait for the next request."""
        with self._lock:
            return 0 if self._free is None else len(self._free)

    def take(self, size: int) -> np.ndarray:
        """Lend ``size`` bytes (uint8) of arbitrary contents until no array refers to them."""
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


class AlignedSlices:
    """Consecutive aligned arrays in one block of memory."""

    def __init__(self, memory: np.ndarray) -> None:
        self._memory, self._used = memory, 0

    def cut(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Return the next array."""
        start, self._used = self._used, self._used + self.room(math.prod(shape) * dtype.itemsize)
        return self._memory[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)

    @staticmethod
    def room(size: int) -> int:
        """Return the bytes that an array of ``size`` bytes occupies."""
        return -(-size // ALIGNMENT) * ALIGNMENT


def empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Return an uninitialized array to fill and transfer to a device."""
    size = math.prod(shape) * dtype.itemsize
    if size >= BLOCK // 4:
        return pages(size).view(dtype).reshape(shape)
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


class BufferPool:
    """Buffers of ``BLOCK`` bytes that threads borrow and return."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lend(self) -> Generator[np.ndarray, None, None]:
        """Context manager: a buffer (uint8)."""
        with self._lock:
            buffer = self._free.pop() if self._free else np.empty(BLOCK, np.uint8)
        try:
            yield buffer
        finally:
            with self._lock:
                self._free.append(buffer)


def bytes_of(array: np.ndarray) -> memoryview:
    """Return an array's elements in row-major order, copied unless contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
