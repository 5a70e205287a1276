"""The keys of the screen one came from."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from midstream.tui import commands, palette
from midstream.tui.styled_text import Text
from midstream.tui.widgets.chrome import Rule
from midstream.tui.widgets.pane import Pane


class HelpScreen(ModalScreen[None]):
    """Made from the command table."""

    BINDINGS: ClassVar = [
        ("escape,q,question_mark", "dismiss", "Close"),
    ]

    def __init__(self, scope: str) -> None:
        super().__init__()
        self.scope = scope

    def compose(self) -> ComposeResult:
        from midstream.tui.app import MidstreamApp

        assert isinstance(self.app, MidstreamApp)
        with Vertical(id="dialog"):
            yield Rule("Help", self.app.glyphs, "esc closes, j and k scroll")
            with Pane():
                yield Static(self._text(self.app.readonly))

    def _text(self, readonly: bool) -> Text:
        text = Text()
        for scope, found in commands.of_screen(self.scope).items():
            if text:
                text.append("\n")
            text.append(f"{commands.SCOPES[scope]}\n", f"bold {palette.TEXT}")
            for command in found:
                keys = " ".join(commands.key_name(key) for key in command.keys)
                text.append(f"  {keys:<11} ", f"bold {palette.ACCENT}")
                text.append(f"{command.name:<15} ", palette.TEXT)
                text.append(command.description, palette.DIM)
                if command.changes and readonly:
                    text.append(" (off: --readonly)", palette.WAIT)
                text.append("\n")
        text.rstrip()
        return text
