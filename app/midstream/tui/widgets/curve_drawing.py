"""Drawing of a curve view: series in a window of the x axis, and marks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.style import Style
from textual.strip import Strip

from midstream.charts.chart import NO_RANGE, Range, range_text
from midstream.charts.smoothing import time_constant
from midstream.tui.state.series_cache import CLOCK
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.widgets import plot
from midstream.tui.widgets import plot_axes as frame
from midstream.tui.widgets.curve_style import SMOOTHINGS, CurveStyle
from midstream.tui.widgets.plot import Drawn
from midstream.tui.widgets.viewport import Viewport
from midstream.watch.system_metrics import metric_of


class CurveDrawing:
    """Curves of one metric, and the visible part of the x axis, without keys.

    The caller decides when to paint. ``compact`` draws without axes and keys.
    """

    def __init__(self, glyphs: Glyphs, *, empty: str, compact: bool, **options: object) -> None:
        super().__init__(**options)
        self.glyphs = glyphs
        self.empty = empty  # text without points
        self.compact = compact
        self.metric = "train/loss"
        self.style_options = CurveStyle()
        self.viewport = self.home = Viewport()  # visible range, and the range that all of it is
        self.marks: tuple[tuple[float, str], ...] = ()  # further marks on the x axis: (x, label)
        self.points: tuple[float, ...] = ()  # small marks on the x axis: checkpoints
        self.cursor: float | None = None  # x of the crosshair
        self._drawn: tuple[Drawn, ...] = ()
        self._names: Mapping[int, str] = {}
        self._frame: frame.Frame | None = None  # of the last painting; None: it had no room or no points

    @property
    def drawn(self) -> tuple[Drawn, ...]:
        """The series that are drawn."""
        return self._drawn

    @property
    def ends(self) -> tuple[float, float] | None:
        """First and last x of the drawn series."""
        shown = [drawn.series for drawn in self._drawn if len(drawn.series)]
        return (min(series.x[0] for series in shown), max(series.x[-1] for series in shown)) if shown else None

    @property
    def span(self) -> tuple[float, float] | None:
        """Visible range of the x axis. A logarithmic one begins at 1 or above."""
        ends = self._view_ends
        if ends is None:
            return None
        low, high = self.viewport.span(*ends)
        if not self._log_x or self.ends is None:
            return low, high
        # Exact at the ends: a power of a logarithm could leave out the last point.
        first, last = self.ends
        return max(first, 1.0) if low == ends[0] else 10**low, last if high == ends[1] else 10**high

    @property
    def _log_x(self) -> bool:
        """Return True if the x axis is logarithmic: wanted, and possible."""
        style = self.style_options
        return style.log_x and style.axis != CLOCK and self.ends is not None and self.ends[1] > 1

    @property
    def _view_ends(self) -> tuple[float, float] | None:
        """Ends of the axis in the viewport's units: those of x, or decades."""
        if self.ends is None:
            return None
        first, last = self.ends
        return (math.log10(max(first, 1.0)), math.log10(last)) if self._log_x else (first, last)

    def _view_at(self, x: float | None) -> float | None:
        return math.log10(max(x, 1.0)) if self._log_x and x is not None else x

    def _x_at(self, column: int) -> float | None:
        """Return the x at a column of this widget."""
        if self._frame is None or self.span is None:
            return None
        cell = column - self._frame.margin
        return plot.x_of(cell, self.span, self._frame.columns, self._log_x) if 0 <= cell < self._frame.columns else None

    # ------------------------------------------------------------------------------------------ painting

    @property
    def _y_range(self) -> Range:
        """Chosen range of the values; for shares 0 to 100%.

        With another range for shares, a change of 0.1% would fill the plot.
        """
        chosen = self.style_options.y_range
        system = metric_of(self.metric)
        is_share = system is not None and system.unit == "%" and not self.style_options.log
        return (0.0, 100.0) if chosen == NO_RANGE and is_share else chosen

    def _paint_lines(self, width: int, height: int, base: Style) -> list[Strip]:
        return [Strip(line).adjust_cell_length(width, base) for line in self._paint(width, height, base)]

    def _paint(self, width: int, height: int, base: Style) -> list[list[Any]]:
        shown = [drawn for drawn in self._drawn if len(drawn.series)]
        span = self.span
        least = (3, 12) if self.compact else (4, 24)
        if span is None or height < least[0] or width < least[1]:
            self._frame = None
            words = self.empty if "\n" in self.empty else f"{self.metric}: {self.empty}"
            return frame.nothing(words, width, height, base)
        picture = frame.Picture(
            shown,
            self.metric,
            span,
            self.style_options.axis,
            self.style_options.log,
            self.style_options.robust,
            time_constant(self.style_options.smoothing),
            self._names,
            self.marks,
            self.points,
            self.cursor,
            self._settings(),
            self.compact,
            self._log_x,
            self._y_range,
        )
        self._frame, lines = frame.paint(picture, width, height, self.glyphs, base)
        return lines

    def _settings(self) -> str:
        """Return the settings that differ from the defaults, for the title."""
        words = []
        if self.viewport.fixed is None and self.viewport.tail < 1:
            words.append(f"last {max(0.1, 100 * self.viewport.tail):.3g}%")
        elif self.viewport.fixed is not None and self.viewport != self.home:
            words.append("zoomed")
        if self.style_options.log:
            words.append("log")
        if self._log_x:
            words.append("log x")
        if self.style_options.smoothing != SMOOTHINGS[0][1]:
            words.append(self.style_options.smoothing_name)
        if self.style_options.y_range != NO_RANGE:
            words.append(f"y {range_text(self.style_options.y_range)}")
        if not self.style_options.robust:
            words.append("all")
        return " ".join(words)
