"""Dialog to enter one line of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from midstream.errors import UsageError
from midstream.tui.base_app import app_of
from midstream.tui.style import palette
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.chrome import Rule


class EnterTextScreen(ModalScreen[str | None]):
    """Returns the entered text once ``check`` accepts it; None on esc.

    ``check`` raises UsageError for a text that is invalid; the dialog stays open and shows why.
    """

    BINDINGS: ClassVar = [("escape", "leave", "Cancel")]

    def __init__(self, title: str, lines: Sequence[str], value: str, check: Callable[[str], object]) -> None:
        super().__init__()
        self._heading = title
        self._lines = lines
        self._value = value
        self._check = check

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Rule(self._heading, app_of(self).glyphs, "enter accepts, esc cancels")
            yield Static(Text("\n".join(self._lines), palette.TEXT), classes="words")
            yield Input(self._value, id="word", compact=True, select_on_focus=False)
            yield Static(id="wrong")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            self._check(event.value.strip())
        except UsageError as error:
            self.query_one("#wrong", Static).update(Text(str(error), palette.BAD))
        else:
            self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        self.dismiss(None)
