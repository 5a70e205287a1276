"""Lines around every screen: breadcrumbs, views, key hints and rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from textual import events
from textual.widgets import Static

from midstream.tui import commands
from midstream.tui.style import palette
from midstream.tui.style.glyphs import UNICODE, Glyphs
from midstream.tui.style.styled_text import Text


def _cut(line: Text, width: int, glyphs: Glyphs) -> Text:
    """Cut a line to ``width`` cells; a cut one ends with an ellipsis."""
    if line.cell_len <= width:
        return line
    line.truncate(max(0, width - cell_len(glyphs.ellipsis)))
    return line.append(glyphs.ellipsis)


class Breadcrumbs(Static):
    """The top line: breadcrumbs on the left, the state of the fleet on the right."""

    DEFAULT_CSS = "Breadcrumbs { height: 1; dock: top; background: $surface; }"

    def __init__(self, glyphs: Glyphs = UNICODE) -> None:
        super().__init__()
        self.glyphs = glyphs
        self._crumbs: tuple[str, ...] = ()
        self._states: tuple[Text, ...] = ()

    def show(self, crumbs: Sequence[str], *states: Text) -> None:
        """Show the crumbs, and on the right the first of ``states`` that fits.

        A state fits if it leaves room for the last crumb.
        """
        if (tuple(crumbs), states) != (self._crumbs, self._states):
            self._crumbs, self._states = tuple(crumbs), states
            self.refresh()

    def render(self) -> Text:
        width = self.size.width
        last = Text(no_wrap=True).append(f" {self._crumbs[-1]}" if self._crumbs else "", f"bold {palette.TEXT}")
        line = Text(no_wrap=True).append(" midstream", f"bold {palette.ACCENT}")
        for crumb in self._crumbs[:-1]:
            line.append(f" {self.glyphs.crumb} ", palette.FAINT).append(crumb, palette.DIM)
        if self._crumbs:
            line.append(f" {self.glyphs.crumb} ", palette.FAINT).append(self._crumbs[-1], f"bold {palette.TEXT}")
        states = self._states or (Text(),)
        right = next((state for state in states if last.cell_len + state.cell_len + 2 <= width), states[-1])
        room = width - right.cell_len - 1
        if line.cell_len > room - 1:  # the last crumb says where one is
            line = last
        if line.cell_len > room - 1:
            line = _cut(line, room - 1, self.glyphs)
        line.append(" " * max(1, room - line.cell_len))
        return line.append_text(right)


class Views(Static):
    """Targets of the digits: views of a screen, and screens beside it.

    For example ``1 Hosts  2 Runs  5 Costs``.
    """

    DEFAULT_CSS = "Views { height: 1; background: $surface; }"

    def __init__(self, scope: str) -> None:
        super().__init__()
        self._views = [command for command in commands.of(scope) if commands.keys_of(command)[0].isdecimal()]
        self._spans: list[tuple[int, int, str]] = []
        self._now = ""
        self._notes: dict[str, str] = {}

    def show(self, now: str, notes: dict[str, str] | None = None) -> None:
        """Mark the view ``now`` (the argument of its action).

        ``notes`` are short texts after the views' names.
        """
        notes = notes or {}
        if (now, notes) != (self._now, self._notes):
            self._now, self._notes = now, notes
            self.refresh()

    def render(self) -> Text:
        """Draw all views.

        With little room they are drawn without the notes of the others, then without notes, then without the names of
        the others.
        """
        own = {self._now: self._notes.get(self._now, "")}
        for notes, names in ((self._notes, True), (own, True), ({}, True), ({}, False)):
            line = self._line(notes, names)
            if line.cell_len <= self.size.width:
                break
        return line

    def _line(self, notes: Mapping[str, str], names: bool) -> Text:
        line = Text(" ", no_wrap=True)
        self._spans = []
        for command in self._views:
            name = command.action.removeprefix("view('").removesuffix("')")
            chosen = name == self._now
            begin = line.cell_len
            line.append(
                f" {commands.keys_of(command)[0]} ",
                f"{palette.ACCENT} on {palette.RAISED}" if chosen else palette.ACCENT,
            )
            if chosen or names:
                line.append(command.name, f"bold {palette.TEXT} on {palette.RAISED}" if chosen else palette.DIM)
            if note := notes.get(name):
                line.append(f" {note}", f"{palette.DIM} on {palette.RAISED}" if chosen else palette.DIM)
            line.append(" ", f"on {palette.RAISED}" if chosen else "")
            self._spans.append((begin, line.cell_len, command.action))
            line.append(" ")
        return line

    async def on_click(self, event: events.Click) -> None:
        for begin, end, action in self._spans:
            if begin <= event.x < end:
                await self.screen.run_action(action)


class Hints(Static):
    """The bottom line: keys of what has the focus, as many as fit."""

    DEFAULT_CSS = "Hints { height: 1; dock: bottom; background: $surface; }"

    def __init__(self, scope: str, *, readonly: bool = False) -> None:
        super().__init__()
        self._scope = scope
        self._readonly = readonly
        self._hidden: frozenset[str] = frozenset()
        self._focus: tuple[str, tuple[str, ...], bool] = ("", (), False)

    def hide(self, *actions: str) -> None:
        """Hide the hints of these actions."""
        if frozenset(actions) != self._hidden:
            self._hidden = frozenset(actions)
            self.refresh()

    def follow(self, view: str, parts: Sequence[str], *, typing: bool = False) -> None:
        """Show the keys of a view, and of the widget that has the focus.

        ``typing``: keys go to an input.
        """
        if (view, tuple(parts), typing) != self._focus:
            self._focus = view, tuple(parts), typing
            self.refresh()

    def render(self) -> Text:
        view, parts, typing = self._focus
        line = Text(" ", no_wrap=True)
        if typing:
            for key, name in (("enter", "Apply"), ("esc", "Cancel")):
                line.append(key, f"bold {palette.ACCENT}").append(f" {name}  ", palette.DIM)
            return line
        focus = commands.of_focus(self._scope, view, parts, readonly=self._readonly)
        shown = [
            c for scope_commands in focus.values() for c in scope_commands if c.hint and c.action not in self._hidden
        ]
        always = [c for c in shown if commands.EVERYWHERE in c.scopes or c.action == "back"]
        own = [c for c in shown if c not in always]
        own.sort(key=lambda command: commands.generality(command, self._scope))  # the keys of the view first
        room = self.size.width - 1
        fixed = sum(_width(command) for command in always)
        for command in own:
            if line.cell_len + _width(command) + fixed <= room:
                _append(line, command)
        for command in always:
            if line.cell_len + _width(command) <= room:
                _append(line, command)
        return line


def _width(command: commands.Command) -> int:
    return cell_len(commands.key_name(commands.keys_of(command)[0])) + cell_len(command.name) + 3


def _append(line: Text, command: commands.Command) -> None:
    line.append(commands.key_name(commands.keys_of(command)[0]), f"bold {palette.ACCENT}")
    line.append(f" {command.name}  ", palette.DIM)


class Rule(Static):
    """A horizontal line with a title, above a pane."""

    DEFAULT_CSS = "Rule { height: 1; }"

    def __init__(self, title: str, glyphs: Glyphs = UNICODE, right: str = "", *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._title = title
        self._right = right
        self.glyphs = glyphs

    def show(self, title: str, right: str = "") -> None:
        if (title, right) != (self._title, self._right):
            self._title, self._right = title, right
            self.refresh()

    def render(self) -> Text:
        width = self.size.width
        line = Text(self.glyphs.rule, palette.FAINT, no_wrap=True)
        line.append_text(_cut(Text(f" {self._title} ", palette.DIM), width - 2, self.glyphs))
        right = f" {self._right} " if self._right else ""
        if line.cell_len + cell_len(right) + 1 > width:
            right = ""
        line.append(self.glyphs.rule * max(0, self.size.width - line.cell_len - len(right) - 1), palette.FAINT)
        line.append(right, palette.DIM)
        return line.append(self.glyphs.rule, palette.FAINT)
