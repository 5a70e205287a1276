"""Dialog with the keys of what has the focus behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from midstream import format
from midstream.tui import commands
from midstream.tui.base_app import app_of
from midstream.tui.style import palette
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.chrome import Rule
from midstream.tui.widgets.pane import Pane

NARROW = 60  # cells; in a narrower dialog descriptions are under the names


class HelpScreen(ModalScreen[None]):
    """Lists the commands for what has the focus, from the command table."""

    BINDINGS: ClassVar = [
        ("escape,q,question_mark", "dismiss", "Close"),
    ]

    def __init__(self, scope: str, view: str = "", parts: Sequence[str] | None = None) -> None:
        """Create the dialog. Arguments as of `commands.of_focus`."""
        super().__init__()
        self._focus = scope, view, parts

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            title = "Help: read-only, without keys that change something" if app_of(self).readonly else "Help"
            yield Rule(title, app_of(self).glyphs, "esc closes, j and k scroll")
            with Pane():
                yield Static(self._text(app_of(self).readonly))

    def _text(self, readonly: bool) -> Text:
        text = Text()
        width = min(84, self.app.size.width - 4)
        beside = width >= NARROW
        indent = 30 if beside else 14
        for scope, scope_commands in commands.of_focus(*self._focus, readonly=readonly).items():
            if not scope_commands:
                continue
            if text:
                text.append("\n")
            text.append(f"{commands.SCOPES[scope]}\n", f"bold {palette.TEXT}")
            for command in scope_commands:
                keys = " ".join(commands.key_name(key) for key in commands.keys_of(command))
                text.append(f"  {keys:<11} ", f"bold {palette.ACCENT}")
                text.append(f"{command.name:<15} ", palette.TEXT)
                described = format.folded(command.description, width, indent)
                text.append(described if beside else f"\n{' ' * indent}{described}", palette.DIM)
                text.append("\n")
        text.rstrip()
        return text
