"""Migration: a move under way or done. It shows what the journal says; leaving it leaves the move going on."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from midstream.migrate import model
from midstream.tui import commands, number_format, palette
from midstream.tui.screen_state import World
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.screens.migration import migration_text as words
from midstream.tui.styled_text import Text
from midstream.tui.widgets import steps
from midstream.tui.widgets.bars import downtime
from midstream.tui.widgets.chrome import Hints, Rule, Views
from midstream.tui.widgets.curve import CurveView
from midstream.tui.widgets.log_pane import LogPane
from midstream.tui.widgets.pane import Pane
from midstream.tui.widgets.plot import Drawn
from midstream.tui.widgets.series import Series

PROGRESS, CERTIFICATE, DOWNTIME, LOG = "progress", "certificate", "downtime", "log"
SEAM_STEPS = 24  # steps shown on either side of the seam, at least


class MigrationScreen(MidstreamScreen):
    """One migration, by its id."""

    SCOPE = commands.MIGRATION
    BINDINGS = commands.bindings(commands.MIGRATION, commands.EVERYWHERE)

    def __init__(self, migration: str) -> None:
        super().__init__()
        self.migration = migration
        self._view = PROGRESS
        self._turned = False  # to the certificate, once, when it comes while one looks

    def body(self) -> ComposeResult:
        glyphs = self.glyphs
        yield Static(id="steps")
        yield Static(id="headline")
        yield Views(self.SCOPE)
        with Vertical(id=PROGRESS):
            yield Static(id="progress-words")
            yield Static(id="move-risk")
            yield Rule("command log", glyphs)
            yield LogPane(empty="nothing was run yet", id="command-log")
        with Vertical(id=CERTIFICATE):
            yield Static(id="claims")
            yield CurveView(glyphs, empty="no losses around the seam are known here", id="seam")
        with Pane(id=DOWNTIME):
            yield Static(id="downtime-text")
        yield LogPane(empty="nothing was written yet", id=LOG)

    def on_mount(self) -> None:
        view = self.migration_view
        self._turned = view is not None and view.certificate is not None
        self.action_view(CERTIFICATE if self._turned else PROGRESS)

    def crumbs(self) -> tuple[str, ...]:
        view = self.migration_view
        return ("Migrations", f"{view.plan.run_id} to {view.plan.target}" if view else self.migration)

    @property
    def migration_view(self) -> model.MigrationView | None:
        return self.world.migration(self.migration)

    # ------------------------------------------------------------------------------------------ showing

    def show(self, world: World) -> None:
        view = self.migration_view
        if view is None:
            self.query_one("#headline", Static).update(Text(f"  reading {self.migration} ...", palette.DIM))
            return
        if view.certificate is not None and not self._turned:
            self._turned = True
            if self._view == PROGRESS:
                self.action_view(CERTIFICATE)
                return
        glyphs, width = self.glyphs, max(40, self.size.width)
        self.put("#steps", steps.line(glyphs, steps.of_migration(view), width))
        target = world.run(view.plan.target_host, view.plan.run_id)
        self.put("#headline", words.headline(view, glyphs, world.now, target))
        proof = view.certificate
        notes = {} if proof is None else {CERTIFICATE: glyphs.passed if proof.valid else glyphs.failed}
        self.query_one(Views).show(self._view, notes)
        if self._view == PROGRESS:
            self.put("#progress-words", words.progress(view, world, glyphs, width))
            self.query_one("#move-risk", Static).update(words.risk(view))
            self.query_one("#command-log", LogPane).show(words.command_log(view))
        elif self._view == CERTIFICATE:
            self.query_one("#claims", Static).update(words.claims(view, glyphs, width))
            self._show_seam(view, world)
        elif self._view == DOWNTIME:
            self.query_one("#downtime-text", Static).update(self._downtime(view, width))
        else:
            self.query_one(f"#{LOG}", LogPane).show(words.journal(view))
        hidden = [] if not view.finished and view.state != model.ROLLED_BACK else ["rollback"]
        if view.state not in (model.INTERRUPTED, model.ROLLBACK_INCOMPLETE):
            hidden.append("continue")
        self.query_one(Hints).hide(*hidden)

    def _downtime(self, view: model.MigrationView, width: int) -> Text:
        predicted, first = view.predicted_seconds, view.plan.predicted_seconds
        text = Text(f"  predicted {number_format.seconds(sum(predicted.values()))}", palette.DIM)
        if predicted != first:
            text.append(
                f" by what the move has measured (planned {number_format.seconds(sum(first.values()))})", palette.DIM
            )
        found = view.downtime.total if view.downtime else None
        text.append(
            f"   measured {number_format.seconds(found)}\n\n"
            if found is not None
            else "   measured once the target has stepped\n\n",
            palette.TEXT,
        )
        return text.append_text(downtime(self.glyphs, view.downtime, predicted, width))

    def _show_seam(self, view: model.MigrationView, world: World) -> None:
        """The source's losses and the target's, laid over each other around the step where the run crossed over."""
        seam = self.query_one("#seam", CurveView)
        step = view.sealed_step
        if step is None:
            seam.compare((), window=None, empty="the run has not crossed over yet")
            return
        around = max(SEAM_STEPS, 2 * view.plan.certify_steps)
        source, target = Series(), Series()
        before = world.run(view.plan.source, view.plan.run_id)
        after = world.run(view.plan.target_host, view.plan.run_id)
        known = after if after is not None and after.curve else before
        for row in words.rows_near(known, step - around, step):
            source.append(row["global_step"], row["train/loss"])
        for at, loss in words.source_past_the_seal(view):
            source.append(at, loss)
        for row in words.rows_near(after, step, step + around):
            target.append(row["global_step"], row["train/loss"])
        seam.marks = ((float(step), f"sealed at {number_format.grouped(step)}"),)
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
        self.query_one(focus).focus()
        self.refresh_world()

    def action_back(self) -> None:
        if any(pane.display and pane.escaped() for pane in self.query(LogPane)):
            return
        if self._view == CERTIFICATE and self.query_one("#seam", CurveView).forget_cursor():
            return
        view = self.migration_view
        if view is not None and view.state == model.RUNNING:
            self.app.notify("the migration goes on; press 3 on the fleet screen to see it again", title="detached")
        super().action_back()

    def action_open_run(self) -> None:
        from midstream.tui.screens.run.run_screen import RunScreen

        view = self.migration_view
        if view is not None:
            self.app.switch_screen(RunScreen(view.plan.run_id))

    def action_copy(self) -> None:
        view = self.migration_view
        if view is not None:
            line = f"midstream --continue {view.migration}" if view.open else view.plan.command()
            self.app.copy_to_clipboard(line)
            self.notify(f"copied: {line}", markup=False)

    def action_rollback(self) -> None:
        view = self.migration_view
        if view is None or self.refused():
            return
        plan = view.plan
        if view.finished:
            self.notify(
                f"finished: {plan.source} is retired. To go back, move the run (m) to {plan.source}.", markup=False
            )
            return
        if view.state == model.ROLLED_BACK:
            self.notify(f"it was rolled back already: {plan.source} has the run", markup=False)
            return
        run = self.world.run(plan.target_host, plan.run_id)
        given_up = view.steps_given_up(run.step if run else None)
        lines = [f"{plan.run_id} goes back to {plan.source} and runs on there from where it was sealed."]
        if given_up:
            lines.append(f"{given_up} steps that {plan.target} has done since are given up.")
        lines.append("Nothing is deleted.")

        def answered(yes: bool | None) -> None:
            if yes:
                self.notify(f"going back to {plan.source}", markup=False)
                self._act(self.midstream.actions.rollback, view.migration)

        title = f"Roll back {plan.run_id}"
        self.app.push_screen(ConfirmScreen(title, lines, word=plan.run_id if given_up else ""), answered)

    def action_continue(self) -> None:
        view = self.migration_view
        if view is None or self.refused():
            return
        if view.state in (model.INTERRUPTED, model.ROLLBACK_INCOMPLETE):
            self._act(self.midstream.actions.continue_, view.migration)
        else:
            self.notify(f"nothing to continue: it is {view.state}", markup=False)

    def _act(self, act: Callable[[str], object], migration: str) -> None:
        app = self.midstream

        def work() -> None:
            act(migration)
            app.call_later(app.read_migrations)

        self.in_background(work)
