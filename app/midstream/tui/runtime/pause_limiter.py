"""Limiter of the pauses in which the UI answers no key.

The causes are garbage collection, and threads that hold the interpreter.

A full collection visits every object: with thousands of runs it takes 0.2 s. It runs while no key is pressed, and the
surviving objects are frozen so that the next collections skip them.
"""

from __future__ import annotations

import gc
import sys
import time
from types import TracebackType
from typing import Self

THRESHOLDS = (5000, 3, 1 << 30)  # young generations take 1 to 2 ms; the oldest is collected only by `settle`
SWITCH_INTERVAL = 0.001  # seconds that a thread may hold the interpreter
SETTLE_INTERVAL = 10.0  # seconds between full collections
IDLE_TIME = 1.0  # seconds without input after which a pause is acceptable
MAX_INTERVAL = 120.0  # seconds after which a full collection runs despite input
UNFREEZE_INTERVAL = 1800.0  # seconds between collections that include frozen objects


class PauseLimiter:
    """Context manager, one per process. Call `settle` from a timer."""

    def __init__(self) -> None:
        self._touched = self._settled = self._unfrozen = time.monotonic()

    def __enter__(self) -> Self:
        self._before = gc.get_threshold(), sys.getswitchinterval()
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

    def settle(self) -> None:
        """Run a full collection if one is due and the user is idle."""
        now = time.monotonic()
        if now - self._settled < SETTLE_INTERVAL or (
            now - self._touched < IDLE_TIME and now - self._settled < MAX_INTERVAL
        ):
            return
        if now - self._unfrozen > UNFREEZE_INTERVAL:  # garbage cycles among the frozen objects
            gc.unfreeze()
            self._unfrozen = now
        gc.collect()
        gc.freeze()
        self._settled = time.monotonic()
