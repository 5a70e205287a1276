"""Dialog to choose one of several rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen

from midstream.tui.base_app import app_of
from midstream.tui.widgets.chrome import Rule
from midstream.tui.widgets.table import Column, Row, Table


class ChooseScreen(ModalScreen[Hashable]):
    """Returns the key of the chosen row; None on esc."""

    BINDINGS: ClassVar = [("escape,q", "dismiss(None)", "Cancel"), ("enter", "choose", "Choose")]

    def __init__(
        self,
        title: str,
        columns: Sequence[Column],
        rows: Sequence[Row],
        *,
        selected: Hashable = None,
        preview: Callable[[Hashable], object] | None = None,
    ) -> None:
        """Create the dialog.

        Args:
            title: Its heading.
            columns: Columns of its table.
            rows: The rows.
            selected: Key of the row that is selected first.
            preview: Called with the key of each row that the user selects.
        """
        super().__init__()
        self._preview = preview
        self._heading = title
        self._columns = columns
        self._rows = rows
        self._selected = selected

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Rule(self._heading, app_of(self).glyphs, "enter chooses, esc cancels")
            table = Table(self._columns, app_of(self).glyphs, id="choices")
            table.styles.height = min(len(self._rows) + 1, 16)
            yield table

    def on_mount(self) -> None:
        table = self.query_one(Table)
        table.show(self._rows)
        if self._selected is not None:
            table.select(self._selected)
        table.focus()

    def on_table_moved(self, event: Table.Moved) -> None:
        if self._preview is not None and event.key is not None:
            self._preview(event.key)

    def on_table_chosen(self, event: Table.Chosen) -> None:
        self.dismiss(event.key)

    def action_choose(self) -> None:
        self.dismiss(self.query_one(Table).selected)
