"""Pipes of a child process that one thread may end while another uses them.

Such a pipe cannot be closed at once: its number may be that of another file before the other thread uses it.
"""

from __future__ import annotations

import io
import os
import select
import threading
from collections.abc import Callable
from typing import Any

from midstream.hosts.deadline import Deadline


def end_reading(descriptor: int) -> None:
    """Make reads return the end of the file, and the writes at the other end fail."""
    _replace(descriptor, os.O_RDONLY)


def _replace(descriptor: int, flags: int) -> None:
    empty = os.open(os.devnull, flags | os.O_CLOEXEC)
    try:
        os.dup2(empty, descriptor, inheritable=False)
    finally:
        os.close(empty)


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
                _replace(self.fileno(), os.O_WRONLY)

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
        super().__init__(descriptor)
        self._reading = threading.Lock()
        self._left = False  # to the thread that reads

    def end(self, seconds: float) -> bool:
        """End the reads, from any thread; wait for one that has begun.

        Returns False where it goes on after ``seconds``: a process that the child has left holds the other end open.
        """
        if self.closed:
            return True
        end_reading(self.fileno())
        if not self._reading.acquire(timeout=seconds):
            return False
        self._reading.release()
        return True

    def leave(self) -> None:
        """Let the read that goes on close the pipe."""
        self._left = True

    def readinto(self, buffer: Any) -> int | None:
        with self._reading:
            while self.deadline is not None:
                ready = select.select([self], [], [], self.deadline.step)[0]
                self.check()
                if self.deadline.count():
                    raise TimeoutError(f"no complete answer within {self.deadline.seconds:.0f} s")
                if ready:
                    break
            count = super().readinto(buffer)
            if self._left:
                self.close()
                return 0
            return count

    def read(self, size: int | None = -1, /) -> bytes | Any:
        return io.RawIOBase.read(self, -1 if size is None else size)  # by `readinto`

    def readall(self) -> bytes | Any:
        return io.RawIOBase.readall(self)
