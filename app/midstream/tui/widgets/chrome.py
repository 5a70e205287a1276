"""What frames every screen: where one is, which views there are, which keys work."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual.widgets import Static

from midstream.tui import commands, palette
from midstream.tui.glyphs import UNICODE, Glyphs
from midstream.tui.styled_text import Text


class Breadcrumbs(Static):
    """The top line: where one is on the left, the state of the fleet on the right."""

    DEFAULT_CSS = "Breadcrumbs { height: 1; dock: top; background: $surface; }"

    def __init__(self, glyphs: Glyphs = UNICODE) -> None:
        super().__init__()
        self.glyphs = glyphs
        self._crumbs: tuple[str, ...] = ()
        self._right = Text()

    def show(self, crumbs: Sequence[str], right: Text) -> None:
        if (tuple(crumbs), right) != (self._crumbs, self._right):
            self._crumbs, self._right = tuple(crumbs), right
            self.refresh()

    def render(self) -> Text:
        line = Text(" midstream", style=f"bold {palette.ACCENT}", no_wrap=True)
        for number, crumb in enumerate(self._crumbs):
            last = number == len(self._crumbs) - 1
            line.append(f" {self.glyphs.crumb} ", palette.FAINT)
            line.append(crumb, f"bold {palette.TEXT}" if last else palette.DIM)
        right = self._right
        room = self.size.width - right.cell_len - 1
        if line.cell_len > room - 1:
            line.truncate(max(0, room - 1))
        line.append(" " * max(1, room - line.cell_len), "not bold")
        return line.append_text(right)


class Views(Static):
    """The views of a screen with the digits that open them: ``1 Hosts  2 Runs``."""

    DEFAULT_CSS = "Views { height: 1; background: $surface; }"

    def __init__(self, scope: str) -> None:
        super().__init__()
        self._views = [command for command in commands.of(scope) if command.action.startswith("view(")]
        self._spans: list[tuple[int, int, str]] = []
        self._now = ""
        self._notes: dict[str, str] = {}

    def show(self, now: str, notes: dict[str, str] | None = None) -> None:
        """Mark ``now`` (the argument of the view's action); ``notes``: a count or a word beside a view's name."""
        notes = notes or {}
        if (now, notes) != (self._now, self._notes):
            self._now, self._notes = now, notes
            self.refresh()

    def render(self) -> Text:
        line = Text(" ", no_wrap=True)
        self._spans = []
        for command in self._views:
            name = command.action[6:-2]
            chosen = name == self._now
            begin = line.cell_len
            line.append(f" {command.keys[0]} ", f"{palette.ACCENT} on {palette.RAISED}" if chosen else palette.ACCENT)
            line.append(command.name, f"bold {palette.TEXT} on {palette.RAISED}" if chosen else palette.DIM)
            if note := self._notes.get(name):
                line.append(f" {note}", f"{palette.DIM} on {palette.RAISED}" if chosen else palette.DIM)
            line.append(" ", f"on {palette.RAISED}" if chosen else "")
            self._spans.append((begin, line.cell_len, command.action))
            line.append(" ")
        return line

    async def on_click(self, event) -> None:
        for begin, end, action in self._spans:
            if begin <= event.x < end:
                await self.screen.run_action(action)


class Hints(Static):
    """The bottom line: the keys that matter here, as many as fit."""

    DEFAULT_CSS = "Hints { height: 1; dock: bottom; background: $surface; }"

    def __init__(self, scope: str) -> None:
        super().__init__()
        self._scope = scope
        self._hidden: frozenset[str] = frozenset()

    def hide(self, *actions: str) -> None:
        """Leave out what has no meaning at the moment."""
        if frozenset(actions) != self._hidden:
            self._hidden = frozenset(actions)
            self.refresh()

    def render(self) -> Text:
        own = [c for c in commands.of(self._scope) if c.hint and c.action not in self._hidden]
        everywhere = [c for c in commands.of(commands.EVERYWHERE) if c.hint and c.action not in self._hidden]
        room = self.size.width - 1
        fixed = sum(_width(command) for command in everywhere)
        line = Text(" ", no_wrap=True)
        for command in own:
            if line.cell_len + _width(command) + fixed <= room:
                _append(line, command)
        for command in everywhere:
            if line.cell_len + _width(command) <= room:
                _append(line, command)
        return line


def _width(command: commands.Command) -> int:
    return cell_len(commands.key_name(command.keys[0])) + cell_len(command.name) + 3


def _append(line: Text, command: commands.Command) -> None:
    line.append(commands.key_name(command.keys[0]), f"bold {palette.ACCENT}")
    line.append(f" {command.name}  ", palette.DIM)


class Rule(Static):
    """A line with a word in it, above a pane."""

    DEFAULT_CSS = "Rule { height: 1; }"

    def __init__(self, title: str, glyphs: Glyphs = UNICODE, right: str = "") -> None:
        super().__init__()
        self._title = title
        self._right = right
        self.glyphs = glyphs

    def show(self, title: str, right: str = "") -> None:
        if (title, right) != (self._title, self._right):
            self._title, self._right = title, right
            self.refresh()

    def render(self) -> Text:
        line = Text(self.glyphs.rule, palette.FAINT, no_wrap=True)
        line.append(f" {self._title} ", palette.DIM)
        right = f" {self._right} " if self._right else ""
        line.append(self.glyphs.rule * max(0, self.size.width - line.cell_len - len(right) - 1), palette.FAINT)
        line.append(right, palette.DIM)
        return line.append(self.glyphs.rule, palette.FAINT)
