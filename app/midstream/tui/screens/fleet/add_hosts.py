"""Dialog to add hosts of `~/.ssh/config` to the fleet file."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from midstream.errors import MidstreamError
from midstream.tui.base_app import app_of
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.style import palette
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.chrome import Rule
from midstream.tui.widgets.table import Column, Row, Table


class AddHostsScreen(ModalScreen[list[str]]):
    """Returns the fleet file lines of the chosen hosts; None on esc."""

    BINDINGS: ClassVar = [
        ("escape,q", "dismiss(None)", "Cancel"),
        ("space", "mark", "Mark"),
        ("a", "all", "All"),
        ("enter", "write", "Write"),
    ]

    def __init__(self, candidates: dict[str, str], file: str, projects: list[str]) -> None:
        super().__init__()
        self._candidates = candidates
        self._file = file
        self._projects = projects
        self._marked: dict[str, None] = {}

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Rule("Add hosts from ~/.ssh/config", app_of(self).glyphs)
            table = Table((Column("HOST", widest=30), Column("FLEET FILE LINE", widest=200)), app_of(self).glyphs)
            table.styles.height = min(len(self._candidates) + 1, 14)
            yield table
            words = Text(f"space marks, a marks all, enter writes {self._file}, esc cancels", palette.DIM)
            if self._projects:
                words.append(f"\ngcloud projects: {', '.join(self._projects)} (docs/how-to/gcp.md: add a TPU)")
            yield Static(words, classes="words")

    def on_mount(self) -> None:
        self._paint()
        self.query_one(Table).focus()

    def _paint(self) -> None:
        rows = [Row(name, (name, line.strip())) for name, line in self._candidates.items()]
        self.query_one(Table).show(rows, marked=self._marked)

    def action_mark(self) -> None:
        table = self.query_one(Table)
        name = str(table.selected)
        if name in self._marked:
            del self._marked[name]
        else:
            self._marked[name] = None
        table.action_cursor(1)
        self._paint()

    def action_all(self) -> None:
        self._marked = {} if len(self._marked) == len(self._candidates) else dict.fromkeys(self._candidates)
        self._paint()

    def action_write(self) -> None:
        names = list(self._marked) or [str(self.query_one(Table).selected)]
        self.dismiss([self._candidates[name] for name in names])


def offer(screen: MidstreamScreen) -> None:
    """Open the dialog; write the fleet file and restart with it."""
    actions = screen.midstream.actions
    try:
        candidates, projects, file = actions.ssh_hosts()
    except MidstreamError as error:
        screen.show_error(error)
        return
    if not candidates:
        screen.notify(f"{file} already has every host of ~/.ssh/config", markup=False)
        return

    def chosen(lines: list[str] | None) -> None:
        if not lines:
            return
        try:
            actions.add_hosts(lines)
        except MidstreamError as error:
            screen.show_error(error)
            return
        screen.midstream.restart()

    screen.app.push_screen(AddHostsScreen(candidates, file, projects), chosen)
