"""Limiter of the pauses in which the UI answers no key.

The causes are garbage collection, and threads that hold the interpreter.

A full collection visits every object: with 100,000 runs it takes a second. It runs while no key is pressed, and the
surviving objects are frozen so that the next collections skip them. Where many objects were made since, as when hosts
report thousands of runs for the first time, they are frozen without a collection: nearly all of them stay.
"""

from __future__ import annotations

import atexit
import gc
import sys
import time
from types import TracebackType
from typing import Self

THRESHOLDS = (5000, 3, 1 << 30)  # the youngest takes 1 ms, the second 4 to 7; the oldest is collected only by `settle`
MAX_SECOND = 8  # collections of the second generation, each of up to 20,000 objects, after which all are only frozen
SWITCH_INTERVAL = 0.001  # seconds that a thread may hold the interpreter
SETTLE_INTERVAL = 10.0  # seconds between full collections
IDLE_TIME = 1.0  # seconds without input after which a pause is acceptable
BETWEEN_KEYS = 0.1  # seconds without input after which the second generation is collected before it is due
MAX_INTERVAL = 120.0  # seconds after which a full collection runs despite input
UNFREEZE_INTERVAL = 1800.0  # seconds between collections that include frozen objects
UNFREEZE_IDLE_TIME = 60.0  # seconds without input after which one may run: it takes seconds in a large fleet


class PauseLimiter:
    """Context manager, one per process. Call `settle` from a timer."""

    def __init__(self) -> None:
        self._touched = self._settled = self._unfrozen = time.monotonic()

    def __enter__(self) -> Self:
        self._before = gc.get_threshold(), sys.getswitchinterval()
        gc.freeze()  # modules and classes, which stay
        atexit.register(gc.freeze)  # else the interpreter collects all objects as it ends: 5 s with 100,000 runs
        gc.set_threshold(*THRESHOLDS)
        sys.setswitchinterval(SWITCH_INTERVAL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thresholds, interval = self._before
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
        gc.unfreeze()

    def touched(self) -> None:
        """Note user input."""
        self._touched = time.monotonic()

    @property
    def between_keys(self) -> bool:
        """Whether no key was pressed just now."""
        return time.monotonic() - self._touched >= BETWEEN_KEYS

    def settle(self) -> None:
        """Run the collections that are due and that the user's idle time allows."""
        now = time.monotonic()
        idle = now - self._touched
        if now - self._settled >= SETTLE_INTERVAL and (idle >= IDLE_TIME or now - self._settled >= MAX_INTERVAL):
            self._collect_all(now, idle)
        elif idle >= BETWEEN_KEYS and gc.get_count()[1] >= THRESHOLDS[1] - 1:
            gc.collect(1)  # else the next repaint would wait for it

    def _collect_all(self, now: float, idle: float) -> None:
        if now - self._unfrozen >= UNFREEZE_INTERVAL and idle >= UNFREEZE_IDLE_TIME:
            gc.unfreeze()  # garbage cycles among the frozen objects
            self._unfrozen = now
            gc.collect()
        elif gc.get_count()[2] <= MAX_SECOND:
            gc.collect()
        gc.freeze()
        self._settled = time.monotonic()
