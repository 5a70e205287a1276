"""Verification of many checkpoints or migrations, one row each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.message import Message
from textual.widgets import Static

from midstream.check.check_result import FAIL, WARN
from midstream.errors import MidstreamError
from midstream.migrate.journal.migration_view import MigrationView
from midstream.tui import commands
from midstream.tui.actions import Actions
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.state.screen_state import ScreenState
from midstream.tui.style import number_format, palette
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.table import Column, Row, Table
from midstream.watch.snapshot import RunView

CONCURRENCY = 4  # verifications at a time: each reads a checkpoint
COLUMNS = (Column("WHAT", widest=60), Column("STATE"), Column("", widest=200, rest=True))
VERIFIED, DAMAGED, UNKNOWN = "verified", "damaged", "not checked"


@dataclass(frozen=True)
class Verification:
    """One verification: its name, and a function that returns (state, detail)."""

    name: str
    run: Callable[[], tuple[str, str]]


def of_checkpoints(actions: Actions, runs: Sequence[RunView]) -> list[Verification]:
    """Return a verification of each complete checkpoint of these runs.

    Every object is hashed in place.
    """

    def one(run: RunView, name: str) -> Verification:
        def verify() -> tuple[str, str]:
            problems = actions.verify(run, name)
            return (DAMAGED, "; ".join(problems)) if problems else (VERIFIED, "every object matches the manifest")

        return Verification(f"{run.run_id}: {name} on {run.host}", verify)

    return [one(run, each.name) for run in runs for each in run.checkpoints if each.complete]


def of_migrations(actions: Actions, migrations: Sequence[MigrationView]) -> list[Verification]:
    """Return a verification of each certificate: all its claims are checked again."""

    def one(view: MigrationView) -> Verification:
        def recheck() -> tuple[str, str]:
            checks = actions.recheck(view)
            failed = next((check for check in checks if check.state == FAIL), None)
            if failed is not None:
                return DAMAGED, f"{failed.name}: {failed.detail}"
            unchecked = [check.name for check in checks if check.state == WARN]
            checked = f"{len(checks) - len(unchecked)} of {len(checks)} claims"
            return VERIFIED, checked + (f"; not checked: {', '.join(unchecked)}" if unchecked else "")

        return Verification(view.migration, recheck)

    return [one(view) for view in migrations if view.certificate is not None]


class VerifyScreen(MidstreamScreen):
    """Screen that runs verifications, a few at a time.

    Closing the screen ends those that have not begun.
    """

    SCOPE = commands.VERIFY
    BINDINGS = commands.bindings(commands.VERIFY, commands.EVERYWHERE)

    class Done(Message):
        """A verification has begun (``state`` is empty) or ended."""

        def __init__(self, index: int, state: str, detail: str) -> None:
            super().__init__()
            self.index, self.state, self.detail = index, state, detail

    def __init__(self, title: str, verifications: Sequence[Verification]) -> None:
        super().__init__()
        self._heading = title
        self._verifications = tuple(verifications)
        self._results: dict[int, tuple[str, str]] = {}
        self._cancelled = False

    def body(self) -> ComposeResult:
        yield Table(COLUMNS, self.glyphs, id="verifications")
        yield Static(id="selected-row")
        yield Static(id="verdict")

    def on_mount(self) -> None:
        self.query_one(Table).focus()
        self.in_background(self._run_all)

    def crumbs(self) -> tuple[str, ...]:
        return (self._heading, "Verify")

    def show(self, screen_state: ScreenState) -> None:  # noqa: ARG002 (of the base class)
        glyphs = self.glyphs
        signs = {
            "": (f"{glyphs.busy} hashing", palette.WAIT),
            VERIFIED: (f"{glyphs.passed} verified", palette.GOOD),
            DAMAGED: (f"{glyphs.failed} damaged", palette.BAD),
            UNKNOWN: (f"{glyphs.stale} not checked", palette.WAIT),
        }
        rows = []
        for index, each in enumerate(self._verifications):
            state, detail = self._results.get(index, ("waits", ""))
            rows.append(Row(index, (each.name, signs.get(state, ("", palette.DIM)), detail)))
        self.query_one(Table).show(rows, empty=("nothing to verify: no complete checkpoint, no certificate",))
        self.query_one("#selected-row", Static).update(self._selected())
        states = [state for state, _ in self._results.values()]
        ended = sum(bool(state) for state in states)
        counts = f"{ended} of {len(rows)} done, {states.count(DAMAGED)} damaged, {states.count(UNKNOWN)} not checked"
        colour = palette.BAD if DAMAGED in states else palette.GOOD if rows and ended == len(rows) else palette.ACCENT
        self.query_one("#verdict", Static).update(Text(f"  {counts}", colour))

    def on_table_moved(self) -> None:
        self.query_one("#selected-row", Static).update(self._selected())

    def _selected(self) -> Text:
        """Return the selected result in full: the table cuts long ones."""
        index = self.query_one(Table).selected
        state, detail = self._results.get(index, ("", "")) if isinstance(index, int) else ("", "")
        colour = palette.BAD if state == DAMAGED else palette.DIM
        return Text(f"  {number_format.folded(detail, max(20, self.size.width) - 1, 4)}" if detail else "", colour)

    def _run_all(self) -> None:
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            list(pool.map(self._run_one, range(len(self._verifications))))

    def _run_one(self, index: int) -> None:
        if self._cancelled:
            return
        self.post_message(self.Done(index, "", ""))
        try:
            state, detail = self._verifications[index].run()
        except MidstreamError as error:
            state, detail = UNKNOWN, str(error)
        self.post_message(self.Done(index, state, detail))

    def on_verify_screen_done(self, event: Done) -> None:
        self._results[event.index] = event.state, event.detail
        self.refresh_state()

    def action_back(self) -> None:
        self._cancelled = True
        super().action_back()
