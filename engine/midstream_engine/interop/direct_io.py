"""Direct I/O: read and write files without the page cache.

Data that is read once does not need it, and allocating its pages costs more processor time than processing the numbers.
On a file system without direct I/O files are accessed normally.
"""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from collections.abc import Callable

import numpy as np

from midstream_engine.checkpoint.host_buffers import pages

ALIGNMENT = 4096  # bytes: offsets in the file, lengths and addresses are multiples of it
STEP = 4 << 20  # bytes read at a time
_DIRECT = getattr(os, "O_DIRECT", 0)  # only Linux has it


class DirectFile:
    """A file to read from. Thread-safe."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = open_directly(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, start: int, size: int, take: Callable[[np.ndarray], None]) -> np.ndarray:
        """Return bytes [start, start + size) in memory of their own (uint8).

        ``take`` is called with one part after the other, while the CPU's caches have it.

        Raises:
            EOFError: The file ends before.
        """
        begin = start - start % ALIGNMENT
        end = start + size
        memory = pages(_up(end - begin))
        position = begin  # everything before it is read
        while position < end:
            length = min(STEP, _up(end - position))
            count = self._into(memory[position - begin : position - begin + length], position)
            if not count:
                raise EOFError
            take(memory[max(start, position) - begin : min(end, position + count) - begin])
            position += count
        return memory[start - begin : end - begin]

    def _into(self, memory: np.ndarray, position: int) -> int:
        try:
            return os.preadv(self._descriptor, [memory.data], position)
        except OSError as error:
            if error.errno != errno.EINVAL or not without_direct(self._descriptor):
                raise
            return os.preadv(self._descriptor, [memory.data], position)


def open_directly(path: str, flags: int) -> int:
    """Return a descriptor without page cache, if the file system supports that."""
    try:
        return os.open(path, flags | _DIRECT, 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL or not _DIRECT:
            raise
        # The file may have been created before the error.
        return os.open(path, flags & ~os.O_EXCL, 0o644)


def write_directly(descriptor: int, block: memoryview, position: int) -> None:
    """Write the aligned ``block`` at ``position``."""
    while block:
        try:
            count = os.pwrite(descriptor, block, position)
        except OSError as error:
            if error.errno != errno.EINVAL or not without_direct(descriptor):
                raise
            continue
        block, position = block[count:], position + count


def without_direct(descriptor: int) -> bool:
    """Switch to the page cache for unaligned data; return whether I/O was direct."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if not flags & _DIRECT:
        return False
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~_DIRECT)
    return True


def _up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
