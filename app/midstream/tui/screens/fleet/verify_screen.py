"""Verification of many checkpoints or migrations, one row each."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

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
from midstream.tui.widgets.table import Column, Row, Rows, Table
from midstream.watch.snapshot import RunView

CONCURRENCY = 4  # verifications at a time: each reads a checkpoint
SHOW_INTERVAL = 0.25  # seconds between two looks at the results
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

    class Listed(Message):
        """The verifications are listed."""

        def __init__(self, verifications: Sequence[Verification]) -> None:
            super().__init__()
            self.verifications = verifications

    def __init__(self, title: str, list_all: Callable[[], Sequence[Verification]]) -> None:
        """Create the screen.

        Args:
            title: What is verified.
            list_all: Returns the verifications. It is called in the background.
        """
        super().__init__()
        self._heading = title
        self._list_all = list_all
        self._verifications: Sequence[Verification] | None = None
        self._results: dict[int, tuple[str, str]] = {}  # index -> (state, detail); the state is empty while it runs
        self._counts = Counter[str]()  # of states
        self._lock = threading.Lock()  # of the results and counts
        self._shown = -1  # changes of results that the screen shows
        self._changes = 0
        self._cancelled = False

    def body(self) -> ComposeResult:
        yield Table(COLUMNS, self.glyphs, id="verifications")
        yield Static(id="selected-row")
        yield Static(id="verdict")

    def on_mount(self) -> None:
        self.query_one(Table).focus()
        self.set_interval(SHOW_INTERVAL, self._show_changes)
        self.in_background(self._list)

    def on_unmount(self) -> None:
        self._cancelled = True

    def crumbs(self) -> tuple[str, ...]:
        return (self._heading, "Verify")

    # ------------------------------------------------------------------------------------------ showing

    def show(self, screen_state: ScreenState) -> None:  # noqa: ARG002 (of the base class)
        self._shown = self._changes
        count = len(self._verifications or ())
        rows = Rows(range(count), self._row)  # made when they become visible: there may be 100,000
        nothing = "nothing to verify: no complete checkpoint, no certificate"
        self.query_one(Table).show(rows, empty=("listing ..." if self._verifications is None else nothing,))
        self.query_one("#selected-row", Static).update(self._selected())
        with self._lock:
            counts = self._counts.copy()
        ended = counts.total()
        text = f"{ended} of {count} done, {counts[DAMAGED]} damaged, {counts[UNKNOWN]} not checked"
        colour = palette.BAD if counts[DAMAGED] else palette.GOOD if count and ended == count else palette.ACCENT
        self.query_one("#verdict", Static).update(Text(f"  {text}", colour))

    def _row(self, index: int) -> Row:
        assert self._verifications is not None
        glyphs = self.glyphs
        signs = {
            "": (f"{glyphs.busy} hashing", palette.WAIT),
            VERIFIED: (f"{glyphs.passed} verified", palette.GOOD),
            DAMAGED: (f"{glyphs.failed} damaged", palette.BAD),
            UNKNOWN: (f"{glyphs.stale} not checked", palette.WAIT),
        }
        state, detail = self._results.get(index, ("waits", ""))
        return Row(index, (self._verifications[index].name, signs.get(state, ("", palette.DIM)), detail))

    def _show_changes(self) -> None:
        if self._shown != self._changes:
            self.refresh_state()

    def on_table_moved(self) -> None:
        self.query_one("#selected-row", Static).update(self._selected())

    def _selected(self) -> Text:
        """Return the selected result in full: the table cuts long ones."""
        index = self.query_one(Table).selected
        state, detail = self._results.get(index, ("", "")) if isinstance(index, int) else ("", "")
        colour = palette.BAD if state == DAMAGED else palette.DIM
        return Text(f"  {number_format.folded(detail, max(20, self.size.width) - 1, 4)}" if detail else "", colour)

    # ------------------------------------------------------------------------------------------ verifying

    def _list(self) -> None:
        self.post_message(self.Listed(self._list_all()))

    def on_verify_screen_listed(self, event: Listed) -> None:
        self._verifications = event.verifications
        self.refresh_state()
        places = iter(range(len(event.verifications)))
        for _ in range(min(CONCURRENCY, len(event.verifications))):
            self.in_background(partial(self._verify, event.verifications, places))

    def _verify(self, verifications: Sequence[Verification], places: Iterator[int]) -> None:
        """Run verifications until none is left. ``places`` is shared by all threads."""
        while not self._cancelled:
            with self._lock:
                index = next(places, None)
                if index is None:
                    return
                self._results[index] = ("", "")
                self._changes += 1
            try:
                state, detail = verifications[index].run()
            except MidstreamError as error:
                state, detail = UNKNOWN, str(error)
            with self._lock:
                self._results[index] = (state, detail)
                self._counts[state] += 1
                self._changes += 1

    def action_back(self) -> None:
        self._cancelled = True
        super().action_back()
