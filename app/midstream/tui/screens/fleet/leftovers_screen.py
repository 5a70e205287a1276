"""List of leftovers of killed processes and of slices, removed after confirmation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from textual.app import ComposeResult
from textual.message import Message
from textual.widgets import Static

from midstream import format
from midstream.check.fleet_leftovers import AnyLeftover, FoundLeftover, Skipped, SliceLeftover, SliceProblem
from midstream.counts import agree, count
from midstream.tui import commands
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.screens.progress import Progressed
from midstream.tui.state.screen_state import ScreenState
from midstream.tui.style import palette
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.chrome import Hints
from midstream.tui.widgets.table import Column, Row, Table

COLUMNS = (
    Column("HOST", widest=20),
    Column("RUN", widest=28),
    Column("LEFTOVER", widest=60),
    Column("KIND", drop=1),
    Column("SIZE", right=True),
    Column("", widest=200, rest=True),
)
MAX_PROBLEMS = 2  # lines about what was not examined


class LeftoversScreen(MidstreamScreen):
    """Lists leftovers when it opens. Nothing is removed before the confirmation."""

    SCOPE = commands.LEFTOVERS
    BINDINGS = commands.bindings(commands.LEFTOVERS, commands.EVERYWHERE)

    class Found(Message):
        """A search has ended."""

        def __init__(self, leftovers: list[AnyLeftover], agreed: Sequence[AnyLeftover] | None) -> None:
            super().__init__()
            self.leftovers, self.agreed = leftovers, agreed

    def __init__(self) -> None:
        super().__init__()
        self._found: list[FoundLeftover | SliceLeftover] = []
        self._problems: list[str] = []
        self._doing = "listing leftovers ..."

    def body(self) -> ComposeResult:
        yield Table(COLUMNS, self.glyphs, id="leftovers")
        yield Static(id="selected-row")
        yield Static(id="verdict")

    def on_mount(self) -> None:
        self.query_one(Table).focus()
        self._search()

    def crumbs(self) -> tuple[str, ...]:
        return ("Runs", "Leftovers")

    @property
    def _removable(self) -> list[FoundLeftover | SliceLeftover]:
        return [leftover for leftover in self._found if not (leftover.kept or leftover.removed)]

    def show(self, screen_state: ScreenState) -> None:  # noqa: ARG002 (of the base class)
        rows = [_row(index, leftover) for index, leftover in enumerate(self._found)]
        empty = self._doing or "no leftovers: no killed save, copy, deletion or creation left anything"
        self.query_one(Table).show(rows, empty=(empty,))
        self.query_one("#selected-row", Static).update(self._selected())
        verdict = self._verdict()
        for problem in self._problems[:MAX_PROBLEMS]:
            verdict.append(f"\n  {self.glyphs.stale} {problem}", palette.WAIT)
        if (more := len(self._problems) - MAX_PROBLEMS) > 0:
            verdict.append(f"\n    and {more} more: midstream --clean prints all", palette.DIM)
        self.query_one("#verdict", Static).update(verdict)
        self.query_one(Hints).hide(*(() if self._removable else ("remove",)))

    def on_table_moved(self) -> None:
        self.query_one("#selected-row", Static).update(self._selected())

    def _selected(self) -> Text:
        """Return the selected leftover in full: the table cuts long names."""
        index = self.query_one(Table).selected
        if not isinstance(index, int) or index >= len(self._found):
            return Text()
        leftover = self._found[index]
        name, note = leftover.slice.path if isinstance(leftover, SliceLeftover) else leftover.path, _note(leftover)
        words = f"{name}: {note}" if note else name
        return Text(f"  {format.folded(words, max(20, self.size.width) - 1, 4)}", palette.DIM)

    def _verdict(self) -> Text:
        text = Text()
        if self._doing:
            return text.append(f"  {self._doing}", palette.ACCENT)
        if removable := self._removable:
            bytes_ = sum(leftover.bytes for leftover in removable if isinstance(leftover, FoundLeftover))
            size = f", {format.size(bytes_)}" if bytes_ else ""
            words = f"enter removes {count(len(removable), 'leftover')}{size}, after confirmation"
            return text.append(f"  {words}", palette.TEXT)
        return text.append("  nothing can be removed", palette.DIM)

    def _search(self, agreed: Sequence[AnyLeftover] | None = None) -> None:
        """List what there is; remove what was ``agreed`` to."""
        self._doing = "listing leftovers ..." if agreed is None else "removing ..."
        self.in_background(partial(self._read, agreed))
        self.refresh_state()

    def _read(self, agreed: Sequence[AnyLeftover] | None) -> None:
        def report(line: str) -> None:
            self.post_message(Progressed(line))

        leftovers: list[AnyLeftover] = []
        try:
            leftovers += self.midstream.actions.leftovers(report, agreed)
        finally:
            self.post_message(self.Found(leftovers, agreed))

    def on_leftovers_screen_found(self, event: Found) -> None:
        self._doing = ""
        self._found = [leftover for leftover in event.leftovers if isinstance(leftover, FoundLeftover | SliceLeftover)]
        self._problems = [problem.message for problem in event.leftovers if isinstance(problem, Skipped | SliceProblem)]
        if event.agreed is not None:
            removed = sum(leftover.removed for leftover in self._found)
            changed = len(event.agreed) - removed
            more = f"; {changed} of the list {agree(changed, 'has', 'have')} changed since" if changed else ""
            self.notify(f"{count(removed, 'leftover')} removed{more}")
        self.refresh_state()

    def on_progressed(self, event: Progressed) -> None:
        if self._doing:
            self._doing = event.line
            self.refresh_state()

    def action_again(self) -> None:
        if not self._doing:
            self._search()

    def action_copy(self) -> None:
        self.copy_command("--clean")

    def action_remove(self) -> None:
        """Confirm, then remove what may be removed."""
        if self._doing or self.refuse_readonly():
            return
        if not self._removable:
            self.notify("nothing can be removed")
            return

        listed = self._removable

        def answered(yes: bool | None) -> None:
            if yes:
                self._search(listed)

        self.app.push_screen(ConfirmScreen("Remove leftovers", _consequences(listed), word="remove"), answered)


def _row(index: int, leftover: FoundLeftover | SliceLeftover) -> Row:
    """Return the row of a leftover, by its place in the list."""
    colour = palette.GOOD if leftover.removed else palette.DIM
    if isinstance(leftover, SliceLeftover):
        note = (_note(leftover), colour if leftover.kept or leftover.removed else palette.WAIT)
        place = (format.NONE, format.NONE, leftover.slice.path, "slice", format.NONE)
        return Row(index, (*place, note), dim=bool(leftover.kept))
    place = (leftover.host, leftover.run, leftover.path, leftover.kind, format.size(leftover.bytes))
    return Row(index, (*place, (_note(leftover), colour)), dim=bool(leftover.kept))


def _note(leftover: FoundLeftover | SliceLeftover) -> str:
    """Return what became of a leftover, or why it is kept."""
    return f"{leftover.note}; {leftover.text}" if isinstance(leftover, SliceLeftover) else leftover.note


def _consequences(removable: Sequence[FoundLeftover | SliceLeftover]) -> list[str]:
    """Return the lines of the confirmation."""
    files = [leftover for leftover in removable if isinstance(leftover, FoundLeftover)]
    slices = [leftover.slice.path for leftover in removable if isinstance(leftover, SliceLeftover)]
    lines: list[str] = []
    if files:
        hosts = ", ".join(dict.fromkeys(file.host for file in files))
        lines += [
            f"{count(len(files), 'leftover')} on {hosts} {agree(len(files))} removed:",
            "parts of saves and copies that were killed, and deletions that did not finish.",
            "Complete checkpoints are not touched. Each is checked again; what has changed since the list stays.",
        ]
    if slices:
        preempted = f"{count(len(slices), 'slice')} that {agree(len(slices))} preempted or failed"
        lines += [f"{preempted} {agree(len(slices))} deleted: {', '.join(slices)}."]
    return lines
