"""LogPane: a log, its search input and its status line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, Static

from midstream.tui.style import palette
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.paged_log_view import UNKNOWN, PagedLogView
from midstream.watch.snapshot import LogRange


class LogPane(Vertical):
    """A LogView with search input and status line."""

    DEFAULT_CSS = """
    LogPane { height: 1fr; }
    LogPane .status { height: 1; padding: 0 1; }
    LogPane Input { height: 1; border: none; padding: 0 1; background: $panel; }
    """

    def __init__(self, *, empty: str = "no lines yet", id: str | None = None) -> None:
        super().__init__(id=id)
        self._empty = empty

    def compose(self) -> ComposeResult:
        yield PagedLogView(empty=self._empty)
        yield Static(classes="status")
        yield Input(placeholder="search: word a|b !word   then n, N: next, previous, e: matches only", compact=True)

    def on_mount(self) -> None:
        self.query_one(Input).display = False

    @property
    def view(self) -> PagedLogView:
        return self.query_one(PagedLogView)

    def show(self, lines: Sequence[str], log_range: LogRange = UNKNOWN) -> None:
        """Show lines, which are the bytes ``log_range`` of the log."""
        self.view.show(lines, log_range)

    def focus(self, scroll_visible: bool = True) -> Self:
        self.view.focus(scroll_visible)
        return self

    def on_log_view_changed(self) -> None:
        view = self.view
        colour = palette.DIM if view.following and view.plain else palette.WAIT
        self.query_one(Static).update(Text(view.status, colour, no_wrap=True))

    def on_log_view_find_requested(self) -> None:
        box = self.query_one(Input)
        box.value = self.view.query_words
        box.display = True
        self.screen.set_focus(box)  # synchronously: the next key belongs to the input

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._close()
        self.view.find(event.value)

    def escaped(self) -> bool:
        """End the search. Return True if there was one."""
        if self.query_one(Input).display:
            self._close()
            return True
        if self.view.query_words:
            self.view.find("")
            return True
        return False

    def _close(self) -> None:
        self.query_one(Input).display = False
        self.view.focus()
