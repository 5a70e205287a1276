"""Dialog with all that is known of a selection, as YAML or JSON."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen

from midstream.counts import count
from midstream.listing import documents
from midstream.tui.base_app import app_of
from midstream.tui.state.selection import Selection
from midstream.tui.widgets.chrome import Rule
from midstream.tui.widgets.log_pane import LogPane


class DocumentScreen(ModalScreen[None]):
    """Shows a selection in a pane that scrolls and searches."""

    BINDINGS: ClassVar = [
        ("escape", "back", "Close"),
        ("q,Y", "dismiss", "Close"),
        ("y", "copy", "Copy"),
        ("t", "format", "JSON or YAML"),
    ]

    def __init__(self, selection: Selection) -> None:
        super().__init__()
        self._selection = selection
        self._form = documents.YAML

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Rule("", app_of(self).glyphs)
            yield LogPane(id="document")

    def on_mount(self) -> None:
        self.query_one(LogPane).view.following = False
        self._show()
        self.query_one(LogPane).focus()

    @property
    def _text(self) -> str:
        return documents.text_of(self._selection.value, self._form)

    def _show(self) -> None:
        title = f"{self._selection.kind} {self._selection.name}: {self._form}"
        keys = "y copies, t JSON/YAML, / searches, esc closes"
        self.query_one(Rule).show(title, keys if self.size.width >= len(title) + len(keys) + 14 else "y, t, /, esc")
        view = self.query_one(LogPane).view
        view.show(self._text.splitlines())
        view.action_scroll_home()

    def action_format(self) -> None:
        self._form = documents.JSON if self._form == documents.YAML else documents.YAML
        self._show()

    def action_copy(self) -> None:
        text = self._text
        app_of(self).copy_lines(text)
        self.notify(
            f"copied: {self._form} of {self._selection.name}, {count(len(text.splitlines()), 'line')}", markup=False
        )

    def action_back(self) -> None:
        if not self.query_one(LogPane).escaped():
            self.dismiss()
