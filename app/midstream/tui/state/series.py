"""Growing curve that can be drawn at any width, from summaries of its points.

Blocks of 16, 256, 4096, ... points have their extremes, sum and count, so that a summary of any range reads about 16
values per level. Extremes preserve every spike. A point takes about 14 bytes; appending one takes about 1 µs.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

FACTOR = 16


class Summary(NamedTuple):
    """Extremes, sum and number of the finite values in a range."""

    low: float
    high: float
    total: float
    number: int

    @property
    def mean(self) -> float:
        return self.total / self.number


class _Level:
    """Extremes, sums and counts of complete blocks."""

    __slots__ = ("counts", "highs", "lows", "sums")

    def __init__(self) -> None:
        self.lows = array("f")
        self.highs = array("f")
        self.sums = array("d")
        self.counts = array("I")


class Pyramid:
    """Summaries of any range of the values appended so far.

    Non-finite values are ignored.
    """

    def __init__(self) -> None:
        self._values = array("f")
        self._levels: list[_Level] = []  # level k: of blocks of FACTOR**(k+1) values

    def __len__(self) -> int:
        return len(self._values)

    def append(self, value: float) -> None:
        self._values.append(value)
        if len(self._values) % FACTOR == 0:
            self._close(len(self._values) - FACTOR)

    def extend(self, values: Sequence[float]) -> None:
        """Append several values."""
        begin = len(self._values)
        self._values += array("f", values)
        for start in range(begin - begin % FACTOR, len(self._values) - FACTOR + 1, FACTOR):
            self._close(start)

    def _close(self, start: int) -> None:
        """Summarize the complete block at ``start``, and each higher one it completes."""
        low, high, total, count = _summarize(self._values[start : start + FACTOR])
        level = 0
        while True:
            if level == len(self._levels):
                self._levels.append(_Level())
            at = self._levels[level]
            at.lows.append(low)
            at.highs.append(high)
            at.sums.append(total)
            at.counts.append(count)
            if len(at.lows) % FACTOR:
                return
            low, high = min(at.lows[-FACTOR:]), max(at.highs[-FACTOR:])
            total, count = sum(at.sums[-FACTOR:]), sum(at.counts[-FACTOR:])
            level += 1

    def summary(self, start: int, stop: int) -> Summary | None:
        """Summarize the values ``start <= i < stop``; None if none is finite."""
        first, last = -(-start // FACTOR), stop // FACTOR
        if not self._levels or first >= last:
            low, high, total, count = _summarize(self._values[start:stop])
            return Summary(low, high, total, count) if count else None
        low, high, total, count = _summarize(self._values[start : first * FACTOR])
        parts = [_summarize(self._values[last * FACTOR : stop])]
        for number, level in enumerate(self._levels):
            start, stop = first, last
            first, last = -(-start // FACTOR), stop // FACTOR
            top = number == len(self._levels) - 1 or first >= last
            for begin, end in ((start, stop),) if top else ((start, first * FACTOR), (last * FACTOR, stop)):
                if begin < end:
                    lows, highs = level.lows[begin:end], level.highs[begin:end]
                    parts.append((min(lows), max(highs), sum(level.sums[begin:end]), sum(level.counts[begin:end])))
            if top:
                break
        for lowest, highest, subtotal, members in parts:
            low, high, total, count = min(low, lowest), max(high, highest), total + subtotal, count + members
        return Summary(low, high, total, count) if count else None

    def extent(self, start: int, stop: int) -> tuple[float, float] | None:
        """Return (minimum, maximum) of the values ``start <= i < stop``.

        The result is None if none is finite.
        """
        summary = self.summary(start, stop)
        return (summary.low, summary.high) if summary else None

    def value(self, index: int) -> float:
        return self._values[index]

    def sample(self, start: int, stop: int, count: int = 2048) -> list[float]:
        """Return about ``count`` of the finite values, evenly spaced."""
        stride = max(1, (stop - start) // count)
        return [value for value in self._values[start:stop:stride] if math.isfinite(value)]


def _summarize(values: Sequence[float]) -> tuple[float, float, float, int]:
    """Return (low, high, sum, count) of the finite values.

    The result is (inf, -inf, 0, 0) if there is none.
    """
    total = sum(values)
    if not math.isfinite(total):
        values = [value for value in values if math.isfinite(value)]
        total = sum(values)
    return (min(values), max(values), total, len(values)) if values else (math.inf, -math.inf, 0.0, 0)


class Series:
    """Points in ascending order of ``x``, each with its attempt."""

    def __init__(self) -> None:
        self.x = array("d")
        self.values = Pyramid()
        self.attempts: list[tuple[int, int]] = []  # (index of its first point, attempt)
        self.last = math.nan

    def __len__(self) -> int:
        return len(self.x)

    def append(self, x: float, y: float, attempt: int = 0) -> None:
        self._attempt(attempt)
        self.x.append(x)
        self.values.append(y)
        self.last = y

    def extend(self, x: Sequence[float], y: Sequence[float], attempt: int = 0) -> None:
        """Append points of one attempt."""
        if len(x):
            self._attempt(attempt)
            self.x.extend(x)
            self.values.extend(y)
            self.last = y[-1]

    def _attempt(self, attempt: int) -> None:
        if not self.attempts or self.attempts[-1][1] != attempt:
            self.attempts.append((len(self.x), attempt))

    def mean(self, start: int, stop: int) -> float:
        """Return the mean of the finite values ``start <= i < stop``; NaN without any."""
        summary = self.values.summary(start, stop)
        return summary.mean if summary else math.nan

    def window(self, low: float, high: float) -> tuple[int, int]:
        """Return the index range of the points with ``low <= x <= high``."""
        return bisect_left(self.x, low), bisect_left(self.x, math.nextafter(high, math.inf))

    def nearest(self, x: float) -> int | None:
        """Return the index of the point nearest to ``x``, or None if there is no point."""
        if not self.x:
            return None
        after = bisect_left(self.x, x)
        if after == 0:
            return 0
        if after == len(self.x):
            return after - 1
        return after if self.x[after] - x < x - self.x[after - 1] else after - 1

    def columns(self, low: float, high: float, count: int, log: bool = False) -> list[tuple[int, int]]:
        """Return for each of ``count`` columns the indices (start, stop) of its points.

        The first column is centred on ``low``, the last on ``high``. With ``log``, both above 0, the columns are
        equally wide in the logarithm of x.
        """
        start, stop = self.window(low, high)
        if count < 2 or high <= low:
            return [(start, stop)] + [(stop, stop)] * (count - 1)
        step = (high - low) / (count - 1)
        edges = [start]
        for column in range(1, count):
            share = (column - 0.5) / (count - 1)
            edge = low * (high / low) ** share if log else low + (column - 0.5) * step
            edges.append(bisect_left(self.x, edge, edges[-1], stop))
        return list(zip(edges, [*edges[1:], stop], strict=True))
