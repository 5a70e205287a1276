"""A growing curve that can be drawn at any width at once: extremes of blocks of 16, of 256, of 4096 points, and so on.

Extremes keep every spike, appending costs about one microsecond, and the extremes of any stretch are found by
looking at about 16 values a level.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left

FACTOR = 16


class Pyramid:
    """Minimum and maximum over any stretch of the values appended so far. Values that are not finite count as none."""

    def __init__(self) -> None:
        # Level 0 holds the values, level k the extremes of whole blocks of FACTOR**k.
        self._levels = [(array("f"), array("f"))]

    def __len__(self) -> int:
        return len(self._levels[0][0])

    def append(self, value: float) -> None:
        low, high = (value, value) if math.isfinite(value) else (math.inf, -math.inf)
        level = 0
        while True:
            if level == len(self._levels):
                self._levels.append((array("f"), array("f")))
            lows, highs = self._levels[level]
            lows.append(low)
            highs.append(high)
            if len(lows) % FACTOR:
                return
            low, high = min(lows[-FACTOR:]), max(highs[-FACTOR:])
            level += 1

    def extent(self, start: int, stop: int) -> tuple[float, float] | None:
        """(minimum, maximum) of the values ``start <= i < stop``; None where none of them is finite."""
        low, high = math.inf, -math.inf
        top = len(self._levels) - 1
        for level, (lows, highs) in enumerate(self._levels):
            first, last = -(-start // FACTOR), stop // FACTOR
            if level == top or first >= last:
                pieces = ((start, stop),)
            else:
                pieces = ((start, first * FACTOR), (last * FACTOR, stop))
            for begin, end in pieces:
                if begin < end:
                    low, high = min(low, min(lows[begin:end])), max(high, max(highs[begin:end]))
            if len(pieces) == 1:
                break
            start, stop = first, last
        return (low, high) if low <= high else None

    def sample(self, start: int, stop: int, count: int = 2048) -> list[float]:
        """At most ``count`` of the finite values, evenly taken."""
        stride = max(1, (stop - start) // count)
        return [value for value in self._levels[0][0][start:stop:stride] if value != math.inf]


class Series:
    """Points in the order of their ``x`` (ascending), each of an attempt."""

    def __init__(self) -> None:
        self.x = array("d")
        self.values = Pyramid()
        self.attempts: list[tuple[int, int]] = []  # (index of its first point, attempt)
        self.last = math.nan
        # Sums and counts of the finite values before each point: the mean of any stretch is one subtraction.
        self._sums = array("d", (0.0,))
        self._counts = array("L", (0,))

    def __len__(self) -> int:
        return len(self.x)

    def append(self, x: float, y: float, attempt: int = 0) -> None:
        if not self.attempts or self.attempts[-1][1] != attempt:
            self.attempts.append((len(self.x), attempt))
        self.x.append(x)
        self.values.append(y)
        finite = math.isfinite(y)
        self._sums.append(self._sums[-1] + (y if finite else 0.0))
        self._counts.append(self._counts[-1] + finite)
        self.last = y

    def mean(self, start: int, stop: int) -> float:
        """Of the finite values ``start <= i < stop``; not a number where there are none."""
        count = self._counts[stop] - self._counts[start]
        return (self._sums[stop] - self._sums[start]) / count if count else math.nan

    def window(self, low: float, high: float) -> tuple[int, int]:
        """The indices of the points with ``low <= x <= high``."""
        return bisect_left(self.x, low), bisect_left(self.x, math.nextafter(high, math.inf))

    def columns(self, low: float, high: float, count: int) -> list[tuple[int, int]]:
        """For each of ``count`` columns the indices (start, stop) of its points. The first column is centred on
        ``low``, the last on ``high``."""
        start, stop = self.window(low, high)
        if count < 2 or high <= low:
            return [(start, stop)] + [(stop, stop)] * (count - 1)
        step = (high - low) / (count - 1)
        edges = [start]
        for column in range(1, count):
            edges.append(bisect_left(self.x, low + (column - 0.5) * step, edges[-1], stop))
        return list(zip(edges, [*edges[1:], stop], strict=True))
