"""Table: lines drawn one by one (the Line API), so that thousands of rows cost what the visible ones cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from midstream.printable import printable
from midstream.tui import commands, palette
from midstream.tui.glyphs import UNICODE, Glyphs

MARGIN = 2  # cells between columns
LOOKED_AT = 200  # rows that widths are taken from, besides those in sight
NARROW = 14  # cells that a column of words keeps
REST = 20  # cells that a column of sentences keeps
EMPTY_INDENT = 3


@dataclass(frozen=True)
class Column:
    """A column. Where room is scarce the columns with the highest ``drop`` go first; 0 stays. ``widest`` cuts long
    cells; ``rest`` is for the last column, which takes what the others leave."""

    title: str
    right: bool = False
    drop: int = 0
    widest: int = 40
    rest: bool = False


@dataclass(frozen=True)
class Row:
    """A line: its key, and for each column a text or (text, colour)."""

    key: Hashable
    cells: tuple[str | tuple[str, str], ...]
    dim: bool = False

    def text(self, index: int) -> str:
        cell = self.cells[index]
        return printable(cell if isinstance(cell, str) else cell[0])


class Rows(Sequence[Row]):
    """Rows that are made when they are looked at: thousands cost what those in sight do."""

    def __init__(self, keys: Sequence[Hashable], make: Callable[[int], Row]) -> None:
        self.keys = keys
        self._make = make
        self._made: dict[int, Row] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index):  # type: ignore[override]  # of a Sequence: an int or a slice
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self.keys)))]
        if index not in self._made:
            self._made[index] = self._make(index)
        return self._made[index]


class Table(ScrollView, can_focus=True, inherit_bindings=False):
    """Rows under a heading that stays, one of them selected by its key, which outlives every update."""

    BINDINGS = commands.bindings(commands.LIST)
    DEFAULT_CSS = "Table { height: 1fr; width: 1fr; overflow-x: hidden; overflow-y: auto; }"

    class Moved(Message):
        """Another row is selected."""

        def __init__(self, table: Table, key: Hashable | None) -> None:
            super().__init__()
            self.table = table
            self.key = key

    class Chosen(Message):
        """A row was clicked twice."""

        def __init__(self, table: Table, key: Hashable) -> None:
            super().__init__()
            self.table = table
            self.key = key

    class Headed(Message):
        """The heading of a column was clicked."""

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
        self._widest: dict[int, int] = {}  # column -> cells of the widest cell that was seen
        self._measured: tuple[int, int] = (-1, -1)
        self._places: dict[int, int] = {}  # column -> the cells that it has on the screen

    # ------------------------------------------------------------------------------------------ content

    @property
    def selected(self) -> Hashable | None:
        """The key of the selected row."""
        return self._keys[self._index] if len(self._keys) else None

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
        """Replace all rows. ``empty``: the lines that are shown where there are none. ``sort``: (column, downwards),
        for its heading. ``marked``: keys of the rows with a mark."""
        before = self.selected
        if columns is not None:
            self._columns = tuple(columns)
        if len(rows) != len(self._rows):
            self._widest = {}
        self._rows, self._empty, self._sort, self._marked = rows, tuple(empty), sort, marked
        self._keys = rows.keys if isinstance(rows, Rows) else [row.key for row in rows]
        self._measured = (-1, -1)
        if not (self._index < len(self._keys) and self._keys[self._index] == before):
            known = before is not None and before in self._keys
            self._index = self._keys.index(before) if known else min(self._index, max(0, len(self._keys) - 1))
        self.virtual_size = Size(self.size.width, len(self._rows) + 1)
        self.refresh()
        if self.selected != before:
            self.post_message(self.Moved(self, self.selected))

    def select(self, key: Hashable) -> None:
        """Select the row with this key, where there is one."""
        if key in self._keys:
            self._move_to(self._keys.index(key))

    def _move_to(self, index: int) -> None:
        index = min(max(0, index), max(0, len(self._keys) - 1))
        if index == self._index:
            return
        self._index = index
        height = max(1, self.size.height - 1)
        if index < self.scroll_offset.y:
            self.scroll_to(y=index, animate=False)
        elif index >= self.scroll_offset.y + height:
            self.scroll_to(y=index - height + 1, animate=False)
        self.refresh()
        self.post_message(self.Moved(self, self.selected))

    # ------------------------------------------------------------------------------------------ keys and mouse

    def action_cursor(self, by: int) -> None:
        self._move_to(self._index + by)

    def action_page(self, by: int) -> None:
        self._move_to(self._index + by * max(1, self.size.height - 2))

    def on_click(self, event: events.Click) -> None:
        index = event.y - 1 + self.scroll_offset.y
        if event.y == 0:
            for column, place in reversed(self._places.items()):
                if event.x >= place:
                    self.post_message(self.Headed(self, column))
                    return
        if event.y < 1 or not 0 <= index < len(self._rows):
            return
        self._move_to(index)
        if event.chain == 2 and self.selected is not None:
            self.post_message(self.Chosen(self, self.selected))

    # ------------------------------------------------------------------------------------------ painting

    def _widths(self, room: int) -> dict[int, int]:
        """Column index -> cells. Long columns give way first, then the least needed are left out."""
        self._measure()
        natural = {
            index: min(column.widest, max(self._widest.get(index, 0), cell_len(self._title(index))))
            for index, column in enumerate(self._columns)
        }
        least = {
            index: min(
                width, REST if self._columns[index].rest else NARROW if not self._columns[index].right else width
            )
            for index, width in natural.items()
        }

        def total(widths: dict[int, int]) -> int:
            return sum(widths.values()) + MARGIN * (len(widths) - 1)

        for index in sorted(least, key=lambda index: -self._columns[index].drop):
            if total(least) <= room or not self._columns[index].drop:
                break
            del least[index]
        widths = dict(least)
        for index in widths:  # what is left goes to the columns in their order
            widths[index] += max(0, min(natural[index] - widths[index], room - total(widths)))
        return widths

    def _measure(self) -> None:
        """Look at the rows in sight, and at the first ones: what was seen stays, so that columns do not jump."""
        top = self.scroll_offset.y
        if self._measured == (top, self.size.height):
            return
        self._measured = (top, self.size.height)
        total = len(self._rows)
        places = range(min(LOOKED_AT, total)) if total <= LOOKED_AT else range(top, min(total, top + self.size.height))
        for place in places:
            row = self._rows[place]
            for index in range(len(self._columns)):
                self._widest[index] = max(self._widest.get(index, 0), cell_len(row.text(index)))

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
            place = 3
            for index, cells in widths.items():
                self._places[index] = place
                place += cells + MARGIN
            segments = self._cells(titles, widths, base + Style(color=palette.DIM))
            return Strip([Segment("   ", base), *segments]).adjust_cell_length(width, base)
        index = y - 1 + self.scroll_offset.y
        if index >= len(self._rows):
            return Strip.blank(width, base)
        row = self._rows[index]
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
                text = set_cell_size(text, room - len(self.glyphs.ellipsis)) + self.glyphs.ellipsis
            padding = " " * (room - cell_len(text))
            text = padding + text if self._columns[index].right else text + padding
            segments += [Segment(text, style + Style(color=colour) if colour else style), Segment(" " * MARGIN, style)]
        return segments

    def _render_empty(self, y: int, width: int, base: Style) -> Strip:
        """The lines that say what to do next; a line that begins with two spaces is one to type."""
        if not 0 <= y - 1 < len(self._empty):
            return Strip.blank(width, base)
        text = self._empty[y - 1]
        colour = palette.ACCENT if text.startswith("  ") else palette.DIM
        return Strip([Segment(" " * EMPTY_INDENT + text, base + Style(color=colour))]).adjust_cell_length(width, base)
