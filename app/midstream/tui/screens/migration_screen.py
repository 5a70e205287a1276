"""Migration screen: a running or finished migration, read from its journal.

Closing it does not stop the migration.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from midstream import format
from midstream.errors import MidstreamError
from midstream.migrate.journal import migration_state
from midstream.migrate.journal.migration_view import CERTIFIED, NOT_CERTIFIED, VOID, MigrationView
from midstream.migrate.journal.stage_times import report, report_lines
from midstream.tui import commands
from midstream.tui.base_app import SHORT_SCREEN
from midstream.tui.screens import export_curves
from midstream.tui.screens import migration_text as words
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.dialogs.choose import ChooseScreen
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.state.screen_state import ScreenState
from midstream.tui.state.selection import Selection
from midstream.tui.state.series import Series
from midstream.tui.style import palette
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets import steps
from midstream.tui.widgets.bars import downtime
from midstream.tui.widgets.chrome import Hints, Rule, Views
from midstream.tui.widgets.curve import CurveView
from midstream.tui.widgets.log_pane import LogPane
from midstream.tui.widgets.pane import Pane
from midstream.tui.widgets.plot import Drawn
from midstream.tui.widgets.table import Column, Row
from midstream.watch.snapshot import LIVE

PROGRESS, CERTIFICATE, DOWNTIME, LOG = "progress", "certificate", "downtime", "log"
SEAL_WINDOW = 24  # minimum of steps shown on either side of the seal


class MigrationScreen(MidstreamScreen):
    """One migration, by its id."""

    SCOPE = commands.MIGRATION
    BINDINGS = commands.bindings(commands.MIGRATION, commands.EVERYWHERE)

    def __init__(self, migration: str) -> None:
        super().__init__()
        self.migration = migration
        self._view = PROGRESS
        self._certificate_shown = False  # has switched to the certificate, once, when it was written

    def body(self) -> ComposeResult:
        glyphs = self.glyphs
        yield Static(id="steps")
        yield Static(id="headline")
        yield Views(self.SCOPE)
        with Vertical(id=PROGRESS):
            yield Static(id="progress-words")
            yield Static(id="migration-risk")
            yield Rule("command log", glyphs, id="command-log-rule")
            yield LogPane(empty="no commands yet", id="command-log")
        with Vertical(id=CERTIFICATE):
            with Pane(id="claims-pane"):
                yield Static(id="claims")
            yield CurveView(glyphs, empty="no losses around the migration", id="seam")
        with Pane(id=DOWNTIME):
            yield Static(id="downtime-text")
        yield LogPane(empty="no lines yet", id=LOG)

    def on_mount(self) -> None:
        view = self.migration_view
        self._certificate_shown = view is not None and view.certificate is not None
        self.action_view(CERTIFICATE if self._certificate_shown else PROGRESS)

    def crumbs(self) -> tuple[str, ...]:
        view = self.migration_view
        return ("Migrations", f"{view.plan.run_id} to {view.plan.target}" if view else self.migration)

    @property
    def migration_view(self) -> MigrationView | None:
        return self.screen_state.migration(self.migration)

    def on_curve_view_exported(self) -> None:
        curve, view = self.query_one("#seam", CurveView), self.migration_view
        if view is not None:
            lines = export_curves.drawn_lines(curve.drawn, view.plan.run_id)
            export_curves.ask(self, curve, view.migration, lambda *_: lines)

    # ------------------------------------------------------------------------------------------ showing

    def show(self, screen_state: ScreenState) -> None:
        view = self.migration_view
        if view is None:
            self.query_one("#headline", Static).update(Text(f"  reading {self.migration} ...", palette.DIM))
            return
        if view.certificate is not None and not self._certificate_shown:
            self._certificate_shown = True
            if self._view == PROGRESS:
                self.action_view(CERTIFICATE)
                return
        glyphs, width = self.glyphs, max(40, self.size.width)
        self.update_text("#steps", steps.line(glyphs, steps.of_migration(view), width))
        target = screen_state.run(view.plan.target_host, view.plan.run_id)
        self.update_text("#headline", words.headline(view, glyphs, screen_state.now, target))
        marks = {CERTIFIED: glyphs.passed, NOT_CERTIFIED: glyphs.failed, VOID: glyphs.undone}
        notes = {CERTIFICATE: marks[view.verdict]} if view.verdict else {}
        self.query_one(Views).show(self._view, notes)
        if self._view == PROGRESS:
            self.update_text("#progress-words", words.progress(view, screen_state, glyphs, width))
            self.query_one("#migration-risk", Static).update(words.risk(view))
            self.query_one("#command-log", LogPane).show(words.command_log(view))
        elif self._view == CERTIFICATE:
            self.query_one("#claims", Static).update(words.claims(view, glyphs, width))
            self._show_seam(view, screen_state)
        elif self._view == DOWNTIME:
            self.query_one("#downtime-text", Static).update(self._downtime(view, width))
        else:
            self.query_one(f"#{LOG}", LogPane).show(words.journal(view))
        hidden = [] if not view.finished and view.state != migration_state.ROLLED_BACK else ["rollback"]
        if view.state not in (migration_state.INTERRUPTED, migration_state.ROLLBACK_INCOMPLETE):
            hidden.append("continue")
        self.query_one(Hints).hide(*hidden)

    def _downtime(self, view: MigrationView, width: int) -> Text:
        predicted, first = view.predicted_seconds, view.plan.estimate.predicted_seconds
        text = Text(f"  predicted {format.seconds(sum(predicted.values()))}", palette.DIM)
        if predicted != first:
            text.append(f" from measurements (planned {format.seconds(sum(first.values()))})", palette.DIM)
        measured = view.downtime.total if view.downtime else None
        text.append(
            f"   measured {format.seconds(measured)}\n\n"
            if measured is not None
            else "   measured after the first step on the target\n\n",
            palette.TEXT,
        )
        text.append_text(downtime(self.glyphs, view.downtime, predicted, width))
        lines = report_lines(report(view.plan, view.stage_times))
        return text.append("\n\n" + "\n".join(f"  {line}" for line in lines), palette.DIM) if lines else text

    def _show_seam(self, view: MigrationView, screen_state: ScreenState) -> None:
        """Draw the losses of source and target around the sealed step."""
        seam = self.query_one("#seam", CurveView)
        step = view.sealed_step
        if step is None:
            seam.compare((), window=None, empty="the source has not stopped yet")
            return
        around = max(SEAL_WINDOW, 2 * view.plan.policy.certify_steps)
        source, target = Series(), Series()
        before = screen_state.run(view.plan.source, view.plan.run_id)
        after = screen_state.run(view.plan.target_host, view.plan.run_id)
        shown = after if after is not None and after.curve else before
        for row in words.rows_near(shown, step - around, step):
            source.append(row["global_step"], row["train/loss"])
        for at, loss in words.source_past_the_seal(view):
            source.append(at, loss)
        for row in words.rows_near(after, step, step + around):
            target.append(row["global_step"], row["train/loss"])
        seam.marks = ((float(step), f"migrated at {format.grouped(step)}"),)
        drawn = (
            Drawn(source, view.plan.source, palette.series(0), smooth=False),
            Drawn(target, view.plan.target, palette.series(1), smooth=False),
        )
        seam.compare(drawn, window=(step - around, step + around))

    # ------------------------------------------------------------------------------------------ commands

    def action_view(self, view: str) -> None:
        self._view = view
        for name in (PROGRESS, CERTIFICATE, DOWNTIME, LOG):
            self.query_one(f"#{name}").display = name == view
        focus = {PROGRESS: "#command-log", LOG: f"#{LOG}", DOWNTIME: f"#{DOWNTIME}", CERTIFICATE: "#seam"}[view]
        if view == CERTIFICATE and self.app.size.height < SHORT_SCREEN:
            focus = "#claims-pane"  # a screen with few rows has no curve
        self.query_one(focus).focus()
        self.refresh_state()

    def action_back(self) -> None:
        if any(pane.display and pane.escaped() for pane in self.query(LogPane)):
            return
        if self._view == CERTIFICATE and self.query_one("#seam", CurveView).forget_cursor():
            return
        view = self.migration_view
        if view is not None and view.state == migration_state.RUNNING:
            self.app.notify("the migration continues; press 3 on the fleet screen to return", title="detached")
        super().action_back()

    def selection(self) -> Selection | None:
        from midstream.listing import documents

        view = self.migration_view
        return (
            Selection(view.migration, "migration", documents.migration_event(view).fields())
            if view is not None
            else None
        )

    def action_open_run(self) -> None:
        view = self.migration_view
        if view is not None:
            self.app.pop_screen()
            self.midstream.open_run(view.plan.run_id)

    def action_copy(self) -> None:
        """Copy this migration's command line, or one that is chosen from its command log."""
        view = self.migration_view
        if view is None:
            return
        own = f"midstream --continue {view.migration}" if view.open else view.plan.command()
        logged = words.commands_to_paste(view)
        if not logged:
            self._copy(own)
            return
        lines = dict.fromkeys((own, *(line for _, line in logged)))
        does = {line: prose for prose, line in reversed(logged)} | {own: "this migration"}

        def chosen(line: Hashable) -> None:
            if line is not None:
                self._copy(str(line))

        columns = (Column("COMMAND", widest=200, rest=True), Column("WHAT", widest=30))
        rows = [Row(line, (line, does[line])) for line in lines]
        self.app.push_screen(ChooseScreen("Copy a command", columns, rows, selected=own), chosen)

    def _copy(self, line: str) -> None:
        self.app.copy_to_clipboard(line)
        self.notify(f"copied: {line}", markup=False)

    def action_rollback(self) -> None:
        view = self.migration_view
        if view is None or self.refuse_readonly():
            return
        plan = view.plan
        if view.finished:
            self.notify(
                f"finished: {plan.source} is retired. To return, migrate the run (m) to {plan.source}.", markup=False
            )
            return
        if view.state == migration_state.ROLLED_BACK:
            self.notify(f"already rolled back: {plan.source} owns the run", markup=False)
            return
        lost = bool(self._discarded(view))

        def lines() -> list[str]:
            now = self.migration_view or view
            discarded = self._discarded(now)
            if now.sealed_step is None and not discarded:
                first = f"{plan.run_id} stays on {plan.source}. What was started for it on {plan.target} is ended."
            else:
                first = f"{plan.run_id} returns to {plan.source} and continues from the step at which it stopped."
            return [first, *([f"{discarded}."] if discarded else []), "Nothing is deleted."]

        def answered(yes: bool | None) -> None:
            now = self.migration_view or view
            if yes and not now.finished and (lost or not self._discarded(now)):
                self.notify(f"returning to {plan.source}", markup=False)
                self._act(partial(self.midstream.actions.rollback, agreed=lost), view.migration)
                return
            self.midstream.actions.end_hold(view.migration)
            if yes:
                self.notify("the migration has proceeded: confirm what is true now", severity="warning")
                self.action_rollback()

        try:
            self.midstream.actions.hold(view.migration)  # else it may finish while the question is open
        except MidstreamError as error:
            self.notify(str(error), severity="warning", markup=False)
        title = f"Roll back {plan.run_id}"
        self.app.push_screen(ConfirmScreen(title, lines, word=plan.run_id if lost else ""), answered)

    def _discarded(self, view: MigrationView) -> str:
        """Return what a rollback would discard, or that it is not known."""
        from midstream.operations import rollback

        plan = view.plan
        run, host = (
            self.screen_state.run(plan.target_host, plan.run_id),
            self.screen_state.snapshot.host(plan.target_host),
        )
        down = "" if host is not None and host.link == LIVE else (host.error if host is not None else "") or "no answer"
        status, fence = (run.status, run.fence) if run is not None else (None, None)
        attempts = range(1, run.attempt + 1) if run is not None else ()
        return rollback.discarded(view, status, fence, attempts, unreachable=down)

    def action_continue(self) -> None:
        view = self.migration_view
        if view is None or self.refuse_readonly():
            return
        unproven = ", ".join(view.certificate.unproven) if view.certificate is not None else ""
        if view.state == migration_state.INTERRUPTED and unproven:

            def answered(yes: bool | None) -> None:
                if yes:
                    self._act(partial(self.midstream.actions.continue_, agreed=True), view.migration)

            lines = [
                f"Evidence is missing: {unproven}.",
                "It is looked for again; what is still missing is not checked.",
            ]
            self.app.push_screen(ConfirmScreen(f"Continue {view.plan.run_id}", lines), answered)
        elif view.state in (migration_state.INTERRUPTED, migration_state.ROLLBACK_INCOMPLETE):
            self._act(self.midstream.actions.continue_, view.migration)
        else:
            self.notify(f"nothing to continue: {view.state}", markup=False)

    def _act(self, act: Callable[[str], object], migration: str) -> None:
        app = self.midstream

        def work() -> None:
            act(migration)
            app.call_later(app.read_migrations)

        self.in_background(work)
