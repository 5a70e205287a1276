"""Frames: the format of the stream between a sender and a receiver.

Frame: kind (u8), length of the payload (u32), big-endian, then the payload. ITEM has JSON: path, size and sha256
of the object, ``offset`` and ``length`` of the item in it; DATA its bytes, in order; PACKED the same as a packed chunk
(`byte_planes`); FAILED why it cannot be read.
FINISH and IDLE have no payload; an idle sender sends IDLE, so that no data means a lost connection. An *item* is an
object or a range of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
from typing import Callable, Protocol

from midstream_core.json_types import JsonValue
from midstream_host.copy.stdin_lines import IDLE_TIMEOUT

HEADER = struct.Struct(">BI")
ITEM, DATA, FAILED, FINISH, IDLE, PACKED = 1, 2, 3, 4, 5, 6
PAYLOAD = 1 << 20  # bytes of a frame's payload at most
BUFFER = 1 << 19  # bytes read from the stream at once
PIPE = 1 << 20  # bytes of a pipe's buffer
F_SETPIPE_SZ = 1031


def widen(descriptor: int) -> None:
    """Enlarge the buffer of a pipe, if the kernel allows it: fewer context switches."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(descriptor, F_SETPIPE_SZ, PIPE)


class ProblemError(Exception):
    """The stream cannot be received. ``fields`` are reported to the app."""

    def __init__(self, kind: str, **fields: JsonValue) -> None:
        super().__init__(kind)
        self.fields = dict(fields, kind=kind)


class Incoming(Protocol):
    """A stream that is read in pieces. Each view is valid until the next call."""

    def exactly(self, count: int) -> memoryview:
        """Read ``count`` bytes. Raises ProblemError where the stream ends before."""
        ...

    def some(self, most: int) -> memoryview:
        """Read between 1 and ``most`` bytes; none for 0."""
        ...


class Bytes:
    """Buffered reader of the stream; returns views of its buffer."""

    def __init__(self, read_into: Callable[[memoryview], int]) -> None:
        self._read_into = read_into
        self._view = memoryview(bytearray(BUFFER))
        self._start: int = 0  # the bytes of ``_view`` from here to ``_end`` were not returned yet
        self._end: int = 0

    def _more(self) -> None:
        if self._start == self._end:
            self._start, self._end = 0, 0
        elif self._end == len(self._view):
            rest = bytes(self._view[self._start : self._end])
            self._view[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
        count = self._read_into(self._view[self._end :])
        if not count:
            raise ProblemError("truncated")
        self._end += count

    def exactly(self, count: int) -> memoryview:
        """Read ``count`` bytes. Raises ProblemError where the stream ends before."""
        if count > len(self._view):
            raise ProblemError("protocol", message="a frame of {} bytes".format(count))
        while self._end - self._start < count:
            self._more()
        return self.some(count)

    def some(self, most: int) -> memoryview:
        """Read between 1 and ``most`` bytes; none for 0."""
        if most and self._start == self._end:
            self._more()
        view = self._view[self._start : min(self._end, self._start + most)]
        self._start += len(view)
        return view


def from_stdin(view: memoryview) -> int:
    if not select.select([0], [], [], IDLE_TIMEOUT)[0]:
        raise ProblemError("truncated", message="no data for {:.0f} s".format(IDLE_TIMEOUT))
    return os.readv(0, [view])
