"""How a curve is drawn: series onto dots, in a window of both axes. No widget, no state."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from midstream.tui import palette
from midstream.tui.widgets import axes
from midstream.tui.widgets.canvas import Canvas
from midstream.tui.widgets.series import Series

ROBUST = 0.995  # share of the values that the y axis is made to hold; what is higher is drawn at the edge
FEW = 400  # values below which none of them is an outlier


@dataclass(frozen=True)
class Drawn:
    """One series and its colours: by attempt where ``colour`` is empty. ``smooth`` draws the average too. ``hues``:
    attempt -> the number of its colour; where it is not said, attempts have their numbers in the series."""

    series: Series
    name: str = ""
    colour: str = ""
    smooth: bool = True
    hues: Mapping[int, int] = field(default_factory=dict)

    def shade(self, number: int) -> str:
        """The colour of the series' ``number``-th attempt."""
        return self.colour or palette.series(self.hues.get(self.series.attempts[number][1], number))


@dataclass(frozen=True)
class Scale:
    """The y axis: its ends, and whether it is logarithmic (then the ends are, too)."""

    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float | None:
        """0 at the top to 1 at the bottom; beyond them where the value is clipped. None where it has no place."""
        if self.log:
            if value <= 0:
                return None
            value = math.log10(value)
        return (self.high - value) / (self.high - self.low)

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """(value, label), ascending."""
        if not self.log:
            marks = axes.ticks(self.low, self.high, count)
            gap = marks[1] - marks[0] if len(marks) > 1 else self.high - self.low
            return [(value, axes.label(value, gap)) for value in marks]
        return [(value, f"{value:.3g}") for value in axes.log_ticks(10**self.low, 10**self.high, count)]


def scale(shown: Sequence[Drawn], first: float, last: float, *, log: bool = False, robust: bool = True) -> Scale:
    """From the lowest value in sight to the highest; with ``robust`` to a high percentile, so that a spike does not
    flatten the rest."""
    values: list[float] = []
    low, top = math.inf, -math.inf
    for drawn in shown:
        start, stop = drawn.series.window(first, last)
        extent = drawn.series.values.extent(start, stop) if start < stop else None
        if extent:
            low, top = min(low, extent[0]), max(top, extent[1])
            values += drawn.series.values.sample(start, stop)
    if log:
        values = [math.log10(value) for value in values if value > 0]
        low = min(values, default=math.inf)
        top = math.log10(top) if top > 0 else -math.inf
    if not values:
        return Scale(0.0, 1.0, log) if not math.isfinite(low) else Scale(low, low + 1.0, log)
    high = axes.percentile(values, ROBUST) if robust and len(values) >= FEW else max(top, *values)
    high = max(low, high)
    margin = 0.04 * (high - low) or max(abs(high) * 0.05, 1e-6)
    return Scale(low - margin, high + margin, log)


def draw(
    drawn: Drawn,
    span: tuple[float, float],
    scale: Scale,
    envelope: Canvas,
    line: Canvas,
    smoothing: float,
) -> float | None:
    """Draws one series, its extremes on ``envelope`` and its average on ``line``; the last value of the average.

    The average is an exponential one over the columns, its time constant ``smoothing`` as a share of what is in sight:
    it smooths as much at any length and any zoom, and lags as little. It is normalised by the sum of its weights, so
    that it is unbiased from the first column on.
    """
    series = drawn.series
    dots = 4 * envelope.height

    def to_dot(value: float) -> int:
        share = scale.place(value)
        return dots - 1 if share is None else min(dots - 1, max(0, int(share * dots)))

    colour_of = colours(drawn)
    smooth = drawn.smooth and smoothing > 0 and len(series) >= 8
    before: tuple[int, int, int] | None = None  # the column drawn last, and the dots it reaches from and to
    averaged: tuple[int, int] | None = None  # likewise of the average
    decay = math.exp(-1 / (max(smoothing, 1e-6) * 2 * envelope.width))
    total = weight = 0.0
    behind = 0
    for column, (start, stop) in enumerate(series.columns(*span, 2 * envelope.width)):
        if start == stop:
            continue
        found = series.values.stretch(start, stop)
        if found is None:  # measured, and not a number: a gap
            before = averaged = None
            continue
        colour = colour_of(stop - 1)
        raw = palette.faded(colour) if smooth else colour
        top, bottom = to_dot(found.high), to_dot(found.low)
        if before is not None:
            at, above, under = before
            if column - at > 1:
                envelope.line(at, (above + under) // 2, column, (top + bottom) // 2, raw)
            elif top > under:
                envelope.column(column, under + 1, top, raw)
            elif bottom < above:
                envelope.column(column, bottom, above - 1, raw)
        envelope.column(column, top, bottom, raw)
        before = (column, top, bottom)
        if smooth:
            fade = decay ** (column - behind)
            total, weight, behind = total * fade + found.mean, weight * fade + 1.0, column
            y = to_dot(total / weight)
            if averaged is not None:
                line.line(averaged[0], averaged[1], column, y, colour)
            else:
                line.column(column, y, y, colour)
            averaged = (column, y)
    return total / weight if weight else None


def colours(drawn: Drawn) -> Callable[[int], str]:
    """From the index of a point to the colour of its attempt."""
    if drawn.colour:
        return lambda index: drawn.colour
    starts = [start for start, _ in drawn.series.attempts]
    shades = [drawn.shade(number) for number in range(len(starts))]

    def colour(index: int) -> str:
        return shades[max(0, bisect_right(starts, index) - 1)]

    return colour


def cell_of(x: float, span: tuple[float, float], columns: int) -> int:
    """The cell column, of ``columns``, in which an x of the span lies."""
    width = max(span[1] - span[0], 1e-9)
    return min(columns - 1, max(0, int((x - span[0]) / width * (2 * columns - 1) + 0.5) // 2))


def x_of(cell: int, span: tuple[float, float], columns: int) -> float:
    """The x in the middle of a cell column."""
    return span[0] + (span[1] - span[0]) * (2 * cell + 0.5) / max(1, 2 * columns - 1)
