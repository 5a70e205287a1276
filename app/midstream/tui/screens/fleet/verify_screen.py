"""Verification of many checkpoints or migrations, one row each."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from textual.app import ComposeResult
from textual.message import Message
from textual.widgets import Static

from midstream.errors import MidstreamError
from midstream.tui import commands
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.screens.fleet.verifications import CONCURRENCY, DAMAGED, UNKNOWN, VERIFIED, Verification, question
from midstream.tui.state.screen_state import ScreenState
from midstream.tui.style import number_format, palette
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.table import Column, Row, Rows, Table

SHOW_INTERVAL = 0.25  # seconds between two looks at the results
COLUMNS = (Column("WHAT", widest=60), Column("STATE"), Column("", widest=200, rest=True))


class VerifyScreen(MidstreamScreen):
    """Screen that runs verifications, a few at a time, after confirmation.

    Closing the screen ends those that have not begun.
    """

    SCOPE = commands.VERIFY
    BINDINGS = commands.bindings(commands.VERIFY, commands.EVERYWHERE)

    class Listed(Message):
        """The verifications are listed."""

        def __init__(self, verifications: Sequence[Verification], title: str, lines: Sequence[str]) -> None:
            super().__init__()
            self.verifications = verifications
            self.title = title  # of the question
            self.lines = lines

    def __init__(self, title: str, noun: str, list_all: Callable[[], Sequence[Verification]]) -> None:
        """Create the screen.

        Args:
            title: Where the screen was opened.
            noun: What one verification is about.
            list_all: Returns the verifications. It is called in the background.
        """
        super().__init__()
        self._heading = title
        self._noun = noun
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
        found = self._list_all()
        self.post_message(self.Listed(found, *question(found, self._noun)))

    def on_verify_screen_listed(self, event: Listed) -> None:
        """Show what is to be read, and begin if the user agrees."""
        self._verifications = event.verifications
        self.refresh_state()

        def answered(yes: bool | None) -> None:
            if yes:
                self._begin(event.verifications)
            elif self.is_current:
                self.action_back()

        if event.verifications:
            self.app.push_screen(ConfirmScreen(event.title, event.lines), answered)

    def _begin(self, verifications: Sequence[Verification]) -> None:
        places = iter(range(len(verifications)))
        for _ in range(min(CONCURRENCY, len(verifications))):
            self.in_background(partial(self._verify, verifications, places))

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
                state, detail = verifications[index].verify()
            except MidstreamError as error:
                state, detail = UNKNOWN, str(error)
            with self._lock:
                self._results[index] = (state, detail)
                self._counts[state] += 1
                self._changes += 1

    def action_back(self) -> None:
        self._cancelled = True
        super().action_back()
