"""What a program says on stderr, read as it comes so that it never blocks, and its end remembered."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

KEPT = 64 * 1024  # bytes


class StderrTail:
    """A thread that reads until the end; ``read`` returns empty bytes there."""

    def __init__(self, read: Callable[[], bytes], name: str):
        self._read = read
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._thread = threading.Thread(target=self._collect, name=name, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        while data := self._read():
            self._chunks.append(data)
            self._size += len(data)
            while self._size > KEPT and len(self._chunks) > 1:
                self._size -= len(self._chunks.popleft())

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def text(self) -> str:
        return b"".join(tuple(self._chunks)).decode(errors="replace")
