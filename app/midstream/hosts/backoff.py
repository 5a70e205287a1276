"""Growing, randomized pauses between attempts to reach a host."""

from __future__ import annotations

import random

FIRST_PAUSE = 0.5  # seconds
MAX_PAUSE = 16.0  # seconds


class Backoff:
    """Pauses that double, each shortened by up to half at random.

    The randomness spreads the load when many hosts behind one gateway become reachable at the same moment.
    """

    def __init__(
        self, first: float = FIRST_PAUSE, longest: float = MAX_PAUSE, generator: random.Random | None = None
    ) -> None:
        self._first, self._longest = first, longest
        self._generator = generator or random.Random()
        self._attempts = 0

    def pause(self, least: float = 0.0) -> float:
        """Return the seconds until the next attempt. ``least`` replaces a shorter pause."""
        pause = min(self._longest, self._first * 2.0**self._attempts)
        self._attempts = min(self._attempts + 1, 64)
        return max(least, pause) * self._generator.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again with the first pause, after a success."""
        self._attempts = 0
