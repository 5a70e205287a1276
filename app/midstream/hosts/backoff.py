"""How long to wait before a door is knocked at again: longer each time, and never in step with others."""

from __future__ import annotations

import random

FIRST = 0.5  # seconds
LONGEST = 16.0  # seconds


class Backoff:
    """Pauses that double, each cut by up to half at random: many hosts behind one door that has just opened again
    should not all knock at once."""

    def __init__(self, first: float = FIRST, longest: float = LONGEST, draw: random.Random | None = None):
        self._first, self._longest = first, longest
        self._draw = draw or random.Random()
        self._tries = 0

    def pause(self, least: float = 0.0) -> float:
        """Seconds until the next try. ``least`` stands in the place of a shorter pause."""
        whole = min(self._longest, self._first * 2.0**self._tries)
        self._tries = min(self._tries + 1, 64)
        return max(least, whole) * self._draw.uniform(0.5, 1.0)

    def reset(self) -> None:
        """It was reached."""
        self._tries = 0
