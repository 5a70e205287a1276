"""Table: rows drawn by Textual's Line API, at the cost of the visible rows only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from midstream.listing.column import Column
from midstream.printable import printable
from midstream.tui import commands
from midstream.tui.style import palette
from midstream.tui.style.glyphs import UNICODE, Glyphs

MARGIN = 2  # cells between columns
MEASURED_ROWS = 200  # a table with more rows measures only the visible ones
MIN_TEXT_WIDTH = 14  # cells
MIN_REST_WIDTH = 20  # cells
NARROWEST_REST = 8  # cells, where nothing else can be omitted
EMPTY_INDENT = 3
READABLE_REST = 60  # cells, in which a reason can be read
# Columns of this `drop` and above are dropped before a name is cut; pictures also before the last column is.
SECONDARY, PICTURES = 4, 7


@dataclass(frozen=True)
class Heading:
    """The key of a line above a group of rows, which cannot be selected."""

    text: str


@dataclass(frozen=True)
class Row:
    """A row: its key, and for each column a text or (text, colour)."""

    key: Hashable
    cells: tuple[str | tuple[str, str], ...]
    dim: bool = False

    def text(self, index: int) -> str:
        cell = self.cells[index]
        return printable(cell if isinstance(cell, str) else cell[0])


class Rows(Sequence[Row]):
    """Rows created on access: only visible ones are created."""

    def __init__(self, keys: Sequence[Hashable], make: Callable[[int], Row]) -> None:
        self.keys = keys
        self._make = make
        self._created: dict[int, Row] = {}

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self.keys)))]
        if index not in self._created:
            self._created[index] = self._make(index)
        return self._created[index]


class Table(ScrollView, can_focus=True, inherit_bindings=False):
    """Rows under a fixed heading. The selection is a key, which updates preserve."""

    SCOPES = (commands.LIST,)
    BINDINGS = commands.bindings(*SCOPES)
    DEFAULT_CSS = "Table { height: 1fr; width: 1fr; overflow-x: hidden; overflow-y: auto; }"

    class Moved(Message):
        """The selection has changed."""

        def __init__(self, table: Table, key: Hashable | None) -> None:
            super().__init__()
            self.table = table
            self.key = key

    class Chosen(Message):
        """A row was double-clicked."""

        def __init__(self, table: Table, key: Hashable) -> None:
            super().__init__()
            self.table = table
            self.key = key

    class Headed(Message):
        """A column heading was clicked."""

        def __init__(self, table: Table, column: int) -> None:
            super().__init__()
            self.table = table
            self.column = column

    def __init__(self, columns: Sequence[Column], glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.glyphs = glyphs
        self._columns = tuple(columns)
        self._rows: Sequence[Row] = ()
        self._keys: Sequence[Hashable] = ()
        self._index = 0
        self._empty: tuple[str, ...] = ()
        self._sort: tuple[int, bool] | None = None
        self._marked: Collection[Hashable] = ()
        self._widest: dict[int, int] = {}  # column -> width of its widest measured cell
        self._measured: tuple[int, int] = (-1, -1)
        self._offsets: dict[int, int] = {}  # column -> its first cell on the screen

    # ------------------------------------------------------------------------------------------ content

    @property
    def selected(self) -> Hashable | None:
        """The key of the selected row."""
        return self._keys[self._index] if len(self._keys) else None

    @property
    def keys(self) -> Sequence[Hashable]:
        return self._keys

    @property
    def rows(self) -> Sequence[Row]:
        return self._rows

    def show(
        self,
        rows: Sequence[Row],
        *,
        columns: Sequence[Column] | None = None,
        empty: Sequence[str] = (),
        sort: tuple[int, bool] | None = None,
        marked: Collection[Hashable] = (),
    ) -> None:
        """Replace all rows.

        Args:
            rows: The rows, in order.
            columns: New columns; None keeps them.
            empty: Lines shown instead of an empty table.
            sort: (column, descending), shown in the heading.
            marked: Keys of the rows with a mark.
        """
        before = self.selected
        if columns is not None and tuple(columns) != self._columns:
            self._columns = tuple(columns)
            self._widest, self._offsets = {}, {}
        if len(rows) != len(self._rows):
            self._widest = {}
        self._rows, self._empty, self._sort, self._marked = rows, tuple(empty), sort, marked
        self._keys = rows.keys if isinstance(rows, Rows) else [row.key for row in rows]
        self._measured = (-1, -1)
        if not (self._index < len(self._keys) and self._keys[self._index] == before):
            is_listed = before is not None and before in self._keys
            self._index = self._keys.index(before) if is_listed else min(self._index, max(0, len(self._keys) - 1))
            self._index = self._beside_heading(self._index, 1)
        self.virtual_size = Size(self.size.width, len(self._rows) + 1)
        self.refresh()
        if self.selected != before:
            self.post_message(self.Moved(self, self.selected))

    def select(self, key: Hashable) -> None:
        """Select the row with this key, if there is one."""
        if key in self._keys:
            self._move_to(self._keys.index(key))

    def _beside_heading(self, index: int, by: int) -> int:
        """Return ``index``, or the nearest row to it if a heading is there.

        The nearest row is in the direction ``by``, or else in the other.
        """
        for step in (by, -by):
            place = index
            while 0 <= place < len(self._keys) and isinstance(self._keys[place], Heading):
                place += step
            if 0 <= place < len(self._keys):
                return place
        return index

    def _move_to(self, index: int, by: int = 1) -> None:
        index = self._beside_heading(min(max(0, index), max(0, len(self._keys) - 1)), by)
        if index == self._index:
            return
        self._index = index
        height = max(1, self.size.height - 1)
        top = index - 1 if index and isinstance(self._keys[index - 1], Heading) else index
        if top < self.scroll_offset.y:
            self.scroll_to(y=top, animate=False)
        elif index >= self.scroll_offset.y + height:
            self.scroll_to(y=index - height + 1, animate=False)
        self.refresh()
        self.post_message(self.Moved(self, self.selected))

    # ------------------------------------------------------------------------------------------ keys and mouse

    def action_cursor(self, by: int) -> None:
        self._move_to(self._index + by, 1 if by > 0 else -1)

    def action_page(self, by: int) -> None:
        self._move_to(self._index + by * max(1, self.size.height - 2), by)

    def on_click(self, event: events.Click) -> None:
        index = event.y - 1 + self.scroll_offset.y
        if event.y == 0:
            for column, offset in reversed(self._offsets.items()):
                if event.x >= offset:
                    self.post_message(self.Headed(self, column))
                    return
        if event.y < 1 or not 0 <= index < len(self._rows) or isinstance(self._keys[index], Heading):
            return
        self._move_to(index)
        if event.chain == 2 and self.selected is not None:
            self.post_message(self.Chosen(self, self.selected))

    # ------------------------------------------------------------------------------------------ painting

    def _widths(self, room: int) -> dict[int, int]:
        """Return column index -> width.

        Secondary columns are dropped before a name is cut, others only after long columns have shrunk.
        """
        self._measure()
        longest = {
            index: max(self._widest.get(index, 0), cell_len(self._title(index)))
            for index, column in enumerate(self._columns)
            if not column.optional or self._widest.get(index)
        }
        natural = {index: min(self._columns[index].widest, width) for index, width in longest.items()}
        least = dict(natural)
        for drop, kept in (
            (PICTURES, lambda column: column.name or column.rest),
            (SECONDARY, lambda column: column.name),
        ):
            for index in least:
                column = self._columns[index]
                width = min(natural[index], READABLE_REST) if column.rest else natural[index]
                least[index] = width if kept(column) else self._least(column, width)
            self._drop(least, room, drop)
        least = {index: self._least(self._columns[index], natural[index]) for index in least}
        self._drop(least, room, 1)
        for index in least:
            if self._columns[index].rest and _total(least) > room:
                least[index] = max(min(least[index], NARROWEST_REST), least[index] - (_total(least) - room))
        while _total(least) > room and len(least) > 1:
            del least[max(least)]
        widths = dict(least)
        for wider in (natural, {index: longest[index] for index in widths if self._columns[index].name}):
            for index in widths.keys() & wider.keys():  # the remaining width goes to the columns in order
                widths[index] += max(0, min(wider[index] - widths[index], room - _total(widths)))
        return widths

    def _least(self, column: Column, width: int) -> int:
        """Return the width to which a column of ``width`` may shrink."""
        if column.rest and not column.optional:
            return min(width, MIN_REST_WIDTH)
        return width if column.right or column.entire else min(width, MIN_TEXT_WIDTH)

    def _drop(self, widths: dict[int, int], room: int, drop: int) -> None:
        """Drop columns of at least this ``drop``, the highest first, until the others fit."""
        for index in sorted(widths, key=lambda index: -self._columns[index].drop):
            if _total(widths) <= room or self._columns[index].drop < drop:
                break
            del widths[index]

    def _measure(self) -> None:
        """Measure the visible rows, or all rows of a short table.

        Widths never shrink, so that columns do not jump.
        """
        top = self.scroll_offset.y
        if self._measured == (top, self.size.height):
            return
        self._measured = (top, self.size.height)
        total = len(self._rows)
        indices = (
            range(min(MEASURED_ROWS, total))
            if total <= MEASURED_ROWS
            else range(top, min(total, top + self.size.height))
        )
        for index in indices:
            row = self._rows[index]
            if isinstance(row.key, Heading):
                continue
            for column in range(len(self._columns)):
                self._widest[column] = max(self._widest.get(column, 0), cell_len(row.text(column)))

    def _title(self, index: int) -> str:
        title = self._columns[index].title
        if self._sort is None or self._sort[0] != index:
            return title
        return f"{title}{self.glyphs.down if self._sort[1] else self.glyphs.up}"

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        base = self.rich_style
        if not len(self._rows):
            return self._render_empty(y, width, base)
        widths = self._widths(width - 3)
        if y == 0:
            titles = [self._title(index) for index in range(len(self._columns))]
            offset = 3
            for index, cells in widths.items():
                self._offsets[index] = offset
                offset += cells + MARGIN
            segments = self._cells(titles, widths, base + Style(color=palette.DIM))
            return Strip([Segment("   ", base), *segments]).adjust_cell_length(width, base)
        index = y - 1 + self.scroll_offset.y
        if index >= len(self._rows):
            return Strip.blank(width, base)
        row = self._rows[index]
        if isinstance(row.key, Heading):
            return self._render_heading(row.key, width, base)
        chosen = index == self._index
        style = base + Style(color=palette.DIM) if row.dim else base
        if chosen:
            style += Style(bgcolor=palette.RAISED, bold=self.has_focus)
        mark = self.glyphs.chosen if row.key in self._marked else " "
        sign = f"{mark}{self.glyphs.select if chosen else ' '} "
        lead = Segment(sign, style + Style(color=palette.ACCENT, bold=True))
        return Strip([lead, *self._cells(row.cells, widths, style)]).adjust_cell_length(width, style)

    def _cells(self, cells: Sequence[str | tuple[str, str]], widths: dict[int, int], style: Style) -> list[Segment]:
        segments = []
        for index, room in widths.items():
            cell = cells[index]
            text, colour = (cell, "") if isinstance(cell, str) else cell
            text = printable(text)
            if cell_len(text) > room:
                text = shortened(text, room, self.glyphs.ellipsis, in_middle=self._columns[index].name)
            padding = " " * (room - cell_len(text))
            text = padding + text if self._columns[index].right else text + padding
            segments += [Segment(text, style + Style(color=colour) if colour else style), Segment(" " * MARGIN, style)]
        return segments

    def _render_heading(self, heading: Heading, width: int, base: Style) -> Strip:
        text = printable(heading.text)
        segments = [
            Segment(f"{self.glyphs.rule} ", base + Style(color=palette.FAINT)),
            Segment(text, base + Style(color=palette.ACCENT)),
            Segment(f" {self.glyphs.rule * max(0, width - cell_len(text) - 4)}", base + Style(color=palette.FAINT)),
        ]
        return Strip(segments).adjust_cell_length(width, base)

    def _render_empty(self, y: int, width: int, base: Style) -> Strip:
        """Draw a line of the text for an empty table.

        Two leading spaces mark a command to type.
        """
        if not 0 <= y - 1 < len(self._empty):
            return Strip.blank(width, base)
        text = self._empty[y - 1]
        colour = palette.ACCENT if text.startswith("  ") else palette.DIM
        return Strip([Segment(" " * EMPTY_INDENT + text, base + Style(color=colour))]).adjust_cell_length(width, base)


def _total(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + MARGIN * (len(widths) - 1)


def shortened(text: str, room: int, ellipsis: str, *, in_middle: bool = False) -> str:
    """Cut a text to ``room`` cells, at its end or in its middle."""
    kept = max(0, room - cell_len(ellipsis))
    end = kept // 2 if in_middle else 0
    tail = ""
    for sign in reversed(text):
        if cell_len(sign + tail) > end:
            break
        tail = sign + tail
    return set_cell_size(text, kept - cell_len(tail)) + ellipsis + tail
