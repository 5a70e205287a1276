"""CurveView: curves in braille, a bright moving average over the dim envelope of all that was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from midstream.tui import commands
from midstream.tui.glyphs import UNICODE, Glyphs
from midstream.tui.series_cache import STEP, SeriesCache
from midstream.tui.widgets import frame, plot
from midstream.tui.widgets.plot import Drawn
from midstream.tui.widgets.viewport import Viewport

# (name, time constant of the average as a share of what is in sight)
SMOOTHINGS = (("smooth", 0.015), ("smoother", 0.05), ("raw", 0.0))
CLOSER = 1.6  # factor of one zoom
STRIDE = 0.25  # share of what is in sight that one pan moves by


@dataclass(frozen=True)
class Look:
    """How curves are drawn, apart from which part of them."""

    log: bool = False
    robust: bool = True
    smoothing: int = 0  # index into SMOOTHINGS
    axis: str = STEP


class CurveView(Widget, can_focus=True, inherit_bindings=False):
    """One or several curves, drawn at any length in a few milliseconds, with keys and mouse to look closer.

    ``compact`` draws a small one, without axes or keys: a click on it says that it was picked.
    """

    BINDINGS = commands.bindings(commands.CURVE)
    DEFAULT_CSS = "CurveView { height: 1fr; width: 1fr; }"

    class Picked(Message):
        """A compact one was clicked."""

        def __init__(self, metric: str) -> None:
            super().__init__()
            self.metric = metric

    def __init__(
        self, glyphs: Glyphs = UNICODE, *, empty: str = "no points yet", compact: bool = False, id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self.glyphs = glyphs
        self.empty = empty
        self.compact = compact
        self.metric = "train/loss"
        self.look = Look()
        self.viewport = self.home = Viewport()  # what is in sight, and what is where nobody looks closer
        self.marks: tuple[tuple[float, str], ...] = ()  # further marks on the x axis: (x, label)
        self.points: tuple[float, ...] = ()  # small marks on the x axis: checkpoints
        self.cursor: float | None = None  # the x that the crosshair stands at
        self.pinned = False  # the crosshair was put there by a key or a click, and stays
        self._drawn: tuple[Drawn, ...] = ()
        self._names: Mapping[int, str] = {}
        self._book = SeriesCache()
        self._lines: list[Strip] = []
        self._base = Style()
        self._painted: tuple[Any, ...] = ()
        self._frame: frame.Frame | None = None
        self._dragged: int | None = None
        self._shown: tuple[Any, ...] = ()

    # ------------------------------------------------------------------------------------------ what is shown

    def show(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        metric: str = "train/loss",
        names: Mapping[int, str] | None = None,
        hues: Mapping[int, int] | None = None,
        empty: str = "no points yet",
    ) -> None:
        """Draw ``metric`` of a run's spliced rows over the step. ``names``: attempt -> what it ran on; ``hues``: the
        number of its colour."""
        series, _ = self._book.series("", rows, metric)
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
        """Lay several series over each other. They may have grown since the last call."""
        shown = (
            metric,
            empty,
            tuple((id(each.series), len(each.series), each.name, each.colour, each.smooth) for each in drawn),
            dict(names or {}),
            tuple(points),
        )
        if shown == self._shown:
            return
        self._shown = shown
        self.metric, self.empty, self._drawn = metric, empty, tuple(drawn)
        self._names, self.points = names or {}, tuple(points)
        self._redraw()

    def compare(self, drawn: Sequence[Drawn], *, window: tuple[float, float] | None, empty: str = "") -> None:
        """Lay several series over each other, in a window of the x axis (None: all of it) that a person may leave."""
        home = Viewport(fixed=window)
        if home != self.home:
            if self.viewport == self.home:
                self.viewport = home
            self.home = home
        self.draw(drawn, metric=self.metric, empty=empty or self.empty)

    def restyle(self, look: Look) -> None:
        """Draw in another way. Another axis is seen as a whole."""
        if look.axis != self.look.axis:
            self.viewport, self.cursor, self.pinned = Viewport(), None, False
        self.look = look
        self._redraw()

    def see(self, viewport: Viewport) -> None:
        self.viewport = viewport
        self._redraw()

    def forget_cursor(self) -> bool:
        """Take the crosshair away; whether there was one that stays."""
        there, self.cursor, self.pinned = self.pinned, None, False
        self._redraw()
        return there

    @property
    def ends(self) -> tuple[float, float] | None:
        """The first and last x of all that is drawn."""
        shown = [drawn.series for drawn in self._drawn if len(drawn.series)]
        return (min(series.x[0] for series in shown), max(series.x[-1] for series in shown)) if shown else None

    @property
    def span(self) -> tuple[float, float] | None:
        """The x axis in sight."""
        return self.viewport.span(*self.ends) if self.ends else None

    def _redraw(self) -> None:
        self._painted = ()
        self.refresh()

    # ------------------------------------------------------------------------------------------ keys and mouse

    def action_zoom_in(self) -> None:
        self._zoom(CLOSER, self.cursor)

    def action_zoom_out(self) -> None:
        self._zoom(1 / CLOSER, self.cursor)

    def action_whole(self) -> None:
        self.see(self.home)

    def action_pan(self, by: int) -> None:
        if self.ends:
            self.see(self.viewport.panned(by * STRIDE, *self.ends))

    def action_cross(self, by: int) -> None:
        """Move the crosshair by cells; the first press puts it at the newest point."""
        if self._frame is None or self.span is None:
            return
        columns, (low, high) = self._frame.columns, self.span
        if self.cursor is None:
            cell = columns - 1 if by < 0 else 0
        else:
            cell = plot.cell_of(self.cursor, (low, high), columns) + by
        if not 0 <= cell < columns:
            self.action_pan(-1 if cell < 0 else 1)
            return
        self.cursor, self.pinned = plot.x_of(cell, (low, high), columns), True
        self._redraw()

    def _zoom(self, factor: float, at: float | None) -> None:
        if self.ends:
            self.see(self.viewport.zoomed(factor, at, *self.ends))

    def _x_at(self, column: int) -> float | None:
        """The x under a column of this widget."""
        if self._frame is None or self.span is None:
            return None
        cell = column - self._frame.left
        return plot.x_of(cell, self.span, self._frame.columns) if 0 <= cell < self._frame.columns else None

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._scrolled(event, CLOSER, -1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._scrolled(event, 1 / CLOSER, 1)

    def _scrolled(self, event: events.MouseEvent, factor: float, way: int) -> None:
        """The wheel zooms around the pointer; with shift or ctrl it pans."""
        if self.compact:
            return
        event.stop()
        if event.shift or event.ctrl:
            self.action_pan(way)
        else:
            self._zoom(factor, self._x_at(event.x))

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if not self.compact and event.button == 1:
            self._dragged = event.x
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.compact:
            return
        if self._dragged is not None and self._frame is not None and self.ends and event.x != self._dragged:
            by = (self._dragged - event.x) / max(1, self._frame.columns)
            self._dragged = event.x
            self.see(self.viewport.panned(by, *self.ends))
        elif not self.pinned:
            self.cursor = self._x_at(event.x)
            self._redraw()

    def on_mouse_up(self, event: events.MouseUp) -> None:
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
            self.action_whole()
        elif (at := self._x_at(event.x)) is not None:
            self.pinned = not (self.pinned and self.cursor == at)
            self.cursor = at
            self._redraw()

    # ------------------------------------------------------------------------------------------ painting

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        if y == 0 or not self._painted:
            self._base = self.rich_style  # it takes as long as drawing a line
        base = self._base
        key = (width, height, base)
        if self._painted != key:
            self._lines = [Strip(line).adjust_cell_length(width, base) for line in self._paint(width, height, base)]
            self._painted = key
        return self._lines[y] if y < len(self._lines) else Strip.blank(width, base)

    def _paint(self, width: int, height: int, base: Style) -> list[list[Any]]:
        shown = [drawn for drawn in self._drawn if len(drawn.series)]
        span = self.span
        least = (3, 12) if self.compact else (4, 24)
        if span is None or height < least[0] or width < least[1]:
            self._frame = None
            return frame.nothing(f"{self.metric}: {self.empty}", width, height, base)
        picture = frame.Picture(
            shown,
            self.metric,
            span,
            self.look.axis,
            self.look.log,
            self.look.robust,
            SMOOTHINGS[self.look.smoothing][1],
            self._names,
            self.marks,
            self.points,
            self.cursor,
            self._words(),
            self.compact,
        )
        self._frame, lines = frame.paint(picture, width, height, self.glyphs, base)
        return lines

    def _words(self) -> str:
        """What is not as usual, for the title."""
        words = []
        if self.viewport.fixed is None and self.viewport.tail < 1:
            words.append(f"last {max(0.1, 100 * self.viewport.tail):.3g}%")
        elif self.viewport.fixed is not None and self.viewport != self.home:
            words.append("zoomed")
        if self.look.log:
            words.append("log")
        if self.look.smoothing:
            words.append(SMOOTHINGS[self.look.smoothing][0])
        if not self.look.robust:
            words.append("all")
        return " ".join(words)
