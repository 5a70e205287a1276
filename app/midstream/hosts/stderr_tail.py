"""A thread that reads a program's stderr and stores the end of it.

With it the program never blocks on its stderr.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, BinaryIO, cast

from midstream.hosts.child_pipes import end_pipe

TAIL_SIZE = 64 * 1024  # bytes
READ_SIZE = 8192  # bytes


class StderrTail:
    """A thread that reads ``pipe`` to its end, and closes it.

    ``size``: bytes read so far.
    """

    def __init__(self, pipe: BinaryIO, name: str) -> None:
        self._pipe = pipe
        self._tail = b""
        self.size = 0
        self._lock = threading.Lock()  # of the end of the pipe
        self._thread = threading.Thread(target=self._collect, name=name, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := cast(Any, self._pipe).read1(READ_SIZE):
                self._tail = (self._tail + data)[-TAIL_SIZE:]
                self.size += len(data)
        with self._lock:
            self._pipe.close()

    def join(self, timeout: float) -> None:
        """Wait for the end of stderr, at most ``timeout`` seconds."""
        self._thread.join(timeout)

    def close(self, timeout: float) -> None:
        """End the reading, after at most ``timeout`` seconds. Idempotent.

        A process that the program has left may hold its stderr open: the next write to it fails then, and ends the
        thread.
        """
        self.join(timeout)
        with self._lock:
            if not self._pipe.closed:
                end_pipe(self._pipe.fileno())

    def text(self) -> str:
        """Return the end of stderr as text."""
        return self._tail.decode(errors="replace")
