"""Layout of a chart: its shapes in pixels, the same for SVG and PNG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from midstream.charts import axes
from midstream.charts.chart import Chart, Line
from midstream.charts.points import CLOCK, STEP, TIME

WIDTH, HEIGHT = 960, 540  # pixels
LEFT, RIGHT, TOP, BOTTOM = 86, 24, 56, 62
INK, FAINT, GRID = "#333333", "#888888", "#e4e4e4"
CHARACTER = 7  # pixels of a character of 12 pixels, on average
LEGEND_LINE = 18  # pixels

Point = tuple[float, float]


@dataclass(frozen=True)
class Segments:
    """Connected points."""

    points: Sequence[Point]
    colour: str
    width: float = 1.6
    opacity: float = 1.0
    dashed: bool = False


@dataclass(frozen=True)
class Dot:
    """A point without neighbours. ``hollow``: a larger circle without a filling."""

    at: Point
    colour: str
    hollow: bool = False


@dataclass(frozen=True)
class Label:
    """A text; ``at`` is on its base line. ``upward``: rotated by 90 degrees."""

    at: Point
    text: str
    anchor: Literal["start", "middle", "end"] = "start"
    size: int = 12
    colour: str = INK
    bold: bool = False
    upward: bool = False


Shape = Segments | Dot | Label


@dataclass(frozen=True)
class _Plot:
    """Position of the plot, and its scales."""

    top: float
    x_ends: tuple[float, float]
    y_ends: tuple[float, float]
    log_x: bool
    log_y: bool

    @property
    def bottom(self) -> float:
        return HEIGHT - BOTTOM

    def x(self, value: float) -> float:
        return LEFT + _share(value, self.x_ends, self.log_x) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return self.bottom - _share(value, self.y_ends, self.log_y) * (self.bottom - self.top)


def _share(value: float, ends: tuple[float, float], log: bool) -> float:
    """Return the position of a value between two ends, as 0 .. 1.

    Values below a logarithmic axis are at -infinity.
    """
    low, high = ends
    if log:
        return (math.log(value / low) / math.log(high / low)) if value > 0 else -math.inf
    return (value - low) / (high - low)


def shapes(chart: Chart) -> list[Shape]:
    """Return everything that a chart consists of, what is below first."""
    legend = _legend(chart)
    rows = 1 + max((row for row, _, _ in legend), default=0)
    plot = _Plot(TOP + (rows - 1) * LEGEND_LINE, chart.x_ends(), chart.y_ends(), chart.log_x, chart.log_y)
    title = ", ".join(dict.fromkeys(line.run for line in chart.lines if line.run))
    drawn: list[Shape] = [Label((LEFT, 24), f"{title}: {chart.metric}" if title else chart.metric, size=15, bold=True)]
    for row, at, line in legend:
        y = 44 + row * LEGEND_LINE
        drawn += [Segments(((at, y - 4), (at + 18, y - 4)), line.colour, 2.4), Label((at + 24, y), line.name)]
    if words := _settings(chart):
        drawn.append(Label((WIDTH - RIGHT, 24), words, "end", colour=FAINT))
    drawn += _axes(chart, plot)
    averages = chart.averages() if chart.smoothing else []
    faint = (1.0, 0.3) if averages else (1.6, 1.0)
    drawn += _lines(chart.lines, [line.y for line in chart.lines], plot, *faint)
    if averages:
        drawn += _lines(chart.lines, averages, plot, 1.8, 1.0)
    return drawn


def _settings(chart: Chart) -> str:
    words = [f"smoothing {chart.smoothing:.3g}"] if chart.smoothing else []
    words += ["log x"] if chart.log_x else []
    words += ["log y"] if chart.log_y else []
    return ", ".join(words)


def _legend(chart: Chart) -> list[tuple[int, float, Line]]:
    """Return (row, x, line) of each entry, one for each name."""
    legend: list[tuple[int, float, Line]] = []
    row, at = 0, float(LEFT)
    for line in {line.name: line for line in chart.lines}.values():
        width = 40 + CHARACTER * len(line.name)
        if at + width > WIDTH - RIGHT and at > LEFT:
            row, at = row + 1, float(LEFT)
        legend.append((row, at, line))
        at += width
    return legend


def _axes(chart: Chart, plot: _Plot) -> Iterator[Shape]:
    right = WIDTH - RIGHT
    for value, text in y_ticks(chart, plot.y_ends):
        y = plot.y(value)
        yield Segments(((LEFT, y), (right, y)), GRID, 1.0)
        yield Label((LEFT - 8, y + 4), text, "end")
    for value, text in x_ticks(chart, plot.x_ends):
        x = plot.x(value)
        yield Segments(((x, plot.bottom), (x, plot.bottom + 5)), FAINT, 1.0)
        yield Label((x, plot.bottom + 20), text, "middle")
    yield Segments(((LEFT, plot.top), (LEFT, plot.bottom), (right, plot.bottom)), FAINT, 1.0)
    yield Label(((LEFT + right) / 2, HEIGHT - 14), chart.x_label, "middle")
    yield Label((18, (plot.top + plot.bottom) / 2), chart.y_label, "middle", upward=True)


def y_ticks(chart: Chart, ends: tuple[float, float]) -> list[tuple[float, str]]:
    """Return (value, text) of the ticks of the y axis."""
    if chart.log_y:
        return [(value, f"{value:.3g}") for value in axes.log_ticks(*ends, 8)]
    marks = axes.ticks(*ends, 8)
    gap = marks[1] - marks[0] if len(marks) > 1 else ends[1] - ends[0]
    return [(value, axes.label(value, gap)) for value in marks]


def x_ticks(chart: Chart, ends: tuple[float, float]) -> list[tuple[float, str]]:
    """Return (value, text) of the ticks of the x axis."""
    if chart.log_x:
        text = axes.duration_label if chart.axis == TIME else axes.step_label
        return [(value, text(value)) for value in axes.log_ticks(*ends, 10)]
    if chart.axis == TIME:
        return [(value, axes.duration_label(value)) for value in axes.duration_ticks(*ends, 9)]
    if chart.axis == CLOCK:
        return axes.clock_ticks(*ends, 9)
    marks = axes.ticks(*ends, 9)
    return [(value, axes.step_label(value)) for value in marks if chart.axis != STEP or value == round(value)]


def _lines(
    lines: Sequence[Line], values: Sequence[Sequence[float]], plot: _Plot, width: float, opacity: float
) -> Iterator[Shape]:
    """Yield the shapes of lines.

    An attempt's line begins at the end of the one before it.
    """
    before: tuple[str, float, float] | None = None
    for line, y in zip(lines, values, strict=True):
        x = line.x
        if before is not None and line.run and before[0] == line.run:
            x, y = [before[1], *x], [before[2], *y]
        for points in _visible(x, y, plot):
            if len(points) == 1:
                yield Dot(points[0], line.colour)
            else:
                yield Segments(thin(points), line.colour, width, opacity)
        before = (line.run, x[-1], y[-1]) if len(x) else before


def _visible(xs: Sequence[float], ys: Sequence[float], plot: _Plot) -> Iterator[list[Point]]:
    """Yield the connected parts of a line within the plot, in pixels.

    Values beyond an end of y are drawn at it.
    """
    points: list[Point] = []
    for x, y in zip(xs, ys, strict=True):
        inside = plot.x_ends[0] <= x <= plot.x_ends[1]
        if inside and math.isfinite(y) and (y > 0 or not plot.log_y):
            points.append((plot.x(x), min(plot.bottom, max(plot.top, plot.y(y)))))
        elif points:
            yield points
            points = []
    if points:
        yield points


def thin(points: Sequence[Point]) -> list[Point]:
    """Keep the first, lowest, highest and last point of each column of pixels."""
    if len(points) <= 4 * WIDTH:
        return list(points)
    kept: list[Point] = []
    begin = 0
    for index in range(1, len(points) + 1):
        if index == len(points) or int(points[index][0]) != int(points[begin][0]):
            column = points[begin:index]
            low, high = min(column, key=lambda point: point[1]), max(column, key=lambda point: point[1])
            kept += dict.fromkeys(sorted({column[0], low, high, column[-1]}))
            begin = index
    return kept
