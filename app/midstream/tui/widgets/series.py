"""A growing curve that can be drawn at any width at once: blocks of 16 points, of 256, of 4096, and so on.

Each block knows its extremes, sum and count, so that what any stretch holds is found by looking at about 16 values a
level. Extremes keep every spike; a point takes about 14 bytes, appending one about a microsecond.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

FACTOR = 16


@dataclass(frozen=True)
class Stretch:
    """What the finite values of a stretch are together."""

    low: float
    high: float
    total: float
    count: int

    @property
    def mean(self) -> float:
        return self.total / self.count


class _Level:
    """Extremes, sums and counts of whole blocks."""

    __slots__ = ("counts", "highs", "lows", "sums")

    def __init__(self) -> None:
        self.lows = array("f")
        self.highs = array("f")
        self.sums = array("d")
        self.counts = array("I")


class Pyramid:
    """What any stretch of the values appended so far holds. Values that are not finite count as none."""

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
        """The same as appending one after the other."""
        begin = len(self._values)
        self._values += array("f", values)
        for start in range(begin - begin % FACTOR, len(self._values) - FACTOR + 1, FACTOR):
            self._close(start)

    def _close(self, start: int) -> None:
        """The block of values that begins at ``start`` is whole: so may be blocks of blocks."""
        low, high, total, count = _of(self._values[start : start + FACTOR])
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

    def stretch(self, start: int, stop: int) -> Stretch | None:
        """Of the values ``start <= i < stop``; None where none of them is finite."""
        first, last = -(-start // FACTOR), stop // FACTOR
        if not self._levels or first >= last:
            low, high, total, count = _of(self._values[start:stop])
            return Stretch(low, high, total, count) if count else None
        found = [_of(self._values[start : first * FACTOR]), _of(self._values[last * FACTOR : stop])]
        for number, level in enumerate(self._levels):
            start, stop = first, last
            first, last = -(-start // FACTOR), stop // FACTOR
            top = number == len(self._levels) - 1 or first >= last
            pieces = ((start, stop),) if top else ((start, first * FACTOR), (last * FACTOR, stop))
            for begin, end in pieces:
                if begin < end:
                    total, count = sum(level.sums[begin:end]), sum(level.counts[begin:end])
                    found.append((min(level.lows[begin:end]), max(level.highs[begin:end]), total, count))
            if top:
                break
        count = sum(entry[3] for entry in found)
        if not count:
            return None
        lows, highs, totals, _ = zip(*found, strict=True)
        return Stretch(min(lows), max(highs), sum(totals), count)

    def extent(self, start: int, stop: int) -> tuple[float, float] | None:
        """(minimum, maximum) of the values ``start <= i < stop``; None where none of them is finite."""
        found = self.stretch(start, stop)
        return (found.low, found.high) if found else None

    def value(self, index: int) -> float:
        return self._values[index]

    def sample(self, start: int, stop: int, count: int = 2048) -> list[float]:
        """At most about ``count`` of the finite values, evenly taken."""
        stride = max(1, (stop - start) // count)
        return [value for value in self._values[start:stop:stride] if math.isfinite(value)]


def _of(values: Sequence[float]) -> tuple[float, float, float, int]:
    """(low, high, sum, count) of the finite ones; (inf, -inf, 0, 0) of none."""
    total = sum(values)
    if not math.isfinite(total):
        values = [value for value in values if math.isfinite(value)]
        total = sum(values)
    return (min(values), max(values), total, len(values)) if values else (math.inf, -math.inf, 0.0, 0)


class Series:
    """Points in the order of their ``x`` (ascending), each of an attempt."""

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
        """Points of one attempt."""
        if len(x):
            self._attempt(attempt)
            self.x.extend(x)
            self.values.extend(y)
            self.last = y[-1]

    def _attempt(self, attempt: int) -> None:
        if not self.attempts or self.attempts[-1][1] != attempt:
            self.attempts.append((len(self.x), attempt))

    def mean(self, start: int, stop: int) -> float:
        """Of the finite values ``start <= i < stop``; not a number where there are none."""
        found = self.values.stretch(start, stop)
        return found.mean if found else math.nan

    def window(self, low: float, high: float) -> tuple[int, int]:
        """The indices of the points with ``low <= x <= high``."""
        return bisect_left(self.x, low), bisect_left(self.x, math.nextafter(high, math.inf))

    def nearest(self, x: float) -> int | None:
        """The index of the point that is nearest to ``x``; None where there is no point."""
        if not self.x:
            return None
        after = bisect_left(self.x, x)
        if after == 0:
            return 0
        if after == len(self.x):
            return after - 1
        return after if self.x[after] - x < x - self.x[after - 1] else after - 1

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
