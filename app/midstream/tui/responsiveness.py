"""Pauses in which no key is answered, kept short: by the garbage collector, and by threads that hold the interpreter.

A full collection looks at every object: with thousands of runs that takes a fifth of a second. So it comes when nobody
presses keys, and what it has looked at once it does not look at again for a while.
"""

from __future__ import annotations

import gc
import sys
import time
from types import TracebackType
from typing import Self

YOUNG = (5000, 3, 1 << 30)  # objects; young ones are looked at in a millisecond or two, old ones not by themselves
SWITCH = 0.001  # seconds for which a thread may keep the others waiting
SETTLE = 10.0  # seconds between two looks at what has become old since
REST = 1.0  # seconds without a key after which nobody minds a pause
OLDEST = 120.0  # seconds after which it is done whatever is pressed
ALL = 1800.0  # seconds between two looks at all


class Pauses:
    """In force while it is entered: one process has one collector. `settle` is to be called now and then."""

    def __init__(self) -> None:
        self._touched = self._settled = self._all = time.monotonic()

    def __enter__(self) -> Self:
        self._before = gc.get_threshold(), sys.getswitchinterval()
        gc.set_threshold(*YOUNG)
        sys.setswitchinterval(SWITCH)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        thresholds, interval = self._before
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
        gc.unfreeze()

    def touched(self) -> None:
        """A person has just done something."""
        self._touched = time.monotonic()

    def settle(self) -> None:
        """Collect what has become garbage, where this is the time for it."""
        now = time.monotonic()
        if now - self._settled < SETTLE or (now - self._touched < REST and now - self._settled < OLDEST):
            return
        if now - self._all > ALL:  # cycles that were frozen alive, and died since
            gc.unfreeze()
            self._all = now
        gc.collect()
        gc.freeze()
        self._settled = time.monotonic()
