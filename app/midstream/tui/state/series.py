"""Growing curve that can be drawn at any width, from summaries of its points.

Blocks of 16, 256, 4096, ... points have their extremes, sum and count, so that a summary of any range reads about 16
values per level. Extremes preserve every spike. A point takes about 14 bytes; appending one of many takes about 0.2 µs.
"""

from __future__ import annotations

import itertools
import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

FACTOR = 16
WIDE = 64 * FACTOR  # points of a column, from which on it ends with a block

Number = TypeVar("Number", int, float)


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

    def add(self, low: float, high: float, total: float, count: int) -> None:
        """Add a block."""
        self.lows.append(low)
        self.highs.append(high)
        self.sums.append(total)
        self.counts.append(count)


class Pyramid:
    """Summaries of any range of the values appended so far.

    Non-finite values are ignored.
    """

    def __init__(self) -> None:
        self._values = array("f")
        self._levels: list[_Level] = []  # level k: of blocks of FACTOR**(k+1) values
        self._known: dict[tuple[int, int], Summary | None] = {}  # of the last call of `summaries`

    def __len__(self) -> int:
        return len(self._values)

    def append(self, value: float) -> None:
        self._values.append(value)
        if len(self._values) % FACTOR == 0:
            self._close()

    def extend(self, values: Sequence[float]) -> None:
        """Append several values."""
        self._values += array("f", values)
        self._close()

    def _close(self) -> None:
        """Summarize the blocks that are complete by now, level by level."""
        begin, stop = self._complete(0, len(self._values))
        if begin == stop:
            return
        level, added = self._levels[0], self._values[begin:stop]
        if math.isfinite(sum(added)):
            blocks = _blocks(added)
            level.lows.extend(map(min, blocks))
            level.highs.extend(map(max, blocks))
            level.sums.extend(map(sum, blocks))
            level.counts.extend(array("I", [FACTOR]) * len(blocks))
        else:
            for start in range(0, len(added), FACTOR):
                level.add(*_summarize(added[start : start + FACTOR]))
        for number in itertools.count(1):
            below = self._levels[number - 1]
            begin, stop = self._complete(number, len(below.lows))
            if begin == stop:
                return
            level = self._levels[number]
            level.lows.extend(map(min, _blocks(below.lows[begin:stop])))
            level.highs.extend(map(max, _blocks(below.highs[begin:stop])))
            level.sums.extend(map(sum, _blocks(below.sums[begin:stop])))
            level.counts.extend(map(sum, _blocks(below.counts[begin:stop])))

    def _complete(self, number: int, length: int) -> tuple[int, int]:
        """Return which of the ``length`` values below a level complete new blocks of it."""
        done = len(self._levels[number].lows) if number < len(self._levels) else 0
        if number == len(self._levels) and length >= FACTOR:
            self._levels.append(_Level())
        return done * FACTOR, length - length % FACTOR

    def summaries(self, ranges: Sequence[tuple[int, int]]) -> list[Summary | None]:
        """Summarize several ranges; those of the last call are known.

        Values are only appended, so that the summary of a range of them stays.
        """
        earlier, self._known = self._known, {}
        length = len(self._values)
        for start, stop in ranges:
            key = start, min(stop, length)
            self._known[key] = earlier[key] if key in earlier else self.summary(*key)
        return [self._known[start, min(stop, length)] for start, stop in ranges]

    def summary(self, start: int, stop: int) -> Summary | None:
        """Summarize the values ``start <= i < stop``; None if none is finite."""
        first, last = -(-start // FACTOR), stop // FACTOR
        if not self._levels or first >= last:
            low, high, total, count = _summarize(self._values[start:stop])
            return Summary(low, high, total, count) if count else None
        low, high, total, count = math.inf, -math.inf, 0.0, 0
        for begin, end in ((start, first * FACTOR), (last * FACTOR, stop)):
            if begin < end:
                lowest, highest, subtotal, members = _summarize(self._values[begin:end])
                low, high, total, count = min(low, lowest), max(high, highest), total + subtotal, count + members
        for number, level in enumerate(self._levels):
            start, stop = first, last
            first, last = -(-start // FACTOR), stop // FACTOR
            top = number == len(self._levels) - 1 or first >= last
            for begin, end in ((start, stop),) if top else ((start, first * FACTOR), (last * FACTOR, stop)):
                if begin < end:
                    low, high = min(low, *level.lows[begin:end]), max(high, *level.highs[begin:end])
                    total, count = total + sum(level.sums[begin:end]), count + sum(level.counts[begin:end])
            if top:
                break
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


def _blocks(values: Sequence[Number]) -> list[tuple[Number, ...]]:
    return list(zip(*(values[offset::FACTOR] for offset in range(FACTOR)), strict=True))


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
        equally wide in the logarithm of x. A column of many points ends with a block of the pyramid, up to a 64th of
        its width too early: a point that is appended then leaves nearly all columns as they are.
        """
        start, stop = self.window(low, high)
        if count < 2 or high <= low:
            return [(start, stop)] + [(stop, stop)] * (count - 1)
        step = (high - low) / (count - 1)
        edges = [start]
        for column in range(1, count):
            share = (column - 0.5) / (count - 1)
            edge = low * (high / low) ** share if log else low + (column - 0.5) * step
            index = bisect_left(self.x, edge, edges[-1], stop)
            edges.append(index - index % FACTOR if index - edges[-1] >= WIDE else index)
        return list(zip(edges, [*edges[1:], stop], strict=True))
