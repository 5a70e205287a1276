"""Files read and written past the page cache. What passes once has no use for a place there, and getting pages for it
costs more processor time than all that is done with its numbers. Where a file system cannot, the ordinary way is taken.
"""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from collections.abc import Callable

import numpy as np

from midstream_engine.checkpoint.saving.host_buffers import pages

ALIGNMENT = 4096  # bytes: places in the file, lengths and addresses are multiples of it
STEP = 4 << 20  # bytes read at a time
_DIRECT = getattr(os, "O_DIRECT", 0)  # Linux alone has it


class DirectFile:
    """A file to read from. Several threads may read at once."""

    def __init__(self, path: str):
        self.path = path
        self._descriptor = open_directly(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, start: int, size: int, each: Callable[[np.ndarray], None]) -> np.ndarray:
        """Bytes [start, start + size) in memory of their own (uint8), which ``each`` is shown one part after the other
        while the caches have it. EOFError where the file ends before."""
        begin = start - start % ALIGNMENT
        end = start + size
        memory = pages(_up(end - begin))
        place = begin  # all before it is read
        while place < end:
            asked = min(STEP, _up(end - place))
            count = self._into(memory[place - begin : place - begin + asked], place)
            if not count:
                raise EOFError
            each(memory[max(start, place) - begin : min(end, place + count) - begin])
            place += count
        return memory[start - begin : end - begin]

    def _into(self, memory: np.ndarray, place: int) -> int:
        try:
            return os.preadv(self._descriptor, [memory.data], place)
        except OSError as error:
            if error.errno != errno.EINVAL or not without_direct(self._descriptor):
                raise
            return os.preadv(self._descriptor, [memory.data], place)


def open_directly(path: str, flags: int) -> int:
    """A descriptor that passes the page cache by, where the file system has such."""
    try:
        return os.open(path, flags | _DIRECT, 0o644)
    except OSError as error:
        if error.errno != errno.EINVAL or not _DIRECT:
            raise
        # It may have been made before it was refused.
        return os.open(path, flags & ~os.O_EXCL, 0o644)


def write_directly(descriptor: int, block: memoryview, place: int) -> None:
    """Write ``block``, aligned as it is, at ``place``."""
    while block:
        try:
            count = os.pwrite(descriptor, block, place)
        except OSError as error:
            if error.errno != errno.EINVAL or not without_direct(descriptor):
                raise
            continue
        block, place = block[count:], place + count


def without_direct(descriptor: int) -> bool:
    """From here on through the page cache, for what is not aligned; whether it was otherwise."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if not flags & _DIRECT:
        return False
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~_DIRECT)
    return True


def _up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
