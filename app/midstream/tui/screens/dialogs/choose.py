"""Choose one of several things."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen

from midstream.tui.widgets.chrome import Rule
from midstream.tui.widgets.table import Column, Row, Table


class ChooseScreen(ModalScreen[Hashable]):
    """The key of the row that was chosen; None on esc."""

    BINDINGS: ClassVar = [("escape,q", "dismiss(None)", "Leave"), ("enter", "choose", "Choose")]

    def __init__(
        self, title: str, columns: Sequence[Column], rows: Sequence[Row], *, selected: Hashable = None
    ) -> None:
        super().__init__()
        self._heading = title
        self._columns = columns
        self._rows = rows
        self._selected = selected

    def compose(self) -> ComposeResult:
        from midstream.tui.app import MidstreamApp

        assert isinstance(self.app, MidstreamApp)
        with Vertical(id="dialog"):
            yield Rule(self._heading, self.app.glyphs, "enter chooses, esc leaves")
            table = Table(self._columns, self.app.glyphs, id="choices")
            table.styles.height = min(len(self._rows) + 1, 16)
            yield table

    def on_mount(self) -> None:
        table = self.query_one(Table)
        table.show(self._rows)
        if self._selected is not None:
            table.select(self._selected)
        table.focus()

    def on_table_chosen(self, event: Table.Chosen) -> None:
        self.dismiss(event.key)

    def action_choose(self) -> None:
        self.dismiss(self.query_one(Table).selected)
