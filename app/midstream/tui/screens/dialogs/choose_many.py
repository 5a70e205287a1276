"""Dialog to choose several of the rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen

from midstream.tui.base_app import app_of
from midstream.tui.widgets.chrome import Rule
from midstream.tui.widgets.table import Column, Row, Table


class ChooseManyScreen(ModalScreen[list[str]]):
    """Returns the keys of the marked rows, in their order; None on esc."""

    BINDINGS: ClassVar = [
        ("escape,q", "dismiss(None)", "Cancel"),
        ("space", "mark", "Mark"),
        ("a", "all", "All"),
        ("enter", "choose", "Choose"),
    ]

    def __init__(self, title: str, columns: Sequence[Column], rows: Sequence[Row], marked: Collection[str]) -> None:
        super().__init__()
        self._heading = title
        self._columns = columns
        self._rows = rows
        self._marked = {str(row.key) for row in rows} & set(marked)

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Rule(self._heading, app_of(self).glyphs, "space marks, a all, enter chooses, esc cancels")
            table = Table(self._columns, app_of(self).glyphs, id="choices")
            table.styles.height = min(len(self._rows) + 1, 16)
            yield table

    def on_mount(self) -> None:
        self._paint()
        self.query_one(Table).focus()

    def _paint(self) -> None:
        self.query_one(Table).show(self._rows, marked=self._marked)

    def action_mark(self) -> None:
        table = self.query_one(Table)
        self._marked ^= {str(table.selected)}
        table.action_cursor(1)
        self._paint()

    def action_all(self) -> None:
        keys = {str(row.key) for row in self._rows}
        self._marked = set() if self._marked == keys else keys
        self._paint()

    def action_choose(self) -> None:
        self.dismiss([str(row.key) for row in self._rows if row.key in self._marked])
