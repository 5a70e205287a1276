"""Adapt the poll interval of a fleet to what polling costs this machine."""

from __future__ import annotations

import time
from collections.abc import Callable

SMALL_FLEET = 50  # hosts up to which the interval never grows
TARGET_COST = 0.12  # of one core, for everything that this process does
COST_TOLERANCE = 1.4  # factor by which the cost may miss the target before the interval changes
MAX_INTERVAL = 15.0  # seconds
MEASURE_PERIOD = 5.0  # seconds


class PollInterval:
    """Seconds between two polls of each host.

    The interval grows immediately with the measured cost, and shrinks in steps. ``interval`` is the shortest; a small
    fleet always has it.
    """

    def __init__(
        self,
        interval: float,
        hosts: int,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.process_time,
    ) -> None:
        self._shortest = interval
        self._relative_size = hosts / SMALL_FLEET
        self.seconds = max(interval, min(MAX_INTERVAL, interval * self._relative_size))
        self._clock, self._spent = clock, spent
        self._at, self._before = clock(), spent()

    def measure(self) -> bool:
        """Measure the cost; call this regularly. True if ``seconds`` has changed."""
        now = self._clock()
        passed = now - self._at
        if passed < MEASURE_PERIOD or self._relative_size <= 1:
            return False
        spent = self._spent()
        cost = (spent - self._before) / passed
        self._at, self._before = now, spent
        if cost > TARGET_COST * COST_TOLERANCE:
            seconds = self.seconds * min(2.0, cost / TARGET_COST)
        elif cost < TARGET_COST / COST_TOLERANCE:
            seconds = self.seconds * 0.8
        else:
            return False
        before, self.seconds = self.seconds, round(max(self._shortest, min(MAX_INTERVAL, seconds)), 2)
        return self.seconds != before
