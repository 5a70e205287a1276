"""Dialog to confirm an action."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from midstream.tui.base_app import SHORT_SCREEN, app_of
from midstream.tui.style import palette
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.chrome import Rule
from midstream.tui.widgets.pane import Pane

REFRESH = 1.0  # seconds
PROMPT_HEIGHT = 6  # rows of a dialog without its text, with a prompt of two rows


class ConfirmScreen(ModalScreen[bool]):
    """Dialog that returns True once the user has confirmed; False on esc.

    The user confirms by typing ``word`` (or by pressing ``y`` without one).
    """

    BINDINGS: ClassVar = [
        ("escape", "answer(False)", "No"),
        ("n", "answer(False)", "No"),
        ("y", "yes", "Yes"),
        ("up", "scroll(-1)", "Up"),
        ("down", "scroll(1)", "Down"),
    ]

    def __init__(self, title: str, lines: Sequence[str] | Callable[[], Sequence[str]], *, word: str = "") -> None:
        """``lines``: the text, or a function that returns what is true now, every second."""
        super().__init__()
        self._heading = title
        self._lines = lines
        self._word = word

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Rule(self._heading, app_of(self).glyphs)
            with Pane(classes="scrolled"):
                yield Static(self._text(), classes="words")
            if self._word:
                prompt = Text("type ", palette.DIM).append(self._word, f"bold {palette.ACCENT}")
                yield Static(prompt.append(" and press enter; esc cancels", palette.DIM))
                yield Input(id="word", compact=True)
            else:
                prompt = Text("y", f"bold {palette.ACCENT}").append(" yes   ", palette.DIM)
                yield Static(prompt.append("esc", f"bold {palette.ACCENT}").append(" cancel", palette.DIM))

    def _text(self) -> Text:
        lines = self._lines() if callable(self._lines) else self._lines
        return Text("\n".join(lines), palette.TEXT)

    def on_mount(self) -> None:
        if callable(self._lines):
            self.set_interval(REFRESH, lambda: self.query_one(".words", Static).update(self._text()))
        if self._word:
            self.query_one(Input).focus()

    def on_resize(self, event: events.Resize) -> None:
        """Keep the prompt and its input on the screen: the text above them scrolls."""
        self.set_class(event.size.height < SHORT_SCREEN, "-short")
        self.query_one(Pane).styles.max_height = max(2, int(event.size.height * 0.9) - PROMPT_HEIGHT)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.value.strip() == self._word:
            self.dismiss(True)
        else:
            self.notify(f"type {self._word} to confirm", severity="warning", markup=False)

    def action_scroll(self, by: int) -> None:
        self.query_one(Pane).scroll_relative(y=by, animate=False)

    def action_yes(self) -> None:
        if not self._word:
            self.dismiss(True)

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)
