"""Blocks of memory that one process fills and another empties, in turn.

A pipe carries the number of bytes of each filled block, another one a byte for each block that is empty again. The end
of a process closes its pipes, so neither waits for one that has ended.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from typing import Any

from midstream_host.copy.frames import BUFFER as LIMIT
from midstream_host.copy.frames import ProblemError

BLOCK = 1 << 18  # bytes: as many as are decrypted and passed on at once
BLOCKS = 8
COUNT = struct.Struct("@I")


class SharedBlocks:
    """The memory and both pipes, created before the fork, for one thread per process."""

    def __init__(self) -> None:
        self._memory: Any = memoryview(mmap.mmap(-1, BLOCKS * BLOCK))
        self._counts, self._counting = os.pipe()
        self._empties, self._emptying = os.pipe()
        self._free = BLOCKS
        self._to_fill = 0  # block
        self._to_empty = 0
        self._block: Any = memoryview(b"")  # what is left of the block that is being emptied
        self._holding = False  # a block that was not given back
        self._last = False

    # ------------------------------------------------------------------------------------- the process that fills

    def fill_only(self) -> None:
        """Close the ends of the process that empties."""
        os.close(self._counts)
        os.close(self._emptying)

    def empty_block(self) -> memoryview:
        """Wait for an empty block.

        Raises BrokenPipeError where the other process has ended.
        """
        while not self._free:
            emptied = len(os.read(self._empties, BLOCKS))
            if not emptied:
                raise BrokenPipeError("the process that writes has ended")
            self._free += emptied
        return self._memory[self._to_fill * BLOCK : (self._to_fill + 1) * BLOCK]

    def filled(self, count: int) -> None:
        """Pass on the block that `empty_block` returned, with ``count`` bytes in it."""
        os.write(self._counting, COUNT.pack(count))
        self._free -= 1
        self._to_fill = (self._to_fill + 1) % BLOCKS

    def close_filling(self) -> None:
        """End the stream. Not idempotent."""
        os.close(self._counting)
        os.close(self._empties)

    # ----------------------------------------------------------------------------------- the process that empties

    def empty_only(self) -> None:
        """Close the ends of the process that fills."""
        self.close_filling()

    def wait(self) -> bool:
        """Wait for bytes; return whether there are any: not at the stream's end."""
        if self._block or self._last:
            return not self._last
        if self._holding:
            self._holding = False
            with contextlib.suppress(BrokenPipeError):  # the other process has ended: what it passed on is still read
                os.write(self._emptying, b"\0")
        counted = os.read(self._counts, COUNT.size)  # as written: pipes do not divide so few bytes
        self._last = not counted
        if counted:
            start, (count,) = self._to_empty * BLOCK, COUNT.unpack(counted)
            self._block = self._memory[start : start + count]
            self._to_empty = (self._to_empty + 1) % BLOCKS
            self._holding = True
        return not self._last

    def exactly(self, count: int) -> memoryview:
        """Return the next bytes, valid until the next call. As `Bytes.exactly`."""
        if count <= len(self._block):
            return self.some(count)
        if count > LIMIT:
            raise ProblemError("protocol", message="a frame of {} bytes".format(count))
        data = memoryview(bytearray(count))
        filled = 0
        while filled < count:
            piece = self.some(count - filled)
            data[filled : filled + len(piece)] = piece
            filled += len(piece)
        return data

    def some(self, most: int) -> memoryview:
        """Return between 1 and ``most`` bytes, none for 0. As `Bytes.some`."""
        if most and not self.wait():
            raise ProblemError("truncated")
        view = self._block[:most]
        self._block = self._block[len(view) :]
        return view
