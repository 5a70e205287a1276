"""LogPane: a log, the line that one types a search into, and the line that says what is left out."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, Static

from midstream.tui import palette
from midstream.tui.styled_text import Text
from midstream.tui.widgets.log_view import LogView


class LogPane(Vertical):
    """A LogView and what belongs to it."""

    DEFAULT_CSS = """
    LogPane { height: 1fr; }
    LogPane .status { height: 1; padding: 0 1; }
    LogPane Input { height: 1; border: none; padding: 0 1; background: $panel; }
    """

    def __init__(self, *, empty: str = "nothing was written yet", id: str | None = None) -> None:
        super().__init__(id=id)
        self._empty = empty

    def compose(self) -> ComposeResult:
        yield LogView(empty=self._empty)
        yield Static(classes="status")
        yield Input(
            placeholder="search  word !word   enter: n and N go through the matches, e hides the rest", compact=True
        )

    def on_mount(self) -> None:
        self.query_one(Input).display = False

    @property
    def view(self) -> LogView:
        return self.query_one(LogView)

    def show(self, lines: Sequence[str]) -> None:
        self.view.show(lines)

    def focus(self, scroll_visible: bool = True):
        self.view.focus(scroll_visible)
        return self

    def on_log_view_changed(self) -> None:
        view = self.view
        colour = palette.DIM if view.following and view.plain else palette.WAIT
        self.query_one(Static).update(Text(view.status, colour, no_wrap=True))

    def on_log_view_find_wanted(self) -> None:
        box = self.query_one(Input)
        box.value = self.view.query_words
        box.display = True
        self.screen.set_focus(box)  # at once: the next key is for it

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._close()
        self.view.find(event.value)

    def escaped(self) -> bool:
        """Leave the search, where one is typed or shown; whether there was one."""
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
