"""The stream between a sender and a receiver: frames.

Frame: kind (u8), length of the payload (u32), big-endian, then the payload. ITEM carries JSON: path, size and sha256
of the object, ``offset`` and ``length`` of the item in it; DATA its bytes, in order; FAILED why it cannot be read;
FINISH and IDLE nothing, so that silence means a dead link. An *item* is a whole object, or a range of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
from typing import Any, Callable

from midstream.remote.copy.stdin_lines import SILENCE

HEADER = struct.Struct(">BI")
ITEM, DATA, FAILED, FINISH, IDLE = 1, 2, 3, 4, 5
PAYLOAD = 1 << 20  # bytes of a frame's payload at most
BUFFER = 1 << 19  # bytes read from the stream at once
PIPE = 1 << 20  # bytes that a pipe holds
F_SETPIPE_SZ = 1031


def widen(descriptor: int) -> None:
    """A larger pipe, where it is a pipe and we may: fewer switches between reader and writer."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(descriptor, F_SETPIPE_SZ, PIPE)


class Problem(Exception):
    """Why the stream cannot be received. ``fields`` go to the operator."""

    def __init__(self, kind: str, **fields: Any):
        super().__init__(kind)
        self.fields = dict(fields, kind=kind)


class Bytes:
    """The stream, read in large pieces and handed out without copying."""

    def __init__(self, read_into: Callable[[memoryview], int]):
        self._read_into = read_into
        self._view = memoryview(bytearray(BUFFER))
        self._start = self._end = 0

    def _more(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._view):
            rest = bytes(self._view[self._start : self._end])
            self._view[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        count = self._read_into(self._view[self._end :])
        if not count:
            raise Problem("truncated")
        self._end += count

    def exactly(self, count: int) -> memoryview:
        if count > len(self._view):
            raise Problem("protocol", message="a frame of {} bytes".format(count))
        while self._end - self._start < count:
            self._more()
        return self.some(count)

    def some(self, most: int) -> memoryview:
        """Between 1 and ``most`` bytes; none for 0."""
        if most and self._start == self._end:
            self._more()
        view = self._view[self._start : min(self._end, self._start + most)]
        self._start += len(view)
        return view


def from_stdin(view: memoryview) -> int:
    if not select.select([0], [], [], SILENCE)[0]:
        raise Problem("truncated", message="nothing came for {:.0f} s".format(SILENCE))
    return os.readv(0, [view])
