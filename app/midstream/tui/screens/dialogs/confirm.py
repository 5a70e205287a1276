"""Ask before something is done that cannot be undone by looking away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from midstream.tui import palette
from midstream.tui.styled_text import Text
from midstream.tui.widgets.chrome import Rule


class ConfirmScreen(ModalScreen[bool]):
    """True once a person has typed ``word`` (or pressed ``y`` where there is none); False on esc."""

    BINDINGS: ClassVar = [("escape", "answer(False)", "No"), ("n", "answer(False)", "No"), ("y", "yes", "Yes")]

    def __init__(self, title: str, lines: Sequence[str], *, word: str = "") -> None:
        super().__init__()
        self._heading = title
        self._lines = lines
        self._word = word

    def compose(self) -> ComposeResult:
        from midstream.tui.app import MidstreamApp

        assert isinstance(self.app, MidstreamApp)
        with Vertical(id="dialog"):
            yield Rule(self._heading, self.app.glyphs)
            yield Static(Text("\n".join(self._lines), palette.TEXT), classes="words")
            if self._word:
                ask = Text("type ", palette.DIM).append(self._word, f"bold {palette.ACCENT}")
                yield Static(ask.append(" and press enter; esc leaves everything as it is", palette.DIM))
                yield Input(id="word", compact=True)
            else:
                ask = Text("y", f"bold {palette.ACCENT}").append(" yes   ", palette.DIM)
                yield Static(
                    ask.append("esc", f"bold {palette.ACCENT}").append(" leave everything as it is", palette.DIM)
                )

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.value.strip() == self._word:
            self.dismiss(True)
        else:
            self.notify(f"that is not {self._word}", severity="warning", markup=False)

    def action_yes(self) -> None:
        if not self._word:
            self.dismiss(True)

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)
