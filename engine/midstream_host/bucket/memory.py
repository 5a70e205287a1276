"""Memory of a copy's requests.

The memory is limited and reused: pages that are new to a process take time.
"""

from __future__ import annotations

import threading
from typing import List

from midstream_core.object_store.bucket_client import AT_ONCE, CHUNK

ROOM = AT_ONCE  # chunks of memory
KEPT = 1 << 20  # bytes from which memory is used again


class RequestMemory:
    """Memory for the bytes of requests, at most `ROOM` chunks.

    One thread takes memory; any thread may give it back.
    """

    def __init__(self) -> None:
        self._room = threading.Semaphore(ROOM)
        self._free: List[bytearray] = []

    def take(self, size: int) -> bytearray:
        """Return ``size`` bytes, at most `ROOM` chunks.

        Waits until others were given back.
        """
        for _ in range(_chunks(size)):
            self._room.acquire()
        if size < KEPT or not self._free:
            return bytearray(size)
        buffer = self._free.pop()
        if len(buffer) > size:
            del buffer[size:]
        elif len(buffer) < size:
            buffer.extend(bytes(size - len(buffer)))
        return buffer

    def give(self, taken: bytearray) -> None:
        """Take memory back. No view of it may be left."""
        if len(taken) >= KEPT:
            self._free.append(taken)
        self._room.release(_chunks(len(taken)))


def _chunks(size: int) -> int:
    return max(1, -(-size // CHUNK))
