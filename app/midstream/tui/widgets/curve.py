"""CurveView: curves in braille, a bright moving average over the dim envelope of all that was measured."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from midstream.tui import palette
from midstream.tui.format import loss
from midstream.tui.glyphs import UNICODE, Glyphs
from midstream.tui.widgets import axes
from midstream.tui.widgets.canvas import BRAILLE, Canvas
from midstream.tui.widgets.series import Series

SMOOTHING = 0.015  # time constant of the average, as a share of the x axis in sight
ROBUST = 0.995  # share of the values that the y axis is made to hold; what is higher is drawn at the edge


@dataclass(frozen=True)
class Drawn:
    """One series and its colours: by attempt where ``colour`` is empty. ``smooth`` draws the average too."""

    series: Series
    name: str = ""
    colour: str = ""
    smooth: bool = True


class CurveView(Widget):
    """One or several curves over the training step, drawn at any length in about a millisecond.

    ``rows`` given to :meth:`show` are a run's spliced rows; growing ones are appended, others are drawn anew.
    """

    DEFAULT_CSS = "CurveView { height: 1fr; width: 1fr; }"

    def __init__(self, glyphs: Glyphs = UNICODE, *, empty: str = "no points yet", id: str | None = None) -> None:
        super().__init__(id=id)
        self.glyphs = glyphs
        self.empty = empty
        self.metric = "train/loss"
        self.tail = 1.0  # share of the x axis that is shown, from its end
        self.marks: tuple[tuple[float, str], ...] = ()  # further marks on the x axis: (step, label)
        self._drawn: tuple[Drawn, ...] = ()
        self._names: Mapping[int, str] = {}
        self._range: tuple[float, float] | None = None
        self._rows: Sequence[Mapping[str, Any]] = ()
        self._taken = 0
        self._fingerprint: tuple[Any, ...] = ()
        self._lines: list[Strip] = []
        self._painted: tuple[Any, ...] = ()

    # ------------------------------------------------------------------------------------------ what is shown

    def show(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        metric: str = "train/loss",
        names: Mapping[int, str] | None = None,
        attempt: int = 0,
        empty: str = "no points yet",
    ) -> None:
        """Draw ``metric`` of a run's rows. ``names``: attempt -> what it ran on, for the legend. ``attempt``: the
        run's newest one, which may be replacing the steps of an older one."""
        if rows is self._rows and metric == self.metric and names == self._names and empty == self.empty:
            return
        self.empty = empty
        self._names = names or {}
        grown = metric == self.metric and self._drawn and self._taken <= len(rows) and self._same_prefix(rows, attempt)
        if not grown:
            self.metric = metric
            self._drawn = (Drawn(Series()),)
            self._taken = 0
        series = self._drawn[0].series
        for index in range(self._taken, len(rows)):
            row = rows[index]
            if metric in row:
                value = row[metric]
                series.append(
                    row["global_step"], float("nan") if value is None else float(value), row.get("attempt", 0)
                )
        self._rows, self._taken = rows, len(rows)
        self._fingerprint = _fingerprint(rows)
        self._redraw()

    def compare(self, drawn: Sequence[Drawn], *, window: tuple[float, float] | None, empty: str = "") -> None:
        """Lay several series over each other, in a window of the x axis (None: all of it)."""
        self._drawn = tuple(drawn)
        self._range = window
        self.empty = empty or self.empty
        self._rows, self._taken, self._fingerprint = (), 0, ()
        self._redraw()

    def zoom(self, share: float) -> None:
        """Show the last ``share`` (0..1) of the x axis."""
        self.tail = share
        self._redraw()

    def _same_prefix(self, rows: Sequence[Mapping[str, Any]], attempt: int) -> bool:
        """Whether what was taken is still the beginning of ``rows``. A few rows tell, but for an attempt that runs
        through the steps of an older one: it changes rows in the middle, and then all are looked at."""
        if _fingerprint(rows, self._taken) != self._fingerprint:
            return False
        replacing = bool(attempt and self._taken and rows[-1].get("attempt") != attempt)
        return not replacing or all(map(operator.is_, self._rows, rows))

    def _redraw(self) -> None:
        self._painted = ()
        self.refresh()

    # ------------------------------------------------------------------------------------------ painting

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        base = self.rich_style
        key = (width, height, base)
        if self._painted != key:
            self._lines = [Strip(line).adjust_cell_length(width, base) for line in self._paint(width, height, base)]
            self._painted = key
        return self._lines[y] if y < len(self._lines) else Strip.blank(width, base)

    def _paint(self, width: int, height: int, base: Style) -> list[list[Segment]]:
        shown = [drawn for drawn in self._drawn if len(drawn.series)]
        span = self._span(shown)
        if span is None or height < 4 or width < 24:
            return self._nothing(width, height, base)
        low, high = self._heights(shown, *span)
        rows = height - 3  # the title above, axis and labels below
        marks = axes.ticks(low, high, max(1, rows // 4))
        gap = marks[1] - marks[0] if len(marks) > 1 else high - low
        labels = {self._row(value, low, high, rows): axes.label(value, gap) for value in marks}
        gutter = max([len(text) for text in labels.values()] + [4]) + 1
        columns = width - gutter - 2
        envelope, line = Canvas(columns, rows), Canvas(columns, rows)
        averages = [self._draw(drawn, span, (low, high), envelope, line) for drawn in shown]
        seams = self._seams(shown, span, columns)
        return [
            self._title(shown, averages[-1], width, base),
            *self._plot(envelope, line, labels, gutter, {column for column, _, _ in seams}, base),
            *self._x_axis(span, gutter, columns, seams, base),
        ]

    def _nothing(self, width: int, height: int, base: Style) -> list[list[Segment]]:
        text = f"{self.metric}: {self.empty}"[:width]
        lines: list[list[Segment]] = [[] for _ in range(max(0, height))]
        if lines:
            left = (width - len(text)) // 2
            lines[(height - 1) // 2] = [Segment(" " * left, base), Segment(text, base + Style(color=palette.DIM))]
        return lines

    def _span(self, shown: Sequence[Drawn]) -> tuple[float, float] | None:
        if not shown:
            return None
        if self._range is not None:
            return self._range
        first = min(drawn.series.x[0] for drawn in shown)
        last = max(drawn.series.x[-1] for drawn in shown)
        return last - (last - first) * self.tail, last

    def _heights(self, shown: Sequence[Drawn], first: float, last: float) -> tuple[float, float]:
        """The y axis: from the lowest value to the 99.5th percentile, so that a spike does not flatten the rest."""
        values: list[float] = []
        low = math.inf
        for drawn in shown:
            start, stop = drawn.series.window(first, last)
            extent = drawn.series.values.extent(start, stop) if start < stop else None
            if extent:
                low = min(low, extent[0])
                values += drawn.series.values.sample(start, stop)
        if not values:
            return (low, low + 1.0) if math.isfinite(low) else (0.0, 1.0)
        high = max(low, axes.percentile(values, ROBUST) if len(values) >= 400 else max(values))
        margin = 0.04 * (high - low) or max(abs(high) * 0.05, 1e-6)
        return low - margin, high + margin

    @staticmethod
    def _row(value: float, low: float, high: float, rows: int) -> int:
        """The cell row, from the top, of a value."""
        return min(rows - 1, max(0, int((high - value) / (high - low) * rows)))

    def _draw(
        self, drawn: Drawn, span: tuple[float, float], heights: tuple[float, float], envelope: Canvas, line: Canvas
    ) -> float | None:
        """Draws one series; the last value of its average.

        The average is an exponential one over the columns, its time constant a share of what is in sight: it smooths
        as much at any length and any zoom, and lags as little. It is normalised by the sum of its weights, so that
        it is unbiased from the first column on.
        """
        series = drawn.series
        low, high = heights
        dots = 4 * envelope.height

        def to_dot(value: float) -> int:
            return min(dots - 1, max(0, int((high - value) / (high - low) * dots)))

        colour_of = self._colours(drawn)
        smooth = drawn.smooth and len(series) >= 8
        before: tuple[int, int, int] | None = None  # the column drawn last, and the dots it reaches from and to
        averaged: tuple[int, int] | None = None  # likewise of the average
        decay = math.exp(-1 / (SMOOTHING * 2 * envelope.width))
        total = weight = 0.0
        behind = 0
        for column, (start, stop) in enumerate(series.columns(*span, 2 * envelope.width)):
            if start == stop:
                continue
            extent = series.values.extent(start, stop)
            if extent is None:  # measured, and not a number: a gap
                before = averaged = None
                continue
            colour = colour_of(stop - 1)
            raw = palette.faded(colour) if smooth else colour
            top, bottom = to_dot(extent[1]), to_dot(extent[0])
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
                total, weight, behind = total * fade + series.mean(start, stop), weight * fade + 1.0, column
                y = to_dot(total / weight)
                if averaged is not None:
                    line.line(averaged[0], averaged[1], column, y, colour)
                else:
                    line.column(column, y, y, colour)
                averaged = (column, y)
        return total / weight if weight else None

    def _colours(self, drawn: Drawn) -> Callable[[int], str]:
        """From the index of a point to the colour of its attempt."""
        if drawn.colour:
            return lambda index: drawn.colour
        starts = drawn.series.attempts

        def colour(index: int) -> str:
            number = sum(1 for start, _ in starts if start <= index) - 1
            return palette.series(max(0, number))

        return colour

    def _seams(self, shown: Sequence[Drawn], span: tuple[float, float], columns: int) -> list[tuple[int, str, str]]:
        """(cell column, label, colour) of every change of attempt in sight, and of the marks that were given."""
        first, last = span
        found: list[tuple[float, str, str]] = [(step, label, palette.TEXT) for step, label in self.marks]
        for drawn in shown:
            for number, (index, attempt) in enumerate(drawn.series.attempts):
                if number and not drawn.colour:
                    name = self._names.get(attempt, f"attempt {attempt}")
                    found.append((drawn.series.x[index], name, palette.series(number)))
        width = max(last - first, 1e-9)
        return [
            (min(columns - 1, int((step - first) / width * (2 * columns - 1) + 0.5) // 2), label, colour)
            for step, label, colour in sorted(found)
            if first <= step <= last
        ]

    # ------------------------------------------------------------------------------------------ the frame

    def _title(self, shown: Sequence[Drawn], average: float | None, width: int, base: Style) -> list[Segment]:
        dim = base + Style(color=palette.DIM)
        segments = [Segment(f" {self.metric} ", base + Style(color=palette.TEXT, bold=True))]
        if len(shown) == 1 and not shown[0].name:
            series = shown[0].series
            segments.append(Segment(f"{loss(series.last)} ", base + Style(color=palette.TEXT)))
            if average is not None:
                segments.append(Segment(f" mean {loss(average)} ", dim))
            if self.tail < 1:
                segments.append(Segment(f" last {100 * self.tail:.0f}% ", base + Style(color=palette.WAIT)))
            legend = [
                (self._names.get(attempt, f"attempt {attempt}"), palette.series(number))
                for number, (_, attempt) in enumerate(series.attempts)
            ]
        else:
            legend = [(drawn.name, drawn.colour or palette.series(0)) for drawn in shown]
        used = sum(len(segment.text) for segment in segments)
        tail: list[Segment] = []
        for name, colour in reversed(legend):  # the newest are the ones to name where room is scarce
            text = f"{self.glyphs.rule * 2} {name}  "
            if used + len(text) + sum(len(segment.text) for segment in tail) > width - 2:
                break
            tail.insert(0, Segment(text, base + Style(color=colour)))
        room = width - used - sum(len(segment.text) for segment in tail)
        return [*segments, Segment(" " * max(0, room), base), *tail]

    def _plot(
        self, envelope: Canvas, line: Canvas, labels: dict[int, str], gutter: int, seams: set[int], base: Style
    ) -> list[list[Segment]]:
        glyphs = self.glyphs
        frame = base + Style(color=palette.FAINT)
        lines = []
        for y in range(envelope.height):
            text = labels.get(y, "")
            row = [
                Segment(text.rjust(gutter), base + Style(color=palette.DIM)),
                Segment(glyphs.tick if text else glyphs.axis, frame),
            ]
            for x in range(envelope.width):
                bright, colour = line.cell(x, y)
                faint, shade = envelope.cell(x, y)
                if bright:
                    # The average alone is drawn where both meet: it stands out as a line, not as a blot.
                    sign, style = (chr(BRAILLE + bright) if glyphs.braille else "*"), base + Style(color=colour)
                elif faint:
                    sign, style = (chr(BRAILLE + faint) if glyphs.braille else "."), base + Style(color=shade)
                elif x in seams:
                    sign, style = glyphs.seam, frame
                else:
                    sign, style = " ", base
                row.append(Segment(sign, style))
            lines.append(list(Segment.simplify(row)))
        return lines

    def _x_axis(
        self, span: tuple[float, float], gutter: int, columns: int, seams: list[tuple[int, str, str]], base: Style
    ) -> list[list[Segment]]:
        glyphs = self.glyphs
        first, last = span
        frame = base + Style(color=palette.FAINT)
        axis = [Segment(" " * gutter, base), Segment(glyphs.corner, frame)]
        cells = [(glyphs.rule, frame)] * columns
        words = [(" ", base)] * columns
        dim = base + Style(color=palette.DIM)

        def write(text: str, at: int, style: Style) -> bool:
            """Centred at ``at`` where it fits and touches nothing."""
            left = min(max(0, at - len(text) // 2), columns - len(text))
            if left < 0 or any(cell[0] != " " for cell in words[max(0, left - 1) : left + len(text) + 1]):
                return False
            words[left : left + len(text)] = [(sign, style) for sign in text]
            return True

        for column, text, colour in seams:
            cells[column] = (glyphs.mark, base + Style(color=colour))
            write(text, column, base + Style(color=colour))
        for value in axes.ticks(first, last, max(1, columns // 14)):
            if value != round(value):
                continue
            column = min(columns - 1, int((value - first) / max(last - first, 1e-9) * (2 * columns - 1) + 0.5) // 2)
            if write(axes.step_label(value), column, dim) and cells[column][0] == glyphs.rule:
                cells[column] = (glyphs.below, frame)
        axis += [Segment(sign, style) for sign, style in cells]
        labels = [Segment(" " * (gutter + 1), base), *(Segment(sign, style) for sign, style in words)]
        return [list(Segment.simplify(axis)), list(Segment.simplify(labels))]


def _fingerprint(rows: Sequence[Mapping[str, Any]], count: int | None = None) -> tuple[Any, ...]:
    """A few of the first ``count`` rows: enough to see that steps were replaced by another attempt."""
    count = len(rows) if count is None else count
    if not count:
        return ()
    spots = sorted({0, count // 4, count // 2, 3 * count // 4, count - 1})
    return tuple((rows[spot]["global_step"], rows[spot].get("attempt")) for spot in spots)
