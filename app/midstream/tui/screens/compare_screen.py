"""Estimates for accelerators and targets: fit, step, time, cost, migration."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from midstream import format
from midstream.errors import MidstreamError, UsageError
from midstream.install.reporter import Reporter, state_line
from midstream.operations.compare import calibration_notes
from midstream.tui import commands
from midstream.tui.base_app import BaseApp, app_of
from midstream.tui.screens.dialogs.enter_text import EnterTextScreen
from midstream.tui.screens.progress import Progressed, progress_lines
from midstream.tui.style import palette
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.chrome import Rule
from midstream.tui.widgets.table import Column, Row, Table
from midstream_core.accelerator_types import EXAMPLES

if TYPE_CHECKING:
    from midstream.compare.baseline import Baseline
    from midstream.compare.comparison import ComparisonRow
    from midstream.watch.snapshot import RunView

COLUMNS = (
    Column("CANDIDATE", widest=24),
    Column("DEVICES", right=True, drop=4),
    Column("FITS"),
    Column("AT A TIME", drop=3),
    Column("STEP", right=True),
    Column("TOKENS/S", right=True, drop=2),
    Column("TO THE END", right=True),
    Column("COST", right=True),
    Column("PAYS AFTER", right=True, drop=1),
    Column("", widest=200, rest=True),
)


class _ScreenReporter(Reporter):
    """Passes each state of a compilation on to the screen."""

    def __init__(self, screen: CompareScreen) -> None:
        self._screen = screen

    def __call__(self, line: str) -> None:
        self._screen.post_message(Progressed(line))

    def update(self, what: str, state: str, seconds_left: float | None = None) -> None:
        self(state_line(what, state, seconds_left))


class CompareScreen(ModalScreen[str | None]):
    """Screen that returns the target that the run shall migrate to; None on esc.

    Compiling ends when it closes.
    """

    BINDINGS = commands.bindings(commands.COMPARE)

    class Estimated(Message):
        """One candidate has its estimate."""

        def __init__(self, row: ComparisonRow) -> None:
            super().__init__()
            self.row = row

    class Measured(Message):
        """The run as it trains now."""

        def __init__(self, present: Baseline) -> None:
            super().__init__()
            self.present = present

    class Ended(Message):
        """All candidates are done, or the comparison failed."""

        def __init__(self, error: MidstreamError | None) -> None:
            super().__init__()
            self.error = error

    def __init__(self, run: RunView, names: str) -> None:
        """Compare for a run. ``names``: accelerators and targets, with commas."""
        super().__init__()
        self._run, self._names = run, names
        self._cancelled = threading.Event()
        self._rows: list[ComparisonRow] = []
        self._present: Baseline | None = None
        self._error: MidstreamError | None = None
        self._progress = "reading the run's configuration"

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            migrate = "" if self.midstream.readonly else "m migrate to a target, "
            yield Rule(f"compare for {self._run.run_id}", self.midstream.glyphs, f"{migrate}y copy, esc close")
            yield Table(COLUMNS, self.midstream.glyphs, id="candidates")
            yield Static(id="compare-words")

    @property
    def midstream(self) -> BaseApp:
        return app_of(self)

    def on_mount(self) -> None:
        self.query_one(Table).focus()
        self._paint()
        self.midstream.background.run(self._compare, self._failed)

    def on_unmount(self) -> None:
        self._cancelled.set()

    def _compare(self) -> None:
        from midstream.compare.baseline import Baseline

        try:
            estimates = self.midstream.actions.estimates(self._run, self._names, _ScreenReporter(self), self._cancelled)
            for row in estimates:
                self.post_message(self.Measured(row) if isinstance(row, Baseline) else self.Estimated(row))
            self.post_message(self.Ended(None))
        except MidstreamError as error:
            self.post_message(self.Ended(error))

    def _failed(self, error: Exception) -> None:
        self.post_message(self.Ended(MidstreamError(f"{type(error).__name__}: {error}")))

    def on_progressed(self, event: Progressed) -> None:
        self._progress = event.line
        self._paint()

    def on_compare_screen_estimated(self, event: Estimated) -> None:
        from midstream.compare.comparison import ordered

        self._rows = ordered([*self._rows, event.row])
        self._paint()

    def on_compare_screen_measured(self, event: Measured) -> None:
        self._present = event.present
        self._paint()

    def on_compare_screen_ended(self, event: Ended) -> None:
        self._progress, self._error = "", event.error
        self._paint()

    def _paint(self) -> None:
        glyphs = self.midstream.glyphs
        lines = progress_lines(self._progress, self._error, glyphs)
        lines += [Text(f" {text}", palette.DIM) for text in calibration_notes(self._rows)]
        empty = ("no estimate.",) if self._error is not None else ("compiling ...",)
        present = [] if self._present is None else [baseline_row(self._present, glyphs)]
        self.query_one(Table).show([*present, *(table_row(row, glyphs) for row in self._rows)], empty=empty)
        self.query_one("#compare-words", Static).update(Text("\n").join(lines))

    def action_migrate(self) -> None:
        """Choose the selected row's target for the migration."""
        chosen = next((row for row in self._rows if row.candidate.name == self.query_one(Table).selected), None)
        if chosen is None:
            if self._present is not None and self.query_one(Table).selected == self._present.name:
                self.notify(f"the run is on {self._present.target}", severity="warning", markup=False)
            return
        if not chosen.candidate.target:
            name = chosen.candidate.name
            self.notify(f"{name} is no target: add one with these accelerators to the fleet file", severity="warning")
        elif chosen.estimate is not None and not chosen.fits:
            self.notify(f"the run does not fit {chosen.candidate.name}", severity="error")
        elif self.midstream.readonly:
            self.notify("--readonly: nothing is changed", severity="warning")
        else:
            self.dismiss(chosen.candidate.target)

    def action_copy(self) -> None:
        """Copy the equivalent command line."""
        line = self.midstream.actions.command("--compare", self._run.run_id, "--with", self._names)
        self.app.copy_to_clipboard(line)
        self.notify(f"copied: {line}", markup=False)

    def action_leave(self) -> None:
        self.dismiss(None)


