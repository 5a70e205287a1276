"""Costs screen: hours and money of hosts, runs and migrations in a period."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.message import Message
from textual.widgets import Static

from midstream.costs.cost_report import money_text
from midstream.errors import MidstreamError
from midstream.tui import commands
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.fleet.cost_rows import COLUMNS, HOSTS, MIGRATIONS, RUNS, rows_of
from midstream.tui.screens.progress import progress_lines
from midstream.tui.state.screen_state import ScreenState
from midstream.tui.state.selection import Selection
from midstream.tui.style import palette
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.chrome import Views
from midstream.tui.widgets.table import Table

if TYPE_CHECKING:
    from midstream.costs.cost_report import CostReport

DAY = 86400.0
PERIODS = (1, 7, 30, 90, 365)  # days
MAX_NOTES = 6  # lines about what is not known
EMPTY = {
    HOSTS: ("no host answered.", "Press r to read the hosts again."),
    RUNS: ("no run had a process in this period.", "Press p for another period."),
    MIGRATIONS: ("no migration began in this period.", "Press p for another period."),
}
FAILED = ("the costs could not be collected.", "Press r to read the hosts again.")


class CostsScreen(MidstreamScreen):
    """Screen of the costs, which are read when it opens, and again by key.

    Costs are read only then, because every host reads all records of its runs.
    """

    SCOPE = commands.COSTS
    BINDINGS = commands.bindings(commands.COSTS, commands.EVERYWHERE)

    class Collected(Message):
        """The costs of a period were collected, or that failed."""

        def __init__(self, days: int, report: CostReport | None, error: MidstreamError | None) -> None:
            super().__init__()
            self.days, self.report, self.error = days, report, error

    def __init__(self) -> None:
        super().__init__()
        self._view = HOSTS
        self._days = 30
        self._collecting = False
        self._report: CostReport | None = None
        self._error: MidstreamError | None = None

    def body(self) -> ComposeResult:
        yield Views(self.SCOPE)
        for name, columns in COLUMNS.items():
            yield Table(columns, self.glyphs, id=name)
        yield Static(id="cost-notes")

    def on_mount(self) -> None:
        self.action_view(HOSTS)
        self.action_again()

    def crumbs(self) -> tuple[str, ...]:
        return ("Costs", f"last {self._days} d")

    # ------------------------------------------------------------------------------------------ showing

    def show(self, screen_state: ScreenState) -> None:
        del screen_state
        report = self._report
        self.query_one(Views).show(self._view, {} if report is None else _counts(report))
        waiting = ("reading the hosts ...",) if self._collecting else FAILED
        rows = [] if report is None else rows_of(self._view, report)
        self.query_one(f"#{self._view}", Table).show(rows, empty=waiting if report is None else EMPTY[self._view])
        self.query_one("#cost-notes", Static).update(Text("\n").join(self._notes()))

    def _notes(self) -> list[Text]:
        glyphs, report = self.glyphs, self._report
        lines = progress_lines("", self._error, glyphs)
        if report is not None:
            lines += _totals(report)
            shown = report.not_known[:MAX_NOTES]
            lines += [Text(f" {glyphs.stale} {line}", palette.WAIT) for line in shown]
            if len(report.not_known) > len(shown):
                more = len(report.not_known) - len(shown)
                lines.append(Text(f"   and {more} more: midstream --cost prints all", palette.DIM))
        if self._collecting and report is not None:
            lines.append(Text(f" {glyphs.busy} reading the hosts ...", palette.ACCENT))
        return lines

    # ------------------------------------------------------------------------------------------ commands

    def action_view(self, view: str) -> None:
        self._view = view
        for name in COLUMNS:
            self.query_one(f"#{name}").display = name == view
        self.query_one(f"#{view}").focus()
        self.refresh_state()

    def action_period(self) -> None:
        self._days = PERIODS[(PERIODS.index(self._days) + 1) % len(PERIODS)]
        self._report = None
        self._collect()

    def selection(self) -> Selection | None:
        report, key = self._report, self.query_one(f"#{self._view}", Table).selected
        if report is None or key is None:
            return None
        kind, rows = {
            HOSTS: ("host", {host.host: host.event().fields() for host in report.hosts}),
            RUNS: ("run", {run.run_id: run.event().fields() for run in report.runs}),
            MIGRATIONS: (
                "migration",
                {migration.migration: migration.event().fields() for migration in report.migrations},
            ),
        }[self._view]
        return Selection(str(key), f"cost of {kind}", rows[str(key)])

    def action_copy(self) -> None:
        self.copy_command("--cost", "--since", f"{self._days}d")

    def action_again(self) -> None:
        if not self._collecting:
            self._collect()

    def _collect(self) -> None:
        """Collect the costs of the period in the background.

        An answer about another period is dropped.
        """
        self._collecting, days, actions = True, self._days, self.midstream.actions

        def work() -> None:
            try:
                self.post_message(self.Collected(days, actions.costs(days * DAY), None))
            except MidstreamError as error:
                self.post_message(self.Collected(days, None, error))

        def broken(error: Exception) -> None:
            self.post_message(self.Collected(days, None, MidstreamError(f"{type(error).__name__}: {error}")))

        self.midstream.background.run(work, broken)
        self.refresh_state()

    def on_costs_screen_collected(self, event: Collected) -> None:
        if event.days != self._days:
            return
        self._collecting = False
        self._error = event.error
        self._report = event.report or self._report  # an error keeps the last report
        self.refresh_state()


def _totals(report: CostReport) -> list[Text]:
    """Return the lines about money.

    An unknown total is left out: the second line says why.
    """
    lines: list[Text] = []
    if report.cost is not None:
        total = f" {money_text(report.cost)} in all, {money_text(report.idle_cost)} of it for idle hours"
        lines.append(Text(total, palette.TEXT).append("  at the fleet file's prices now", palette.DIM))
    if report.without_price:
        hosts = ", ".join(report.without_price)
        where = "no cost" if report.cost is None else "not in the total"
        lines.append(Text(f" no price_per_hour in the fleet file, so {where}: {hosts}", palette.DIM))
    return lines


def _counts(report: CostReport) -> dict[str, str]:
    return {
        HOSTS: str(len(report.hosts)),
        RUNS: str(len(report.runs)),
        MIGRATIONS: str(len(report.migrations)),
    }
