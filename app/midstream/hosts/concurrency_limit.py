"""A few at a time: many threads that all want to do something costly."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class ConcurrencyLimit:
    """At most so many threads at once. A thread that waits for something else meanwhile steps aside, so that those who
    wait for a person, or for a machine that is not there, hold nobody up."""

    def __init__(self, count: int):
        self._free = threading.Semaphore(count)
        self._mine = threading.local()

    @contextlib.contextmanager
    def take(self) -> Iterator[None]:
        """A turn; the same one where this thread has one already."""
        if getattr(self._mine, "held", False):
            yield
            return
        self._free.acquire()
        self._mine.held = True
        try:
            yield
        finally:
            self._mine.held = False
            self._free.release()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Without a turn for a while; nothing where this thread has none."""
        if not getattr(self._mine, "held", False):
            yield
            return
        self._mine.held = False
        self._free.release()
        try:
            yield
        finally:
            self._free.acquire()
            self._mine.held = True


# Hosts that are being reached: two hundred handshakes at once would cost more than they take.
REACHING = ConcurrencyLimit(12)
