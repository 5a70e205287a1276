"""What a program says on stderr, read as it comes so that it never blocks, and its end remembered."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

KEPT = 64 * 1024  # bytes


class StderrTail:
    """A thread that reads until the end; ``read`` returns empty bytes there. ``size``: bytes that have come."""

    def __init__(self, read: Callable[[], bytes], name: str):
        self._read = read
        self._tail = b""
        self.size = 0
        self._thread = threading.Thread(target=self._collect, name=name, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        # A child of the program may go on writing after it: whoever closes the pipe then ends this.
        with contextlib.suppress(OSError, ValueError):
            while data := self._read():
                self._tail = (self._tail + data)[-KEPT:]
                self.size += len(data)

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def text(self) -> str:
        return self._tail.decode(errors="replace")
