"""What a stream has brought, told to the operator. It gives a sender more work as it hears that the last has landed, so
it is told now and then even where nothing comes at the moment: what waits to be told would be what both ends wait for.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, List, Sequence

from midstream.remote.copy.object_files import emit

CALM = 0.05  # seconds between two lines


class ProgressReports:
    """Lines ``landed``: bytes that were written, objects that have their names, ranges ``[path, offset, length]``. Any
    thread may add to the next one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = 0
        self._objects: List[str] = []
        self._ranges: List[List[Any]] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def landed(self, count: int = 0, objects: Sequence[str] = (), ranges: Sequence[List[Any]] = ()) -> None:
        with self._lock:
            self._bytes += count
            self._objects += objects
            self._ranges += ranges

    def close(self) -> None:
        """Tell the rest. Idempotent."""
        self._closed.set()
        self._thread.join()
        self._tell()

    def _work(self) -> None:
        with contextlib.suppress(OSError):  # the operator has gone: `close` finds that out as well
            while not self._closed.wait(CALM):
                self._tell()

    def _tell(self) -> None:
        with self._lock:
            count, self._bytes = self._bytes, 0
            objects, self._objects = self._objects, []
            ranges, self._ranges = self._ranges, []
        if count or objects or ranges:
            emit("landed", bytes=count, objects=objects, ranges=ranges)
