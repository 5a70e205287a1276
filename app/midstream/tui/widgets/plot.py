"""Drawing of series onto canvases, in a window of both axes."""

from __future__ import annotations

import functools
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from midstream.charts import axes
from midstream.charts.chart import NO_RANGE, Range
from midstream.tui.state.series import Series
from midstream.tui.style import palette
from midstream.tui.widgets.canvas import Canvas

DASHES = ((8, 5), (3, 3), (14, 4))  # dots drawn and left out, of the patterns 1, 2, 3
MAX_TICKS = 6  # of a short y axis, to get two numbers on it
ROBUST_SHARE = 0.995  # share of the values within the y axis; higher ones are drawn at its edge
MIN_ROBUST_VALUES = 400  # with fewer values none counts as an outlier


@dataclass(frozen=True)
class Drawn:
    """One series and its colours: by attempt if ``colour`` is empty.

    ``smooth`` also draws the average. ``hues`` maps an attempt to the number of its colour; by default that is its
    index in the series. ``dash`` is the pattern of the line, 0 for a solid one. ``given_up``: its steps do not count,
    and the scale is that of the others.
    """

    series: Series
    name: str = ""
    colour: str = ""
    smooth: bool = True
    hues: Mapping[int, int] = field(default_factory=dict)
    dash: int = 0
    given_up: bool = False

    def shade(self, number: int) -> str:
        """Return the colour of the series' ``number``-th attempt."""
        return self.colour or palette.series(self.hues.get(self.series.attempts[number][1], number))


@dataclass(frozen=True)
class Scale:
    """The y axis: its ends (their logarithms if ``log``)."""

    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float | None:
        """Map a value to 0 (top) .. 1 (bottom), beyond them if clipped.

        The result is None for a value without a logarithm.
        """
        if self.log:
            if value <= 0:
                return None
            value = math.log10(value)
        return (self.high - value) / (self.high - self.low)

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """Return (value, label) of about ``count`` ticks, ascending."""
        if not self.log:
            marks = axes.ticks(self.low, self.high, count)
            while len(marks) < 2 and count < MAX_TICKS:  # one number alone shows no scale
                count += 1
                marks = axes.ticks(self.low, self.high, count)
            gap = marks[1] - marks[0] if len(marks) > 1 else self.high - self.low
            return [(value, axes.label(value, gap)) for value in marks]
        return [(value, f"{value:.3g}") for value in axes.log_ticks(10**self.low, 10**self.high, count)]


def scale(
    shown: Sequence[Drawn],
    first: float,
    last: float,
    *,
    log: bool = False,
    robust: bool = True,
    limits: Range = NO_RANGE,
) -> Scale:
    """Return the scale from the lowest visible value to the highest.

    Args:
        shown: The series that are drawn.
        first: Lowest visible x.
        last: Highest visible x.
        log: Whether the scale is logarithmic.
        robust: Whether its top is a high percentile, so that a spike does not flatten the rest.
        limits: Ends that the user has chosen.
    """
    return _limited(_by_values(shown, first, last, log, robust), limits)


def _limited(scale: Scale, limits: Range) -> Scale:
    low, high = (
        math.log10(end) if scale.log and end is not None and end > 0 else None if scale.log else end for end in limits
    )
    low = scale.low if low is None else low
    high = scale.high if high is None else high
    return Scale(low, high if high > low else low + 1.0, scale.log)


def _by_values(shown: Sequence[Drawn], first: float, last: float, log: bool, robust: bool) -> Scale:
    values: list[float] = []
    low, top = math.inf, -math.inf
    for drawn in [drawn for drawn in shown if not drawn.given_up] or shown:
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
    high = axes.percentile(values, ROBUST_SHARE) if robust and len(values) >= MIN_ROBUST_VALUES else max(top, *values)
    high = max(low, high)
    margin = 0.04 * (high - low) or (max(abs(high) * 0.05, 1e-6) if high else 1.0)
    return Scale(low - margin, high + margin, log)


