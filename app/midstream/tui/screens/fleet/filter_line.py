"""The filter line: an input, and below it what is wrong with the filter."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, Static

from midstream.listing.filter_error import FilterError
from midstream.tui.style import palette
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.style.styled_text import Text

INDENT = 3  # cells before the text of the input
PLACEHOLDER = "loss<2.5  age>5m  !state:failed  tags:lr OR ~^abl"


class FilterLine(Vertical):
    """Input of a list's filter. The input's messages reach the screen."""

    DEFAULT_CSS = """
    FilterLine { height: auto; }
    FilterLine Static { height: auto; max-height: 3; }
    """

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._glyphs = glyphs

    def compose(self) -> ComposeResult:
        yield Input(placeholder=PLACEHOLDER, compact=True, select_on_focus=False)
        yield Static()

    def on_mount(self) -> None:
        self.query_one(Static).display = False

    @property
    def input(self) -> Input:
        return self.query_one(Input)

    def show(self, text: str, *, open_it: bool = False) -> None:
        """Show a list's filter; hide the line where there is none, unless ``open_it``."""
        if self.input.value != text:
            self.input.value = text
        self.display = bool(text) or open_it

    def show_error(self, error: FilterError | None) -> None:
        """Show an error, with a mark under its column where both fit in one line."""
        static = self.query_one(Static)
        static.display = error is not None
        if error is None:
            return
        words = error.reason + (f" ({error.hint})" if error.hint else "")
        lead = INDENT + error.column - 1
        if lead + len(words) + 3 <= self.size.width:
            text = Text(" " * lead, palette.BAD).append(f"{self._glyphs.up} {words}", palette.BAD)
        else:
            text = Text(f"{' ' * INDENT}column {error.column}: {words}", palette.BAD)
        static.update(text)
