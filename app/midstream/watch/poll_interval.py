"""How often a fleet is looked at, so that looking stays cheap: the more it costs this machine, the seldomer."""

from __future__ import annotations

import time
from collections.abc import Callable

CROWD = 50  # hosts that one second between two looks is no matter for
AIM = 0.12  # of one core, for everything that this process does
MARGIN = 1.4  # what the aim may be missed by, either way, before anything changes
LONGEST = 15.0  # seconds between two looks
PERIOD = 5.0  # seconds that the cost is measured over


class Pace:
    """Seconds between two looks. Costs fall with their number, so the pace goes with what was measured: up at once,
    down step by step. ``interval`` is the shortest; few hosts keep it, whatever else this process is busy with."""

    def __init__(
        self,
        interval: float,
        hosts: int,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.process_time,
    ):
        self._shortest = interval
        self._crowd = hosts / CROWD
        self.seconds = max(interval, min(LONGEST, interval * self._crowd))
        self._clock, self._spent = clock, spent
        self._at, self._before = clock(), spent()

    def measure(self) -> bool:
        """To be called now and then: whether ``seconds`` has changed."""
        now = self._clock()
        passed = now - self._at
        if passed < PERIOD or self._crowd <= 1:
            return False
        spent = self._spent()
        cost = (spent - self._before) / passed
        self._at, self._before = now, spent
        if cost > AIM * MARGIN:
            wanted = self.seconds * min(2.0, cost / AIM)
        elif cost < AIM / MARGIN:
            wanted = self.seconds * 0.8
        else:
            return False
        before, self.seconds = self.seconds, round(max(self._shortest, min(LONGEST, wanted)), 2)
        return self.seconds != before
