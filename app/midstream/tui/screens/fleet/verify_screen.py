"""Verification of many checkpoints or migrations, one row each."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial

from textual.app import ComposeResult
from textual.widgets import Static

from midstream import format
from midstream.errors import MidstreamError
from midstream.tui import commands
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.screens.fleet.verifications import CONCURRENCY, DAMAGED, UNKNOWN, VERIFIED, Verifications, question
from midstream.tui.state.screen_state import ScreenState
from midstream.tui.style import palette
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.table import Column, Row, Rows, Table

SHOW_INTERVAL = 0.25  # seconds between two looks at the results
COLUMNS = (Column("WHAT", widest=60), Column("STATE"), Column("", widest=200, rest=True))
WAITS, RUNS = ("waits", ""), ("", "")  # (state, detail); one for all rows


def ask(screen: MidstreamScreen, title: str, verifications: Verifications) -> None:
    """Say what is read, and verify it if the user agrees."""
    if not len(verifications):
        screen.notify(f"no {verifications.noun} to verify", severity="warning")
        return

    def answered(yes: bool | None) -> None:
        if yes:
            screen.app.push_screen(VerifyScreen(title, verifications))

    screen.app.push_screen(ConfirmScreen(*question(verifications)), answered)


class VerifyScreen(MidstreamScreen):
    """Screen that runs verifications, a few at a time.

    Closing the screen ends those that have not begun.
    """

    SCOPE = commands.VERIFY
    BINDINGS = commands.bindings(commands.VERIFY, commands.EVERYWHERE)

    def __init__(self, title: str, verifications: Verifications) -> None:
        """Create the screen.

        Args:
            title: Where the screen was opened.
            verifications: What it runs.
        """
        super().__init__()
        self._heading = title
        self._verifications = verifications
        self._results = [WAITS] * len(verifications)
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
        places = iter(range(len(self._verifications)))
        for _ in range(min(CONCURRENCY, len(self._verifications))):
            self.in_background(partial(self._verify, places))

    def on_unmount(self) -> None:
        self._cancelled = True

    def crumbs(self) -> tuple[str, ...]:
        return (self._heading, "Verify")

    # ------------------------------------------------------------------------------------------ showing

    def show(self, screen_state: ScreenState) -> None:  # noqa: ARG002 (of the base class)
        self._shown = self._changes
        count = len(self._verifications)
        self.query_one(Table).show(Rows(range(count), self._row))
        self.query_one("#selected-row", Static).update(self._selected())
        with self._lock:
            counts = self._counts.copy()
        ended = counts.total()
        text = f"{ended} of {count} done, {counts[DAMAGED]} damaged, {counts[UNKNOWN]} not checked"
        colour = palette.BAD if counts[DAMAGED] else palette.GOOD if count and ended == count else palette.ACCENT
        self.query_one("#verdict", Static).update(Text(f"  {text}", colour))

    def _row(self, index: int) -> Row:
        glyphs = self.glyphs
        signs = {
            "": (f"{glyphs.busy} hashing", palette.WAIT),
            VERIFIED: (f"{glyphs.passed} verified", palette.GOOD),
            DAMAGED: (f"{glyphs.failed} damaged", palette.BAD),
            UNKNOWN: (f"{glyphs.stale} not checked", palette.WAIT),
        }
        state, detail = self._results[index]
        return Row(index, (self._verifications[index].name, signs.get(state, ("", palette.DIM)), detail))

    def _show_changes(self) -> None:
        if self._shown != self._changes:
            self.refresh_state()

    def on_table_moved(self) -> None:
        self.query_one("#selected-row", Static).update(self._selected())

    def _selected(self) -> Text:
        """Return the selected result in full: the table cuts long ones."""
        index = self.query_one(Table).selected
        state, detail = self._results[index] if isinstance(index, int) else WAITS
        colour = palette.BAD if state == DAMAGED else palette.DIM
        return Text(f"  {format.folded(detail, max(20, self.size.width) - 1, 4)}" if detail else "", colour)

    # ------------------------------------------------------------------------------------------ verifying

    def _verify(self, places: Iterator[int]) -> None:
        """Run verifications until none is left. ``places`` is shared by all threads."""
        while not self._cancelled:
            with self._lock:
                index = next(places, None)
                if index is None:
                    return
                self._results[index] = RUNS
                self._changes += 1
            try:
                verdict = self._verifications[index].run()
            except MidstreamError as error:
                verdict = UNKNOWN, str(error)
            with self._lock:
                self._results[index] = verdict
                self._counts[verdict[0]] += 1
                self._changes += 1

    def action_back(self) -> None:
        self._cancelled = True
        super().action_back()
