"""Add hosts to the fleet file: those that `~/.ssh/config` names, chosen with the space bar."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from midstream.errors import MidstreamError
from midstream.tui import palette
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.styled_text import Text
from midstream.tui.widgets.chrome import Rule
from midstream.tui.widgets.table import Column, Row, Table

RELOAD = 75  # what the app ends with so that it begins anew with another fleet file


class SetUpScreen(ModalScreen[list[str]]):
    """The lines of the hosts that were chosen; None on esc."""

    BINDINGS: ClassVar = [
        ("escape,q", "dismiss(None)", "Leave"),
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
        from midstream.tui.app import MidstreamApp

        assert isinstance(self.app, MidstreamApp)
        with Vertical(id="dialog"):
            yield Rule("Add hosts from ~/.ssh/config", self.app.glyphs)
            table = Table((Column("HOST", widest=30), Column("LINE OF THE FLEET FILE", widest=200)), self.app.glyphs)
            table.styles.height = min(len(self._candidates) + 1, 14)
            yield table
            words = Text(f"space marks, a marks all, enter writes {self._file}, esc leaves it as it is", palette.DIM)
            if self._projects:
                words.append(f"\ngcloud knows {', '.join(self._projects)}: docs/hosts.md tells how a TPU is named")
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
    """Let a person choose; the fleet file is written, and the screen begins anew with it."""
    actions = screen.midstream.actions
    try:
        candidates, projects, file = actions.ssh_hosts()
    except MidstreamError as error:
        screen.say(error)
        return
    if not candidates:
        screen.notify(f"~/.ssh/config names no host that {file} does not have", markup=False)
        return

    def chosen(lines: list[str] | None) -> None:
        if not lines:
            return
        try:
            actions.add_hosts(lines)
        except MidstreamError as error:
            screen.say(error)
            return
        screen.midstream.begin_anew()

    screen.app.push_screen(SetUpScreen(candidates, file, projects), chosen)