def draw(
    drawn: Drawn,
    span: tuple[float, float],
    scale: Scale,
    envelope: Canvas,
    line: Canvas,
    smoothing: float,
    log_x: bool = False,
) -> float | None:
    """Draw one series, and return the last value of its average.

    The extremes are drawn on ``envelope``, the average on ``line``.

    The average is exponential over the columns, with the time constant ``smoothing`` as a share of the visible range,
    so that smoothing and lag look the same at any length and zoom. It is normalised by the sum of its weights, which
    makes it unbiased from the first column on.

    Args:
        drawn: The series and its colours.
        span: Visible range of the x axis.
        scale: The y axis.
        envelope: Canvas of the extremes.
        line: Canvas of the average.
        smoothing: Time constant as a share of the visible range; 0 for no average.
        log_x: The x axis is logarithmic.
    """
    series = drawn.series
    dots = 4 * envelope.height

    def to_dot(value: float) -> int:
        share = scale.place(value)
        return dots - 1 if share is None else min(dots - 1, max(0, int(share * dots)))

    colour_of, faded = colours(drawn), functools.cache(palette.faded)  # the theme may change between two paints
    smooth = drawn.smooth and smoothing > 0 and len(series) >= 8
    before: tuple[int, int, int] | None = None  # the last drawn column, its top dot and its bottom dot
    averaged: tuple[int, int] | None = None  # the last column of the average, and its dot
    decay = math.exp(-1 / (max(smoothing, 1e-6) * 2 * envelope.width))
    pattern = DASHES[(drawn.dash - 1) % len(DASHES)]
    total = weight = 0.0
    behind = 0
    columns = series.columns(*span, 2 * envelope.width, log_x)
    for column, ((start, stop), summary) in enumerate(zip(columns, series.values.summaries(columns), strict=True)):
        if start == stop:
            continue
        if summary is None:  # only non-finite values: a gap
            before = averaged = None
            continue
        colour = colour_of(stop - 1)
        raw = faded(colour) if smooth else colour
        top, bottom = to_dot(summary.high), to_dot(summary.low)
        shown = not drawn.dash or column % sum(pattern) < pattern[0]
        if before is not None and shown:
            at, above, under = before
            if column - at > 1:
                envelope.line(at, (above + under) // 2, column, (top + bottom) // 2, raw)
            elif top > under:
                envelope.column(column, under + 1, top, raw)
            elif bottom < above:
                envelope.column(column, bottom, above - 1, raw)
        if shown:
            envelope.column(column, top, bottom, raw)
        before = (column, top, bottom)
        if smooth:
            fade = decay ** (column - behind)
            total, weight, behind = total * fade + summary.mean, weight * fade + 1.0, column
            y = to_dot(total / weight)
            if averaged is not None and shown:
                line.line(averaged[0], averaged[1], column, y, colour)
            elif shown:
                line.column(column, y, y, colour)
            averaged = (column, y)
    return total / weight if weight else None


def colours(drawn: Drawn) -> Callable[[int], str]:
    """Return a function from the index of a point to the colour of its attempt."""
    if drawn.colour:
        return lambda _: drawn.colour
    starts = [start for start, _ in drawn.series.attempts]
    shades = [drawn.shade(number) for number in range(len(starts))]

    def colour(index: int) -> str:
        return shades[max(0, bisect_right(starts, index) - 1)]

    return colour


def cell_of(x: float, span: tuple[float, float], columns: int, log: bool = False) -> int:
    """Return the column, of ``columns``, that contains an x of the span."""
    if log:
        x, span = math.log(max(x, span[0])), (math.log(span[0]), math.log(span[1]))
    width = max(span[1] - span[0], 1e-9)
    return min(columns - 1, max(0, int((x - span[0]) / width * (2 * columns - 1) + 0.5) // 2))


def x_of(cell: int, span: tuple[float, float], columns: int, log: bool = False) -> float:
    """Return the x in the middle of a column."""
    share = (2 * cell + 0.5) / max(1, 2 * columns - 1)
    return span[0] * (span[1] / span[0]) ** share if log else span[0] + (span[1] - span[0]) * share
