"""Pipes of a child process that one thread may end while another uses them.

Such a pipe cannot be closed at once: its number may be that of another file before the other thread uses it.
"""

from __future__ import annotations

import io
import math
import os
import select
import threading
from collections.abc import Callable
from typing import Any

from midstream.hosts.deadline import Deadline

# Open before it is needed: a pipe has to be ended also where there are too many open files.
_EMPTY = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


def end_pipe(descriptor: int) -> None:
    """Close an end of a pipe, and let its number stay in use.

    Reads return the end of the file, and what is written goes nowhere.
    """
    os.dup2(_EMPTY, descriptor, inheritable=False)


def is_readable(descriptor: int, seconds: float | None) -> bool:
    """Wait until a read would return at once, at most ``seconds``.

    None: as long as it takes. `select.select` rejects numbers from 1024 on, which a process that watches a large fleet
    has.
    """
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(None if seconds is None else math.ceil(seconds * 1000)))


class WritingPipe(io.FileIO):
    """The writing end of a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._closing = threading.Lock()
        super().__init__(descriptor, "wb")

    def end(self) -> None:
        """Make the other end read the end of the file. Any thread, idempotent.

        What is still written here is lost.
        """
        with self._closing:
            if not self.closed:
                end_pipe(self.fileno())

    def close(self) -> None:
        with self._closing:
            super().close()


class TimedPipe(io.FileIO):
    """The reading end of a pipe.

    A read raises TimeoutError after the deadline, and the errors of `check`.
    """

    deadline: Deadline | None = None
    check: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, descriptor: int) -> None:
        self._closing = threading.Lock()
        super().__init__(descriptor)
        self._reading = threading.Lock()
        self._left = False  # to the thread that reads

    def end(self, seconds: float) -> bool:
        """End the reads, from any thread; wait for one that has begun.

        Returns False where it goes on after ``seconds``: a process that the child has left holds the other end open.
        """
        with self._closing:  # the thread that reads may close it: the number is that of another file afterwards
            if self.closed:
                return True
            end_pipe(self.fileno())
        if not self._reading.acquire(timeout=seconds):
            return False
        self._reading.release()
        return True

    def leave(self) -> None:
        """Close the pipe after the read that goes on; at once if it has just returned."""
        self._left = True
        if self._reading.acquire(blocking=False):  # otherwise the thread that reads calls this, after it has released
            try:
                self.close()
            finally:
                self._reading.release()

    def close(self) -> None:
        with self._closing:
            super().close()

    def readinto(self, buffer: Any) -> int | None:
        try:
            with self._reading:
                count = 0 if self._left else self._read_in_time(buffer)
        finally:
            if self._left:
                self.leave()
        return 0 if self._left else count

    def _read_in_time(self, buffer: Any) -> int | None:
        while self.deadline is not None:
            ready = is_readable(self.fileno(), self.deadline.step)
            self.check()
            if self.deadline.count():
                raise TimeoutError(f"no complete answer within {self.deadline.seconds:.0f} s")
            if ready:
                break
        return super().readinto(buffer)

    def read(self, size: int | None = -1, /) -> bytes | Any:
        return io.RawIOBase.read(self, -1 if size is None else size)  # by `readinto`

    def readall(self) -> bytes | Any:
        return io.RawIOBase.readall(self)
