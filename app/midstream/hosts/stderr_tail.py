"""A thread that reads a program's stderr and stores the end of it.

With it the program never blocks on its stderr.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

TAIL_SIZE = 64 * 1024  # bytes


class StderrTail:
    """A thread that calls ``read`` until it returns empty bytes.

    ``size``: bytes read so far.
    """

    def __init__(self, read: Callable[[], bytes], name: str) -> None:
        self._read = read
        self._tail = b""
        self.size = 0
        self._thread = threading.Thread(target=self._collect, name=name, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        # A child of the program may go on writing after its exit: closing the pipe then ends this thread.
        with contextlib.suppress(OSError, ValueError):
            while data := self._read():
                self._tail = (self._tail + data)[-TAIL_SIZE:]
                self.size += len(data)

    def join(self, timeout: float) -> None:
        """Wait for the end of stderr, at most ``timeout`` seconds."""
        self._thread.join(timeout)

    def text(self) -> str:
        """Return the end of stderr as text."""
        return self._tail.decode(errors="replace")
