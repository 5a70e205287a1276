"""Limit how many threads do something expensive at the same time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class ConcurrencyLimit:
    """Slots for threads.

    A thread that waits for something else can release its slot for that time.
    """

    def __init__(self, count: int) -> None:
        self._free = threading.Semaphore(count)
        self._thread = threading.local()

    @contextlib.contextmanager
    def slot(self) -> Iterator[None]:
        """Occupy a slot; the one that this thread has, if it has one."""
        if getattr(self._thread, "has_slot", False):
            yield
            return
        self._free.acquire()
        self._thread.has_slot = True
        try:
            yield
        finally:
            self._thread.has_slot = False
            self._free.release()

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Release this thread's slot, if it has one, and occupy one again at the end."""
        if not getattr(self._thread, "has_slot", False):
            yield
            return
        self._thread.has_slot = False
        self._free.release()
        try:
            yield
        finally:
            self._free.acquire()
            self._thread.has_slot = True


# Connection attempts: two hundred handshakes at the same time take longer than one after the other.
CONNECT_LIMIT = ConcurrencyLimit(12)
