"""Batches prepared in the background, in order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
# Deep enough that a thread which gets no processor for some steps is not noticed; a batch is small beside a model.
DEPTH = 16


class Prefetch(Generic[T]):
    """Calls ``make(first)``, ``make(first + 1)``, ... in a thread, at most ``depth`` ahead of ``next``."""

    def __init__(self, make: Callable[[int], T], first: int, depth: int = DEPTH):
        self._make = make
        self._ready: queue.Queue[T | BaseException] = queue.Queue(depth)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(first,), name="prefetch", daemon=True)
        self._thread.start()

    def _work(self, index: int) -> None:
        while not self._closed.is_set():
            try:
                item: T | BaseException = self._make(index)
            except BaseException as error:  # noqa: BLE001 (raised again in the thread that asks)
                item = error
            while not self._closed.is_set():
                try:
                    self._ready.put(item, timeout=0.2)
                    break
                except queue.Full:
                    continue
            if isinstance(item, BaseException):
                return
            index += 1

    def next(self) -> T:
        """The next item; raises what ``make`` raised."""
        item = self._ready.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """Stop working ahead. What was prepared is dropped."""
        self._closed.set()
        self._thread.join(timeout=5)
