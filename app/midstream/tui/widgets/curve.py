"""CurveView: braille curves with a moving average over the values' envelope.

The moving average is bright, the envelope dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from rich.style import Style
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from midstream.tui import commands
from midstream.tui.state.series_cache import SeriesCache
from midstream.tui.style.glyphs import UNICODE, Glyphs
from midstream.tui.widgets import plot
from midstream.tui.widgets.curve_drawing import CurveDrawing
from midstream.tui.widgets.curve_style import CurveStyle
from midstream.tui.widgets.plot import Drawn
from midstream.tui.widgets.viewport import MIN_SPAN, Viewport
from midstream_core.json_types import JsonObject

LEAST_DECADES = 0.01  # of a logarithmic x axis, at the highest zoom
ZOOM_FACTOR = 1.6
PAN_STEP = 0.25  # share of the visible range


class CurveView(CurveDrawing, Widget, can_focus=True, inherit_bindings=False):
    """One or several curves of any length, with zoom, pan and crosshair.

    Keys and mouse control them. ``compact`` draws without axes and keys; a click on it posts `Picked`.
    """

    SCOPES = (commands.CURVE,)
    BINDINGS = commands.bindings(*SCOPES)
    DEFAULT_CSS = "CurveView { height: 1fr; width: 1fr; }"

    class Picked(Message):
        """A compact view was clicked."""

        def __init__(self, metric: str) -> None:
            super().__init__()
            self.metric = metric

    class CursorMoved(Message):
        """The crosshair was placed, moved or removed."""

    class Exported(Message):
        """The user pressed the key that exports the curves."""

    def __init__(
        self, glyphs: Glyphs = UNICODE, *, empty: str = "no points yet", compact: bool = False, id: str | None = None
    ) -> None:
        super().__init__(glyphs, empty=empty, compact=compact, id=id)
        self.pinned = False  # set by a key or a click: the pointer does not move the crosshair
        self._series_cache = SeriesCache()
        self._lines: list[Strip] = []
        self._base = Style()
        self._painted: tuple[Any, ...] = ()
        self._dragged: int | None = None
        self._panned = False  # by the drag that a click ends
        self._reported: float | None = None  # cursor of the last `CursorMoved`
        self._shown: tuple[Any, ...] = ()

    # ------------------------------------------------------------------------------------------ content

    def show(
        self,
        rows: Sequence[JsonObject],
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
            tuple(
                (id(curve.series), len(curve.series), curve.name, curve.colour, curve.smooth, curve.dash)
                for curve in drawn
            ),
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

    def _redraw(self) -> None:
        self._painted = ()
        self.refresh()
        if self.cursor != self._reported:
            self._reported = self.cursor
            self.post_message(self.CursorMoved())

    def _redraw_changes(self) -> None:
        """Paint now, and refresh the lines that differ.

        Few lines differ where a long curve has grown by a point. To compose all lines takes longer than to paint them.
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
            self._dragged, self._panned = event.x, False
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.compact:
            return
        ends = self._view_ends
        if self._dragged is not None and self._frame is not None and ends and event.x != self._dragged:
            by = (self._dragged - event.x) / max(1, self._frame.columns)
            self._dragged, self._panned = event.x, True
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
        elif not self._panned and (at := self._x_at(event.x)) is not None:
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
