"""CurveView: braille curves with a moving average over the values' envelope.

The moving average is bright, the envelope dim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from midstream.charts.chart import NO_RANGE, Range, range_text
from midstream.charts.smoothing import DEFAULT_FACTOR, factor_of, time_constant
from midstream.tui import commands
from midstream.tui.state.series_cache import CLOCK, STEP, SeriesCache
from midstream.tui.style.glyphs import UNICODE, Glyphs
from midstream.tui.widgets import frame, plot
from midstream.tui.widgets.plot import Drawn
from midstream.tui.widgets.viewport import MIN_SPAN, Viewport
from midstream.watch.system.system_metrics import metric_of

SMOOTHINGS = (
    ("smooth", DEFAULT_FACTOR),
    ("smoother", factor_of(0.05)),
    ("raw", 0.0),
)  # (name, factor), see charts.smoothing
LEAST_DECADES = 0.01  # of a logarithmic x axis, at the highest zoom
ZOOM_FACTOR = 1.6
PAN_STEP = 0.25  # share of the visible range


@dataclass(frozen=True)
class CurveStyle:
    """Style of curves: scale, outliers, smoothing, axis, and the range of y."""

    log: bool = False
    robust: bool = True
    smoothing: float = SMOOTHINGS[0][1]  # factor
    axis: str = STEP
    log_x: bool = False
    y_range: Range = NO_RANGE

    @property
    def smoothing_name(self) -> str:
        """Name of the smoothing, or its factor where it has none."""
        return next(
            (name for name, factor in SMOOTHINGS if factor == self.smoothing), f"smoothing {self.smoothing:.3g}"
        )


class CurveView(Widget, can_focus=True, inherit_bindings=False):
    """One or several curves of any length, with zoom, pan and crosshair.

    These are controlled by keys and mouse.

    ``compact`` draws without axes and keys; a click on it posts `Picked`.
    """

    SCOPES = (commands.CURVE,)
    BINDINGS = commands.bindings(*SCOPES)
    DEFAULT_CSS = "CurveView { height: 1fr; width: 1fr; }"

    class Picked(Message):
        """A compact view was clicked."""

        def __init__(self, metric: str) -> None:
            super().__init__()
            self.metric = metric

    class Exported(Message):
        """The user pressed the key that exports the curves."""

    def __init__(
        self, glyphs: Glyphs = UNICODE, *, empty: str = "no points yet", compact: bool = False, id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self.glyphs = glyphs
        self.empty = empty
        self.compact = compact
        self.metric = "train/loss"
        self.style_options = CurveStyle()
        self.viewport = self.home = Viewport()  # visible range, and the range that `action_full_range` returns to
        self.marks: tuple[tuple[float, str], ...] = ()  # further marks on the x axis: (x, label)
        self.points: tuple[float, ...] = ()  # small marks on the x axis: checkpoints
        self.cursor: float | None = None  # x of the crosshair
        self.pinned = False  # set by a key or a click: the pointer does not move the crosshair
        self._drawn: tuple[Drawn, ...] = ()
        self._names: Mapping[int, str] = {}
        self._series_cache = SeriesCache()
        self._lines: list[Strip] = []
        self._base = Style()
        self._painted: tuple[Any, ...] = ()
        self._frame: frame.Frame | None = None
        self._dragged: int | None = None
        self._shown: tuple[Any, ...] = ()

    # ------------------------------------------------------------------------------------------ content

    def show(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        metric: str = "train/loss",
        names: Mapping[int, str] | None = None,
        hues: Mapping[int, int] | None = None,
        empty: str = "no points yet",
    ) -> None:
        """Draw a metric of a run's spliced rows over the step.

        Args:
            rows: Rows of all accepted attempts, in order.
            metric: Name of the metric.
            names: Attempt -> its hardware.
            hues: Attempt -> number of its colour.
            empty: Text shown without points.
        """
        series, _ = self._series_cache.series("", rows, metric)
        self.draw((Drawn(series, hues=hues or {}),), metric=metric, names=names, empty=empty)

    def draw(
        self,
        drawn: Sequence[Drawn],
        *,
        metric: str,
        names: Mapping[int, str] | None = None,
        points: Sequence[float] = (),
        empty: str = "no points yet",
    ) -> None:
        """Draw several series, which may have grown since the last call.

        Args:
            drawn: Series and their colours.
            metric: Name of the metric, for the title.
            names: Attempt -> its hardware.
            points: Marks on the x axis, such as checkpoints.
            empty: Text shown without points.
        """
        shown = (
            metric,
            empty,
            tuple((id(each.series), len(each.series), each.name, each.colour, each.smooth) for each in drawn),
            dict(names or {}),
            tuple(points),
        )
        if shown == self._shown:
            return
        same_metric, self._shown = metric == self.metric, shown
        self.metric, self.empty, self._drawn = metric, empty, tuple(drawn)
        self._names, self.points = names or {}, tuple(points)
        if same_metric and self._painted and self.is_on_screen:
            self._redraw_changes()
        else:
            self._redraw()

    def compare(self, drawn: Sequence[Drawn], *, window: tuple[float, float] | None, empty: str = "") -> None:
        """Draw several series in a window of the x axis (None: all of it).

        Zoom and pan may leave the window.
        """
        home = Viewport(fixed=window)
        if home != self.home:
            if self.viewport == self.home:
                self.viewport = home
            self.home = home
        self.draw(drawn, metric=self.metric, empty=empty or self.empty)

    def restyle(self, style: CurveStyle) -> None:
        """Change the style. A change of the axis shows all of it."""
        if (style.axis, style.log_x) != (self.style_options.axis, self.style_options.log_x):
            self.viewport, self.cursor, self.pinned = Viewport(), None, False
        self.style_options = style
        self._redraw()

    def see(self, viewport: Viewport) -> None:
        self.viewport = viewport
        self._redraw()

    def forget_cursor(self) -> bool:
        """Remove the crosshair. Return True if it was pinned."""
        was_pinned, self.cursor, self.pinned = self.pinned, None, False
        self._redraw()
        return was_pinned

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

    def _redraw(self) -> None:
        self._painted = ()
        self.refresh()

    def _redraw_changes(self) -> None:
        """Paint now, and refresh the lines that differ.

        They are few where a long curve has grown by a point. To compose all lines takes longer than to paint them.
        """
        width, height, base = self._painted
        before, self._lines = self._lines, self._paint_lines(width, height, base)
        changed = [y for y, (old, new) in enumerate(zip_longest(before, self._lines)) if old != new]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    # ------------------------------------------------------------------------------------------ keys and mouse

    def action_zoom_in(self) -> None:
        self._zoom(ZOOM_FACTOR, self.cursor)

    def action_zoom_out(self) -> None:
        self._zoom(1 / ZOOM_FACTOR, self.cursor)

    def action_export(self) -> None:
        self.post_message(self.Exported())

    def action_full_range(self) -> None:
        self.see(self.home)

    def action_pan(self, by: int) -> None:
        if ends := self._view_ends:
            self.see(self.viewport.panned(by * PAN_STEP, *ends))

    def action_cross(self, by: int) -> None:
        """Move the crosshair by cells; the first press places it at an end of the range."""
        if self._frame is None or self.span is None:
            return
        columns, (low, high) = self._frame.columns, self.span
        if self.cursor is None:
            cell = columns - 1 if by < 0 else 0
        else:
            cell = plot.cell_of(self.cursor, (low, high), columns, self._log_x) + by
        if not 0 <= cell < columns:
            self.action_pan(-1 if cell < 0 else 1)
            return
        self.cursor, self.pinned = plot.x_of(cell, (low, high), columns, self._log_x), True
        self._redraw()

    def _zoom(self, factor: float, at: float | None) -> None:
        if ends := self._view_ends:
            least = LEAST_DECADES if self._log_x else MIN_SPAN
            self.see(self.viewport.zoomed(factor, self._view_at(at), *ends, least))

    def _x_at(self, column: int) -> float | None:
        """Return the x at a column of this widget."""
        if self._frame is None or self.span is None:
            return None
        cell = column - self._frame.left
        return plot.x_of(cell, self.span, self._frame.columns, self._log_x) if 0 <= cell < self._frame.columns else None

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._scrolled(event, ZOOM_FACTOR, -1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._scrolled(event, 1 / ZOOM_FACTOR, 1)

    def _scrolled(self, event: events.MouseEvent, factor: float, direction: int) -> None:
        """Zoom around the pointer; pan with shift or ctrl."""
        if self.compact:
            return
        event.stop()
        if event.shift or event.ctrl:
            self.action_pan(direction)
        else:
            self._zoom(factor, self._x_at(event.x))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if not self.compact and event.button == 1:
            self._dragged = event.x
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.compact:
            return
        ends = self._view_ends
        if self._dragged is not None and self._frame is not None and ends and event.x != self._dragged:
            by = (self._dragged - event.x) / max(1, self._frame.columns)
            self._dragged = event.x
            self.see(self.viewport.panned(by, *ends))
        elif not self.pinned:
            self.cursor = self._x_at(event.x)
            self._redraw()

    def on_mouse_up(self) -> None:
        self._dragged = None
        self.release_mouse()

    def on_leave(self) -> None:
        if not self.pinned and self.cursor is not None:
            self.cursor = None
            self._redraw()

    def on_click(self, event: events.Click) -> None:
        if self.compact:
            self.post_message(self.Picked(self.metric))
        elif event.chain == 2:
            self.pinned = False
            self.action_full_range()
        elif (at := self._x_at(event.x)) is not None:
            self.pinned = not (self.pinned and self.cursor == at)
            self.cursor = at
            self._redraw()

    # ------------------------------------------------------------------------------------------ painting

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        if y == 0 or not self._painted:
            self._base = self.rich_style  # computing it takes as long as drawing a line
        base = self._base
        key = (width, height, base)
        if self._painted != key:
            self._lines = self._paint_lines(width, height, base)
            self._painted = key
        return self._lines[y] if y < len(self._lines) else Strip.blank(width, base)

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
