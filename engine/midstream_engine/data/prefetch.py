"""Prefetch of batches in a background thread, in order."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
# Deep enough to hide a thread that gets no processor for some steps; a batch is small compared with a model.
DEPTH = 16


class Prefetch(Generic[T]):
    """Calls of ``make`` in a thread, ahead of their use.

    Calls ``make(first)``, ``make(first + 1)``, ..., at most ``depth`` ahead of ``next``.
    """

    def __init__(self, make: Callable[[int], T], first: int, depth: int = DEPTH) -> None:
        self._make = make
        self._ready: queue.Queue[T | BaseException] = queue.Queue(depth)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(first,), name="prefetch", daemon=True)
        self._thread.start()

    def _work(self, index: int) -> None:
        while not self._closed.is_set():
            try:
                item: T | BaseException = self._make(index)
            except BaseException as error:  # noqa: BLE001 (raised again by `next`)
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
        """Return the next item; raise what ``make`` raised."""
        item = self._ready.get()
        if isinstance(item, BaseException):
            raise item
        return item

    @property
    def ready(self) -> bool:
        """Whether `next` returns an item without waiting; false where it would raise."""
        item = self._first()
        return item is not None and not isinstance(item, BaseException)

    @property
    def failed(self) -> bool:
        """Whether `next` raises what ``make`` raised, without waiting."""
        return isinstance(self._first(), BaseException)

    def _first(self) -> T | BaseException | None:
        with self._ready.mutex:
            return self._ready.queue[0] if self._ready.queue else None

    def close(self) -> None:
        """Stop, and drop the prepared items."""
        self._closed.set()
        with contextlib.suppress(queue.Empty):
            while True:  # room for the item that the thread has
                self._ready.get_nowait()
        self._thread.join(timeout=5)
