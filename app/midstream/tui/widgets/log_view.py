"""LogView: the last lines of a log. It stays at the newest one until a person scrolls away from it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from midstream.tui import commands, palette

_BAD = re.compile(r"\b(ERROR|CRITICAL|FATAL|Traceback|\w+Error)\b")
_WARN = re.compile(r"\bWARN(ING)?\b|\w+Warning\b")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


class LogView(ScrollView, can_focus=True, inherit_bindings=False):
    """Lines of text as they stand (control sequences taken out), not wrapped."""

    BINDINGS = commands.bindings(commands.PANE, commands.LOG)
    DEFAULT_CSS = "LogView { height: 1fr; width: 1fr; }"

    def __init__(self, *, empty: str = "nothing was written yet", id: str | None = None) -> None:
        super().__init__(id=id)
        self.empty = empty
        self.following = True
        self._lines: tuple[str, ...] = ()
        self._source: Sequence[str] = ()

    def show(self, lines: Sequence[str]) -> None:
        """Replace all lines."""
        if lines is self._source and len(lines) == len(self._lines):
            return
        self._source = lines
        self._lines = tuple(_CONTROL.sub("", line.expandtabs(4).rstrip("\r\n").rsplit("\r", 1)[-1]) for line in lines)
        longest = max((cell_len(line) for line in self._lines), default=0)
        self.virtual_size = Size(longest + 2, len(self._lines))
        self._stay()
        self.refresh()

    def on_resize(self) -> None:
        self._stay()

    def _stay(self) -> None:
        if self.following:
            self.scroll_to(y=max(0, len(self._lines) - self.size.height), animate=False, immediate=True)

    @property
    def lines(self) -> tuple[str, ...]:
        return self._lines

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value < old_value:
            self.following = False
        elif new_value >= self.max_scroll_y:
            self.following = True

    def action_follow(self) -> None:
        """Follow the newest line, or stay where one is."""
        self.following = not self.following
        self._stay()

    def action_page(self, by: int) -> None:
        self.scroll_relative(y=by * max(1, self.size.height - 1), animate=False)

    def action_scroll_down(self) -> None:
        self.scroll_relative(y=1, animate=False)

    def action_scroll_up(self) -> None:
        self.scroll_relative(y=-1, animate=False)

    def action_scroll_left(self) -> None:
        self.scroll_relative(x=-8, animate=False)

    def action_scroll_right(self) -> None:
        self.scroll_relative(x=8, animate=False)

    def action_scroll_home(self) -> None:
        self.scroll_home(animate=False)

    def action_scroll_end(self) -> None:
        self.following = True
        self._stay()

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        base = self.rich_style
        dim = base + Style(color=palette.DIM)
        if not self._lines:
            text = f"   {self.empty}" if y == 1 else ""
            return Strip([Segment(text, dim)]).adjust_cell_length(width, base)
        left, top = self.scroll_offset
        if y + top >= len(self._lines):
            return Strip.blank(width, base)
        text = self._lines[y + top]
        style = base
        if _BAD.search(text):
            style += Style(color=palette.BAD)
        elif _WARN.search(text):
            style += Style(color=palette.WAIT)
        return Strip([Segment(" " + text, style)]).crop_extend(left, left + width, base)
