"""Table: lines drawn one by one (the Line API), so that thousands of rows cost what the visible ones cost."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from midstream.tui import commands, palette
from midstream.tui.glyphs import UNICODE, Glyphs

MARGIN = 2  # cells between columns
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
        return cell if isinstance(cell, str) else cell[0]

    @property
    def words(self) -> str:
        """All that can be read in the line: what the filter looks at."""
        return " ".join(self.text(index) for index in range(len(self.cells)))


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

    def __init__(self, columns: Sequence[Column], glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.glyphs = glyphs
        self._columns = tuple(columns)
        self._rows: tuple[Row, ...] = ()
        self._index = 0
        self._empty: tuple[str, ...] = ()

    # ------------------------------------------------------------------------------------------ content

    @property
    def selected(self) -> Hashable | None:
        """The key of the selected row."""
        return self._rows[self._index].key if self._rows else None

    @property
    def rows(self) -> tuple[Row, ...]:
        return self._rows

    def show(self, rows: Sequence[Row], *, columns: Sequence[Column] | None = None, empty: Sequence[str] = ()) -> None:
        """Replace all rows. ``empty``: the lines that are shown where there are none."""
        before = self.selected
        if columns is not None:
            self._columns = tuple(columns)
        self._rows, self._empty = tuple(rows), tuple(empty)
        keys = [row.key for row in self._rows]
        self._index = keys.index(before) if before in keys else min(self._index, max(0, len(keys) - 1))
        self.virtual_size = Size(self.size.width, len(self._rows) + 1)
        self.refresh()
        if self.selected != before:
            self.post_message(self.Moved(self, self.selected))

    def select(self, key: Hashable) -> None:
        """Select the row with this key, where there is one."""
        keys = [row.key for row in self._rows]
        if key in keys:
            self._move_to(keys.index(key))

    def _move_to(self, index: int) -> None:
        index = min(max(0, index), max(0, len(self._rows) - 1))
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
        if event.y < 1 or not 0 <= index < len(self._rows):
            return
        self._move_to(index)
        if event.chain == 2 and self.selected is not None:
            self.post_message(self.Chosen(self, self.selected))

    # ------------------------------------------------------------------------------------------ painting

    def _widths(self, room: int) -> dict[int, int]:
        """Column index -> cells. Long columns give way first, then the least needed are left out."""
        natural = {}
        for index, column in enumerate(self._columns):
            longest = max((cell_len(row.text(index)) for row in self._rows), default=0)
            natural[index] = min(column.widest, max(longest, cell_len(column.title)))
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

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        base = self.rich_style
        if not self._rows:
            return self._render_empty(y, width, base)
        widths = self._widths(width - 3)
        if y == 0:
            segments = self._cells([column.title for column in self._columns], widths, base + Style(color=palette.DIM))
            return Strip([Segment("   ", base), *segments]).adjust_cell_length(width, base)
        index = y - 1 + self.scroll_offset.y
        if index >= len(self._rows):
            return Strip.blank(width, base)
        row = self._rows[index]
        chosen = index == self._index
        style = base + Style(color=palette.DIM) if row.dim else base
        if chosen:
            style += Style(bgcolor=palette.RAISED, bold=self.has_focus)
        sign = f" {self.glyphs.select if chosen else ' '} "
        lead = Segment(sign, style + Style(color=palette.ACCENT, bold=True))
        return Strip([lead, *self._cells(row.cells, widths, style)]).adjust_cell_length(width, style)

    def _cells(self, cells: Sequence[str | tuple[str, str]], widths: dict[int, int], style: Style) -> list[Segment]:
        segments = []
        for index, room in widths.items():
            cell = cells[index]
            text, colour = (cell, "") if isinstance(cell, str) else cell
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
