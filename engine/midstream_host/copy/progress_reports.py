"""Reports of a receiver to the app.

The app gives a sender more work as reports arrive. Reports are therefore sent at intervals, also where no bytes arrive:
otherwise both ends would wait for each other.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Callable, List, Sequence

from midstream_core.json_types import JsonValue
from midstream_host.object_files import emit

REPORT_INTERVAL = 0.05  # seconds


class ProgressReports:
    """Collects bytes, complete objects and ranges for ``landed`` lines.

    Any thread may add to the next line. A range is ``[path, offset, length]``. Packed chunks make the bytes that the
    stream brought, ``received``, fewer than those that were written.
    """

    def __init__(self, report: Callable[..., None] = emit) -> None:
        """Start the reports. ``report`` sends one: its event, and its fields by name."""
        self._send = report
        self._lock = threading.Lock()
        self._bytes = 0
        self._received = 0
        self._objects: List[str] = []
        self._ranges: List[List[JsonValue]] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def landed(self, count: int = 0, objects: Sequence[str] = (), ranges: Sequence[List[JsonValue]] = ()) -> None:
        with self._lock:
            self._bytes += count
            self._objects += objects
            self._ranges += ranges

    def received(self, count: int) -> None:
        with self._lock:
            self._received += count

    def close(self) -> None:
        """Report the rest. Idempotent."""
        self._closed.set()
        self._thread.join()
        self._report()

    def _work(self) -> None:
        with contextlib.suppress(OSError):  # the app has closed the pipe: `close` raises it
            while not self._closed.wait(REPORT_INTERVAL):
                self._report()

    def _report(self) -> None:
        with self._lock:
            count, self._bytes = self._bytes, 0
            received, self._received = self._received, 0
            objects, self._objects = self._objects, []
            ranges, self._ranges = self._ranges, []
        if count or received or objects or ranges:
            self._send("landed", bytes=count, received=received, objects=objects, ranges=ranges)
