"""Migrate: plan and preflight, both without side effects; then the cut-over, confirmed with the run's name."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

from textual.app import ComposeResult
from textual.message import Message
from textual.widgets import Static

from midstream.errors import MidstreamError
from midstream.migrate import model
from midstream.tui import commands, number_format, palette
from midstream.tui import glyphs as signs
from midstream.tui.actions import NotMade, Target
from midstream.tui.screen_state import World, hardware, short_kind
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.dialogs.choose import ChooseScreen
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.screens.migration import checks_text, plan_text
from midstream.tui.screens.slices import create_slice
from midstream.tui.styled_text import Text
from midstream.tui.widgets import steps
from midstream.tui.widgets.chrome import Hints, Rule
from midstream.tui.widgets.pane import Pane
from midstream.tui.widgets.table import Column, Row, Table
from midstream.watch.snapshot import RunView, Snapshot

PLAN, PREFLIGHT, STARTING = "plan", "preflight", "starting"
MAKING = "making"  # a plan that waits for its target to be made
MODE_WORDS = {
    model.WARM: "the source seals; its state goes to a target that waits",
    model.COLD: "the source seals and stops; then the target starts",
    model.LIVE: "the target replays the run beside the source, and takes over",
}
RISKS = {
    PLAN: ("a prediction is wrong; the preflight looks closer", "everything: nothing is touched, esc leaves"),
    MAKING: ("it does not come: then nothing of it is left", "what it costs is agreed to first, by its name"),
    PREFLIGHT: ("a check fails: nothing is moved then", "everything: checks only look, b goes back"),
    STARTING: ("a link breaks, the target fails: it is rolled back", "the run: the source is kept until the end"),
}
TARGET_COLUMNS = (Column("WHERE TO", widest=24), Column("DEVICES"), Column("LINK"), Column("", widest=200, rest=True))


class WizardScreen(MidstreamScreen):
    """From a run to a migration that has begun. Until then nothing is touched and esc leaves."""

    SCOPE = commands.WIZARD
    BINDINGS = commands.bindings(commands.WIZARD, commands.EVERYWHERE)

    class Planned(Message):
        """A plan was made, or could not be."""

        def __init__(self, request: model.Request, plan: model.Plan | None, error: MidstreamError | None) -> None:
            super().__init__()
            self.request, self.plan, self.error = request, plan, error

    class Checked(Message):
        """One check of a preflight (counted by ``round``) was done; None: all were."""

        def __init__(self, round: int, check: model.Check | None) -> None:
            super().__init__()
            self.round, self.check = round, check

    class Begun(Message):
        """The migration has a process of its own now."""

        def __init__(self, migration: str) -> None:
            super().__init__()
            self.migration = migration

    class NotBegun(Message):
        """The migration could not be started; nothing was changed."""

        def __init__(self, error: MidstreamError) -> None:
            super().__init__()
            self.error = error

    def __init__(self, run_id: str, targets: tuple[Target, ...], begun: model.Request | None = None) -> None:
        """``begun``: what was chosen before, and is gone on with."""
        super().__init__()
        self.run_id = run_id
        self._targets = targets
        self._stage = PLAN
        self._checkpoint = begun.checkpoint if begun else "now"
        self._mode = begun.mode if begun else model.WARM
        self._first = begun.target if begun else ""  # to be selected
        self._request: model.Request | None = None
        self._plan: model.Plan | None = None
        self._error: MidstreamError | None = None
        self._checks: list[model.Check] = []
        self._all_checked = False
        self._round = 0  # of preflight; what an older one still finds is dropped

    def body(self) -> ComposeResult:
        glyphs = self.glyphs
        yield Static(id="steps")
        yield Table(TARGET_COLUMNS, glyphs, id="targets")
        yield Rule("plan", glyphs)
        with Pane(id="wizard-text"):
            yield Static(id="wizard-words")
        yield Static(id="verdict")
        yield Static(id="risk")
        yield Rule("the same on the command line", glyphs, "y copies it")
        yield Static(id="command")

    def on_mount(self) -> None:
        self.query_one(Table).focus()

    def crumbs(self) -> tuple[str, ...]:
        return ("Runs", self.run_id, "Migrate")

    @property
    def run_view(self) -> RunView | None:
        copies = self.world.snapshot.copies(self.run_id)
        return copies[0] if copies else None

    # ------------------------------------------------------------------------------------------ showing

    def show(self, world: World) -> None:
        run = self.run_view
        table = self.query_one(Table)
        places = [target for target in self._targets if run is None or run.host not in target.hosts]
        table.show(
            [self._target_row(target, world) for target in places],
            empty=(
                "no other target in the fleet file: add a host, or write one from ~/.ssh/config with",
                "  midstream --init",
            ),
        )
        if self._first:
            table.select(self._first)
            self._first = ""
        self._paint()

    def _target_row(self, target: Target, world: World) -> Row:
        hosts = [host for host in world.snapshot.hosts if host.name in target.hosts]
        found = [item for host in hosts if host.machine for item in host.machine.accelerators]
        count = f"{len(found)}{self.glyphs.times}{short_kind(found[0].kind)}" if found else number_format.NONE
        worst = next((host for host in hosts if host.link != "live"), hosts[0] if hosts else None)
        if worst is None:
            return Row(target.name, (target.name, count, "", ""))
        glyph, colour = signs.link_state(self.glyphs, worst.link)
        return Row(target.name, (target.name, count, (f"{glyph} {worst.link}", colour), (worst.error, palette.BAD)))

    def _paint(self) -> None:
        width = max(20, self.size.width)
        step = {PLAN: steps.PLAN, PREFLIGHT: steps.PREFLIGHT, STARTING: steps.COPY}[self._stage]
        self.query_one("#steps", Static).update(steps.line(self.glyphs, steps.at(step), width))
        self.query_one(Table).display = self._stage == PLAN
        rule = self.query(Rule).first()
        words = self.query_one("#wizard-words", Static)
        if self._stage == PLAN:
            rule.show("plan", f"mode {self._mode} (o), checkpoint {self._checkpoint} (c)")
            words.update(self._plan_words(width))
        else:
            rule.show(f"preflight: {checks_text.summary(self._checks)}")
            words.update(checks_text.describe(self._checks, self._all_checked, self.glyphs, width - 1))
        self.query_one("#verdict", Static).update(self._verdict(width))
        self.query_one("#risk", Static).update(self._risk())
        command = self._plan.command() if self._plan else ""
        self.query_one("#command", Static).update(Text(command, palette.ACCENT))
        self.query_one(Hints).hide(*(("previous",) if self._stage == PLAN else ("checkpoint", "mode")))

    def _plan_words(self, width: int) -> Text:
        if isinstance(self._error, NotMade):
            words = f"{self._error.message}, and can be made: {self._error.price}."
            text = Text(f"  {self.glyphs.idle} {number_format.folded(words, width - 1, 4)}\n", palette.WAIT)
            more = "The move is planned once it is there: what can be looked at without it does not stand against it."
            return text.append(f"    {number_format.folded(more, width - 1, 4)}", palette.DIM)
        if self._error is not None:
            wrong, mend = (
                number_format.folded(words, width - 1, 4) for words in (self._error.message, self._error.hint)
            )
            text = Text(f"  {self.glyphs.failed} {wrong}\n", palette.BAD)
            return text.append(f"    {mend}\n" if mend else "", palette.ACCENT)
        if self._plan is None:
            return Text("  asking source and target ..." if self.query_one(Table).selected else "", palette.DIM)
        run = self.run_view
        source = hardware(run, self.glyphs.times) if run else ""
        return plan_text.describe(self._plan, self.glyphs, source, width - 1)

    def _verdict(self, width: int) -> Text:
        """One line that is always in sight: whether one can go on, and how."""
        if self._stage == STARTING:
            return Text("  starting the migration ...", palette.ACCENT)
        if self._stage == PLAN:
            if isinstance(self._error, NotMade):
                return Text("  enter asks whether it shall be made", palette.ACCENT)
            if self._plan is None:
                return Text()
            return Text("  enter checks whether it can be done", palette.DIM)
        if not self._all_checked:
            return Text(f"  checking ...  {len(self._checks)} done", palette.ACCENT)
        if self._blocked:
            reason = next(check for check in self._checks if check.state == model.FAIL)
            words = f"It cannot be moved: {reason.name}: {reason.detail}."
            mend = "Mend it, then r checks again; b goes back."
            return Text(f"  {number_format.folded(words, width, 2)}\n", palette.BAD).append(f"  {mend}", palette.DIM)
        return Text("  Ready. enter asks for the run's name, then it moves.", f"bold {palette.GOOD}")

    def _risk(self) -> Text:
        """What can go wrong at this step, and what is safe."""
        wrong, safe = RISKS[MAKING if self._stage == PLAN and isinstance(self._error, NotMade) else self._stage]
        text = Text("  can go wrong  ", palette.DIM, no_wrap=True).append(f"{wrong}\n", palette.WAIT)
        return text.append("  safe          ", palette.DIM).append(safe, palette.GOOD)

    @property
    def _blocked(self) -> bool:
        return any(check.state == model.FAIL for check in self._checks)

    # ------------------------------------------------------------------------------------------ planning

    def on_table_chosen(self) -> None:
        self.action_next()

    def on_table_moved(self, event: Table.Moved) -> None:
        if self._stage == PLAN and event.table.id == "targets":
            self._replan()

    def _replan(self) -> None:
        target = self.query_one(Table).selected
        self._plan = self._error = self._request = None
        if target is not None:
            run = self.run_view
            self._request = model.Request(
                self.run_id,
                str(target),
                mode=self._mode,
                checkpoint=self._checkpoint,
                source=run.host if run else "",
            )
            self.in_background(partial(self._make_plan, self._request, self.world.snapshot))
        self._paint()

    def _make_plan(self, request: model.Request, snapshot: Snapshot) -> None:
        try:
            plan, error = self.midstream.actions.make_plan(snapshot, request), None
        except MidstreamError as problem:
            plan, error = None, problem
        self.post_message(self.Planned(request, plan, error))

    def on_wizard_screen_planned(self, event: Planned) -> None:
        if event.request == self._request:  # an answer to an older question is dropped
            self._plan, self._error = event.plan, event.error
            self._paint()

    # ------------------------------------------------------------------------------------------ preflight

    def _run_checks(self, round: int, plan: model.Plan) -> None:
        try:
            for check in self.midstream.actions.preflight(plan):
                if self._round != round:
                    return
                self.post_message(self.Checked(round, check))
        except MidstreamError as error:
            self.post_message(self.Checked(round, model.Check("preflight", model.FAIL, error.message, error.hint)))
        self.post_message(self.Checked(round, None))

    def on_wizard_screen_checked(self, event: Checked) -> None:
        if event.round != self._round or self._stage != PREFLIGHT:
            return
        if event.check is None:
            self._all_checked = True
        else:
            self._checks.append(event.check)
        self._paint()

    # ------------------------------------------------------------------------------------------ the cut-over

    def _confirm(self) -> None:
        plan = self._plan
        assert plan is not None
        after = f"about {number_format.seconds(plan.predicted_downtime)} later it goes on on {plan.target}"
        first = f"{plan.source} saves, is sealed and stops; {after}."
        if plan.mode == model.LIVE:
            first = f"{plan.target} replays the run until it is level with {plan.source}, which trains on until then."
        lines = [
            first,
            *plan.consent,
            "",
            "What can go wrong: a link breaks, the target fails. Then it is taken back, and the source runs again.",
            "What is safe: nothing is deleted, and r takes the move back until the target has done "
            f"{plan.healthy_steps} healthy steps.",
        ]
        if plan.steps_lost:
            lines.insert(1, f"{plan.steps_lost} steps after {plan.checkpoint} are given up.")

        def answered(yes: bool | None) -> None:
            if yes and self._stage == PREFLIGHT:
                self._stage = STARTING
                self._paint()
                self.in_background(partial(self._start, plan))

        title = f"Move {plan.run_id} from {plan.source} to {plan.target}"
        self.app.push_screen(ConfirmScreen(title, lines, word=plan.run_id), answered)

    def _start(self, plan: model.Plan) -> None:
        try:
            migration = self.midstream.actions.start(plan)
        except MidstreamError as error:
            self.post_message(self.NotBegun(error))
            return
        self.post_message(self.Begun(migration))

    def on_wizard_screen_not_begun(self, event: NotBegun) -> None:
        self.say(event.error)
        self._stage = PREFLIGHT
        self._paint()

    def on_wizard_screen_begun(self, event: Begun) -> None:
        from midstream.tui.screens.migration.migration_screen import MigrationScreen

        self.midstream.read_migrations()
        while self.app.screen is not self:  # a dialog may lie over it
            self.app.pop_screen()
        self.app.switch_screen(MigrationScreen(event.migration))

    # ------------------------------------------------------------------------------------------ commands

    def action_next(self) -> None:
        if self._stage == PLAN:
            if isinstance(self._error, NotMade) and self._request is not None:
                if not self.refused():
                    create_slice.ask(self.midstream, self._request.target, self._error.price, self._request)
                return
            if self._plan is None:
                self.notify("there is no plan to go on with yet", severity="warning")
                return
            self._stage = PREFLIGHT
            self.query_one(Pane).focus()
            self.action_again()
        elif self._stage == PREFLIGHT and self._all_checked:
            if self._blocked:
                self.notify("a check failed: mend it, then r", severity="error")
            elif not self.refused():
                self._confirm()

    def action_previous(self) -> None:
        if self._stage == PREFLIGHT:
            self._round += 1
            self._stage = PLAN
            self._replan()
            self.query_one(Table).focus()

    def action_checkpoint(self) -> None:
        """Its state when it is sealed, its latest checkpoint, or an older one."""
        run = self.run_view
        if self._stage != PLAN or run is None:
            return
        step = run.step or 0
        done = [point for point in run.checkpoints if point.complete and point.accepted]
        newest = max((point.step for point in done), default=None)
        rows = [Row("now", ("now", "saved as it is sealed: no step is lost", number_format.grouped(step), ""))]
        if newest is not None:
            lost = f"{max(0, step - newest)} steps are given up"
            rows.append(Row("latest", ("latest", lost, number_format.grouped(newest), "")))
        rows += [
            Row(
                str(point.step),
                (
                    point.name,
                    f"{max(0, step - point.step)} steps are given up",
                    number_format.grouped(point.step),
                    number_format.age(self.world.now - point.created if point.created else None),
                ),
            )
            for point in sorted(done, key=lambda point: -point.step)
        ]
        columns = (Column("CHECKPOINT"), Column("WHAT IT COSTS"), Column("STEP", right=True), Column("AGE", right=True))
        self._choose("Move which state?", columns, rows, "_checkpoint")

    def action_mode(self) -> None:
        if self._stage == PLAN:
            rows = [Row(mode, (mode, MODE_WORDS[mode])) for mode in model.MODES]
            self._choose("How does it cross over?", (Column("MODE"), Column("WHAT HAPPENS", widest=64)), rows, "_mode")

    def _choose(self, title: str, columns: tuple[Column, ...], rows: list[Row], what: str) -> None:
        def chosen(key: Hashable) -> None:
            if key is not None and self._stage == PLAN and key != getattr(self, what):
                setattr(self, what, str(key))
                self._replan()

        self.app.push_screen(ChooseScreen(title, columns, rows, selected=getattr(self, what)), chosen)

    def action_again(self) -> None:
        if self._stage == PLAN:
            self._replan()
        elif self._stage == PREFLIGHT and self._plan is not None:
            self._checks, self._all_checked = [], False
            self._round += 1
            self.in_background(partial(self._run_checks, self._round, self._plan))
            self._paint()

    def action_copy(self) -> None:
        if self._plan is not None:
            self.app.copy_to_clipboard(self._plan.command())
            self.notify("copied (where the terminal allows it: OSC 52)")
