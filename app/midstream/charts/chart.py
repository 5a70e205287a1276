"""A chart as a value: lines, axes and ranges.

`svg`, `png` and `csv_file` write it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from midstream.charts.points import CLOCK, STEP, TIME, TOKENS
from midstream.charts.smoothing import Average
from midstream.errors import UsageError

# Colours by Okabe and Ito, distinguishable with any colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
UNITS = {
    "throughput/tokens_per_second": "tokens/s",
    "throughput/duration": "s",
    "throughput/loading_time": "s",
    "throughput/total_tokens": "tokens",
    "time": "s",
}
X_UNITS = {STEP: "", TOKENS: "tokens", TIME: "s since the first step", CLOCK: "local time"}

Range = tuple[float | None, float | None]  # None: by the values
NO_RANGE: Range = (None, None)


@dataclass(frozen=True)
class Line:
    """One line: points in ascending order of x.

    Each line has one colour, and one name in the legend.
    """

    name: str
    x: array[float]
    y: array[float]
    run: str = ""
    attempt: int = 0
    number: int = 0  # of its colour

    @property
    def colour(self) -> str:
        return COLOURS[self.number % len(COLOURS)]


@dataclass(frozen=True)
class Chart:
    """Lines of one metric over one axis."""

    metric: str
    lines: Sequence[Line]
    axis: str = STEP
    unit: str = ""  # of the metric
    log_x: bool = False
    log_y: bool = False
    smoothing: float = 0.0  # factor, see `smoothing`
    x_range: Range = field(default=NO_RANGE)
    y_range: Range = field(default=NO_RANGE)

    @property
    def y_label(self) -> str:
        unit = self.unit or UNITS.get(self.metric, "")
        return f"{self.metric} ({unit})" if unit else self.metric

    @property
    def x_label(self) -> str:
        unit = X_UNITS.get(self.axis, "")
        return f"{self.axis} ({unit})" if unit and self.axis != unit else self.axis

    def x_ends(self) -> tuple[float, float]:
        """Return the visible range of x."""
        low = min((line.x[0] for line in self.lines if len(line.x)), default=0.0)
        high = max((line.x[-1] for line in self.lines if len(line.x)), default=1.0)
        return _within((low, high), self.x_range, self.log_x)

    def y_ends(self) -> tuple[float, float]:
        """Return the range of y with a margin, of finite values in the visible range of x."""
        first, last = self.x_ends()
        low, high = math.inf, -math.inf
        for line in self.lines:
            for x, y in zip(line.x, line.y, strict=True):
                if first <= x <= last and math.isfinite(y) and (y > 0 or not self.log_y):
                    low, high = min(low, y), max(high, y)
        if low > high:
            low, high = (0.1, 1.0) if self.log_y else (0.0, 1.0)
        if self.log_y:
            margin = (high / low) ** 0.04 if high > low else 1.1
            low, high = low / margin, high * margin
        else:
            margin = 0.04 * (high - low) or abs(high) * 0.05 or 1.0
            low, high = low - margin, high + margin
        return _within((low, high), self.y_range, self.log_y)

    def averages(self) -> list[list[float]]:
        """Return each line's averages, which continue in the next attempt of its run."""
        averages: list[list[float]] = []
        average, run = Average(self.smoothing, self.x_ends(), self.log_x), None
        for line in self.lines:
            if not line.run or line.run != run:
                average, run = Average(self.smoothing, self.x_ends(), self.log_x), line.run
            averages.append([average.add(x, y) for x, y in zip(line.x, line.y, strict=True)])
        return averages


def _within(ends: tuple[float, float], requested: Range, log: bool) -> tuple[float, float]:
    low = ends[0] if requested[0] is None else requested[0]
    high = ends[1] if requested[1] is None else requested[1]
    if log:
        low = low if low > 0 else min(1.0, high / 10) if high > 0 else 0.1
    return (low, high) if high > low else (low, low * 10 if log else low + 1.0)


def parse_range(text: str, what: str = "range") -> Range:
    """Parse ``LOW:HIGH``, of which one may be missing. Raises UsageError."""
    low, colon, high = text.partition(":")
    try:
        ends = (float(low) if low.strip() else None, float(high) if high.strip() else None)
        if not colon or not all(value is None or math.isfinite(value) for value in ends):
            raise ValueError(text)
        if ends[0] is not None and ends[1] is not None and ends[0] >= ends[1]:
            raise ValueError(text)
    except ValueError:
        raise UsageError(f"{what} {text!r} is not LOW:HIGH", "2:3.5; 2: and :3.5 leave one end to the values") from None
    return ends


def range_text(ends: Range) -> str:
    """Return the text that `parse_range` reads; empty for a range by the values."""
    if ends == NO_RANGE:
        return ""
    low, high = ("" if value is None else f"{value:g}" for value in ends)
    return f"{low}:{high}"