def ask_candidates(screen: Screen[Any], run: RunView, targets: Sequence[str], chosen: Callable[[str], object]) -> None:
    """Prompt for names of accelerators and targets, and compare them.

    Call ``chosen`` with a target of the table.
    """

    def check(names: str) -> None:
        if not names.strip(" ,"):
            raise UsageError("no names", EXAMPLES)

    def compared(target: str | None) -> None:
        if target is not None:
            chosen(target)

    def entered(names: str | None) -> None:
        if names is not None:
            screen.app.push_screen(CompareScreen(run, names), compared)

    lines = ("Targets of the fleet file, and accelerators that need not be rented:", EXAMPLES)
    title = f"Compare for {run.run_id}"
    screen.app.push_screen(EnterTextScreen(title, lines, ",".join(targets), check), entered)


def baseline_row(present: Baseline, glyphs: Glyphs) -> Row:
    """Return the table's row of the run as it trains now."""
    from midstream.compare.comparison import step_text

    none, rate = format.NONE, present.tokens_per_second
    cells = (
        present.name,
        str(present.devices),
        (f"{glyphs.passed} yes", palette.GOOD),
        none,
        step_text(present.step.value),
        format.grouped(round(rate)) if rate else none,
        format.seconds(present.remaining.value) if present.remaining else none,
        f"{present.price_to_end.value:,.2f}" if present.price_to_end else none,
        none,
        ("where the run is", palette.DIM),
    )
    return Row(present.name, cells)


def table_row(row: ComparisonRow, glyphs: Glyphs) -> Row:
    """Return the table's row of a candidate."""
    from midstream.compare.comparison import step_text

    name, estimate, none = row.candidate.name, row.estimate, format.NONE
    if estimate is None:
        cells = (name, str(row.candidate.accelerators.devices), "?", *[none] * 6, (row.error, palette.BAD))
        return Row(name, cells)
    fits = (f"{glyphs.passed} yes", palette.GOOD) if estimate.fits else (f"{glyphs.failed} no", palette.BAD)
    at_a_time = f"{estimate.per_device_parallelism}{glyphs.times}{estimate.accumulation}" if estimate.fits else none
    remaining, paid, rate = row.remaining, row.price_to_end, row.tokens_per_second
    pays = none
    if row.migration is not None and row.migration.cost is not None:
        hours = row.migration.cost.pays_after_hours
        pays = "never" if hours is None else format.seconds(hours * 3600)
    note = "" if estimate.fits_as_configured or not estimate.fits else f"{estimate.configured} at a time do not fit"
    cells = (
        name,
        str(estimate.devices),
        fits,
        at_a_time,
        step_text(row.step.value) if row.step else none,
        format.grouped(round(rate)) if rate else none,
        format.seconds(remaining.value) if remaining else none,
        f"{paid.value:,.2f}" if paid else none,
        pays,
        (note, palette.WAIT),
    )
    return Row(name, cells)
