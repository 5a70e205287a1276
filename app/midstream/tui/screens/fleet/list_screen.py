"""Base of the fleet screen: its lists with filter, order, groups and columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from textual.timer import Timer
from textual.widgets import Input

from midstream.listing.column import Column
from midstream.listing.filter_error import FilterError
from midstream.listing.fleet_fields import CONFIG
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.fleet import table_rows
from midstream.tui.screens.fleet.filter_line import FilterLine
from midstream.tui.screens.fleet.run_list import RunList
from midstream.tui.screens.fleet.table_rows import LISTS, FoundItems, Listing
from midstream.tui.state.saved_layout import ListLayout
from midstream.tui.state.screen_state import ScreenState
from midstream.tui.widgets.table import Row, Table
from midstream_core.json_types import JsonValue

if TYPE_CHECKING:
    from midstream.listing.conditions import Condition

RUNS = "runs"
COMPUTE_DELAY = 0.001  # seconds between two slices of the list of runs; keys are handled in between


class ListScreen(MidstreamScreen):
    """Lists whose filter, order, groups and columns are remembered."""

    def __init__(self) -> None:
        super().__init__()
        self._view = RUNS
        self._written: dict[str, str] = {}  # view -> the text of its filter line, where it is malformed
        self._run_list = RunList(LISTS[RUNS])
        self._computing: Timer | None = None  # the next slice of the list of runs

    @property
    def listing(self) -> Listing:
        return LISTS[self._view]

    @property
    def list_layout(self) -> ListLayout:
        """The layout of the list in view, with its last filter without an error."""
        return self.midstream.saved_layout.list_of(self._view)

    @property
    def filter_line(self) -> FilterLine:
        return self.query_one(FilterLine)

    def table(self, view: str = "") -> Table:
        return self.query_one(f"#{view or self._view}", Table)

    def check_saved_filters(self) -> None:
        """Drop remembered filters that cannot be read, with a notice."""
        for view in LISTS:
            layout = self.midstream.saved_layout.list_of(view)
            try:
                self._parse(layout.filter, LISTS[view])
            except FilterError as error:
                self.notify(f"{layout.filter}: {error.message}", title="saved filter dropped", severity="warning")
                layout.filter = ""

    def _parse(self, text: str, listing: Listing) -> Condition | None:
        if not text.strip():
            return None
        from midstream.listing import filter_parser

        return filter_parser.parse(text, listing.fields, self.screen_state.now)

    # ------------------------------------------------------------------------------------------ showing

    def items_in_view(self, items: Sequence[JsonValue], screen_state: ScreenState) -> FoundItems:
        """Return the items of the list in view, filtered and sorted.

        ``items`` are not read of the list of runs, which is computed in slices.
        """
        try:
            condition = self._parse(self.list_layout.filter, self.listing)
        except FilterError:  # "today" and "10:30" are read again at each refresh
            condition = None
        if self._view != RUNS:
            return table_rows.found_in(self.listing, items, screen_state, condition, self.list_layout)
        items_in_view = self._run_list.update(screen_state, condition, self.list_layout)
        self._compute_later()
        return items_in_view

    def _compute_later(self) -> None:
        if not self._run_list.complete and self._computing is None:
            self._computing = self.set_timer(COMPUTE_DELAY, self._compute)

    def _compute(self) -> None:
        """Compute a slice of the list of runs, and show the list if it has changed."""
        self._computing = None
        if self._run_list.work() and self._view == RUNS and self.midstream.front_screen is self:
            self.refresh_state()
        self._compute_later()

    def show_rows(self, items: FoundItems, screen_state: ScreenState, empty: Sequence[str], marked: Any) -> None:
        """Show the items as rows of the table in view."""
        columns = self.listing.chosen(self.list_layout.columns)
        fields = [column.field for column in columns]
        sort = self.list_layout.sort
        self.table().show(
            table_rows.rows_of(self.listing, items, screen_state, self.glyphs, self.list_layout),
            columns=columns,
            empty=empty,
            sort=(fields.index(sort), self.list_layout.descending) if sort in fields else None,
            marked=marked,
        )

    def count_text(self, shown: int, count: int) -> str:
        """Return ``3 of 5, finished hidden``."""
        text = str(count) if shown == count else f"{shown} of {count}"
        if self._view == RUNS and (progress := self._run_list.progress) is not None:
            text = f"{progress:.0%} of {count} read"
        if self.list_layout.hide_finished and self.listing.finished is not None:
            text += ", finished hidden"
        return f"{text}, by {self.list_layout.group}" if self.list_layout.group in self.listing.groups else text

    def no_match_text(self) -> tuple[str, ...]:
        """Return the text of a list whose items are all hidden."""
        lines = []
        if self.list_layout.filter:
            lines += [f"no match for '{self.list_layout.filter}'", "esc clears the filter"]
        if self.list_layout.hide_finished and self.listing.finished is not None:
            lines.append("finished ones are hidden: f shows them")
        return tuple(lines)

    # ------------------------------------------------------------------------------------------ the filter

    def set_filter(self, text: str) -> None:
        """Set the filter of the list in view."""
        self.list_layout.filter = text
        self._written.pop(self._view, None)
        self.show_filter_line()

    def show_filter_line(self, *, open_it: bool = False) -> None:
        """Show the filter line of the list in view, with its error."""
        line = self.filter_line
        line.show(self._written.get(self._view, self.list_layout.filter), open_it=open_it)
        self._read_filter(line.input.value)

    def action_filter(self) -> None:
        self.show_filter_line(open_it=True)
        self.set_focus(self.filter_line.input)  # synchronously: the next key belongs to the input

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input is self.filter_line.input:
            self._read_filter(event.value)
            self.refresh_state()

    def _read_filter(self, text: str) -> None:
        """Take a filter without an error; of another, show the error and leave the list."""
        try:
            self._parse(text, self.listing)
        except FilterError as error:
            self._written[self._view] = text
            self.filter_line.show_error(error)
        else:
            self._written.pop(self._view, None)
            self.list_layout.filter = text.strip()
            self.filter_line.show_error(None)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input is not self.filter_line.input or self._view in self._written:
            return
        self.midstream.saved_layout.save()
        self.show_filter_line()
        self.table().focus()

    def action_back(self) -> None:
        """Clear the filter: no screen is behind this one."""
        self.set_filter("")
        self.midstream.saved_layout.save()
        self.table().focus()
        self.refresh_state()

    # ------------------------------------------------------------------------------------------ order

    def action_sort(self) -> None:
        """Sort by the next column, after the last one in the default order.

        Columns that are not always shown come last.
        """
        columns = sorted(self.listing.chosen(self.list_layout.columns), key=lambda column: column.optional)
        names = ["", *dict.fromkeys(column.field for column in columns)]
        at = names.index(self.list_layout.sort) if self.list_layout.sort in names else 0
        self._sort_by(names[(at + 1) % len(names)], descending=False)

    def action_reverse(self) -> None:
        self._sort_by(
            self.list_layout.sort or self.listing.columns[0].field, descending=not self.list_layout.descending
        )

    def on_table_headed(self, event: Table.Headed) -> None:
        name = self.listing.chosen(self.list_layout.columns)[event.column].field
        self._sort_by(name, descending=name == self.list_layout.sort and not self.list_layout.descending)

    def _sort_by(self, name: str, *, descending: bool) -> None:
        self.list_layout.sort, self.list_layout.descending = name, descending
        self._save()

    def _save(self) -> None:
        self.midstream.saved_layout.save()
        self.refresh_state()

    # ------------------------------------------------------------------------------------------ groups, columns

    def action_group(self) -> None:
        """Group by the next field, after the last one not at all."""
        names = ["", *self.listing.groups]
        at = names.index(self.list_layout.group) if self.list_layout.group in names else 0
        self.list_layout.group = names[(at + 1) % len(names)]
        self._save()

    def action_hide_finished(self) -> None:
        if self.listing.finished is None:
            self.notify("press 2 or 3: hosts do not finish")
            return
        self.list_layout.hide_finished = not self.list_layout.hide_finished
        self._save()

    def action_columns(self) -> None:
        """Choose the columns of the list in view."""
        first, *others = self.listing.columns
        layout, fields = self.list_layout, self.listing.fields
        of_config = [title for title in layout.columns if title.startswith(CONFIG)]
        shown = {*(column.title for column in self.listing.chosen(layout.columns)), *of_config}
        rows = [Row(column.title, (column.title, column.field, fields[column.field].about)) for column in others]
        rows += [Row(name, (name, "", "of the configuration")) for name in of_config]
        if self._view == RUNS:
            rows.append(Row(CONFIG, ("other values", f"{CONFIG}NAME", "of the configuration: chosen next")))

        def chosen(titles: list[str] | None) -> None:
            if titles is None:
                return
            named = [title for title in titles if title != CONFIG]
            default = [column.title for column in others if not column.extra]
            layout.columns = [] if named == default else [first.title, *named]
            self._save()
            if CONFIG in titles:
                self.choose_config_values()

        columns = (Column("COLUMN", widest=44, name=True), Column("FIELD"), Column("SHOWS", rest=True))
        from midstream.tui.screens.dialogs.choose_many import ChooseManyScreen

        self.app.push_screen(ChooseManyScreen("Columns", columns, rows, shown), chosen)

    def choose_config_values(self) -> None:
        """Choose values of the configurations as columns, where a list has such columns."""
