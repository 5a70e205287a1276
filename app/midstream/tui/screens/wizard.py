"""Migration wizard: plan and preflight without side effects, then the start.

The start is confirmed by the run's name.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

from textual.app import ComposeResult
from textual.message import Message
from textual.widgets import Static

from midstream import format
from midstream.errors import MidstreamError
from midstream.listing.run_facts import hardware
from midstream.migrate.journal import phase_names
from midstream.migrate.journal.plan import Plan
from midstream.migrate.journal.request import Request
from midstream.migrate.modes.registry import WARM
from midstream.tui import commands
from midstream.tui.screens import create_slice, plan_text, wizard_choices, wizard_settings
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.compare_screen import ask_candidates
from midstream.tui.screens.dialogs.choose import ChooseScreen
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.screens.migration_screen import MigrationScreen
from midstream.tui.screens.preflight import Checked, Preflight
from midstream.tui.screens.wizard_settings import WizardSettings
from midstream.tui.state.screen_state import ScreenState
from midstream.tui.style import checks_text, palette
from midstream.tui.style.styled_text import Text
from midstream.tui.target_choice import TargetChoice, TargetMissingError
from midstream.tui.widgets import steps
from midstream.tui.widgets.chrome import Hints, Rule
from midstream.tui.widgets.pane import Pane
from midstream.tui.widgets.table import Column, Row, Table
from midstream.watch.snapshot import RunView, Snapshot

PLAN, PREFLIGHT, STARTING = "plan", "preflight", "starting"
CREATE_TARGET = "create target"  # the target must be created before planning
RISKS = {
    PLAN: ("none: the plan is an estimate", "nothing changes; esc cancels"),
    CREATE_TARGET: ("creation fails: nothing remains", "the price is confirmed first"),
    PREFLIGHT: ("a check fails: no migration starts", "checks change nothing; b returns"),
    STARTING: ("a link breaks, the target fails: rollback", "the source stays until the end"),
}


class WizardScreen(MidstreamScreen):
    """Wizard from a run to a started migration. Nothing changes before the start."""

    SCOPE = commands.WIZARD
    BINDINGS = commands.bindings(commands.WIZARD, commands.EVERYWHERE)

    class Planned(Message):
        """Planning has ended with a plan or an error."""

        def __init__(self, request: Request, plan: Plan | None, error: MidstreamError | None) -> None:
            super().__init__()
            self.request, self.plan, self.error = request, plan, error

    class MigrationStarted(Message):
        """The migration's process was started."""

        def __init__(self, migration: str) -> None:
            super().__init__()
            self.migration = migration

    def __init__(self, run_id: str, targets: tuple[TargetChoice, ...], request: Request | None = None) -> None:
        """Create the wizard; ``request`` preselects target, mode and checkpoint."""
        super().__init__()
        self.run_id = run_id
        self._targets = targets
        self._stage = PLAN
        self._checkpoint = request.checkpoint if request else "now"
        self._mode = request.mode if request else WARM
        self._settings = WizardSettings.of(request) if request else WizardSettings()
        self._preselected = request.target if request else ""  # target
        self._request: Request | None = None
        self._plan: Plan | None = None
        self._error: MidstreamError | None = None
        self._preflight = Preflight(self)

    def body(self) -> ComposeResult:
        glyphs = self.glyphs
        yield Static(id="steps")
        yield Table(wizard_choices.TARGET_COLUMNS, glyphs, id="targets")
        yield Rule("plan", glyphs)
        with Pane(id="wizard-text"):
            yield Static(id="wizard-words")
        yield Static(id="verdict")
        yield Static(id="risk")
        yield Rule("command line", glyphs, "y copies", id="command-rule")
        yield Static(id="command")

    def on_mount(self) -> None:
        self.query_one(Table).focus()

    def crumbs(self) -> tuple[str, ...]:
        return ("Runs", self.run_id, "Migrate")

    @property
    def run_view(self) -> RunView | None:
        copies = self.screen_state.snapshot.copies(self.run_id)
        return copies[0] if copies else None

    # ------------------------------------------------------------------------------------------ showing

    def show(self, screen_state: ScreenState) -> None:
        run = self.run_view
        table = self.query_one(Table)
        targets = [target for target in self._targets if run is None or target.takes(run)]
        table.show(
            [wizard_choices.target_row(target, screen_state.snapshot, self.glyphs) for target in targets],
            empty=(
                "no other target in the fleet file. Add a host, or write a fleet file:",
                "  midstream --init",
            ),
        )
        if self._preselected:
            table.select(self._preselected)
            self._preselected = ""
        self._paint()

    def _paint(self) -> None:
        width = max(20, self.size.width)
        step = {PLAN: phase_names.PLAN, PREFLIGHT: phase_names.PREFLIGHT, STARTING: phase_names.PREPARE}[self._stage]
        self.query_one("#steps", Static).update(steps.line(self.glyphs, steps.at(step), width))
        self.query_one(Table).display = self._stage == PLAN
        rule = self.query(Rule).first()
        words = self.query_one("#wizard-words", Static)
        if self._stage == PLAN:
            choices = f"mode {self._mode} (o), checkpoint {self._checkpoint} (c), settings (s)"
            more = self._settings.summary
            rule.show("plan" if self._settings == WizardSettings() else f"plan: {more}", choices)
            words.update(self._plan_words(width))
        else:
            rule.show(f"preflight: {checks_text.summary(self._preflight.checks)}")
            words.update(checks_text.describe(self._preflight.checks, self._preflight.complete, self.glyphs, width - 1))
        self.query_one("#verdict", Static).update(self._verdict(width))
        self.query_one("#risk", Static).update(self._risk())
        command = self._plan.command() if self._plan else ""
        self.query_one("#command", Static).update(Text(command, palette.ACCENT))
        self.query_one(Hints).hide(*(("previous",) if self._stage == PLAN else ("checkpoint", "mode", "settings")))

    def _plan_words(self, width: int) -> Text:
        if isinstance(self._error, TargetMissingError):
            words = self._error.missing.question
            text = Text(f"  {self.glyphs.idle} {format.folded(words, width - 1, 4)}\n", palette.WAIT)
            more = "The migration is planned once it exists; every check possible without it has passed."
            return text.append(f"    {format.folded(more, width - 1, 4)}", palette.DIM)
        if self._error is not None:
            message, hint = (
                format.folded(sentence, width - 1, 4) for sentence in (self._error.message, self._error.hint)
            )
            text = Text(f"  {self.glyphs.failed} {message}\n", palette.BAD)
            return text.append(f"    {hint}\n" if hint else "", palette.ACCENT)
        if self._plan is None:
            return Text("  planning ..." if self.query_one(Table).selected else "", palette.DIM)
        run = self.run_view
        source = hardware(run, self.glyphs.times) if run else ""
        return plan_text.describe(self._plan, self.glyphs, source, width - 1)

    def _verdict(self, width: int) -> Text:
        """Return the next step as one line."""
        if self._stage == STARTING:
            return Text("  starting the migration ...", palette.ACCENT)
        if self._stage == PLAN:
            if isinstance(self._error, TargetMissingError):
                return Text("  enter creates the target, after confirmation", palette.ACCENT)
            if self._plan is None:
                return Text() if self._error else Text(f"  {self._why_no_plan}", palette.ACCENT)
            return Text("  enter runs the preflight", palette.DIM)
        if not self._preflight.complete:
            return Text(f"  checking ...  {len(self._preflight.checks)} done", palette.ACCENT)
        if (reason := self._preflight.failed) is not None:
            words = f"Cannot migrate: {reason.name}: {reason.detail}."
            hint = "Fix it, then press r; b returns to the plan."
            return Text(f"  {format.folded(words, width, 2)}\n", palette.BAD).append(f"  {hint}", palette.DIM)
        ready = format.folded("Ready. enter starts the migration, after confirmation.", width, 2)
        return Text(f"  {ready}", f"bold {palette.GOOD}")

    def _risk(self) -> Text:
        """Return risk and safety of this step."""
        risk, safety = RISKS[
            CREATE_TARGET if self._stage == PLAN and isinstance(self._error, TargetMissingError) else self._stage
        ]
        text = Text("  risk    ", palette.DIM, no_wrap=True).append(f"{risk}\n", palette.WAIT)
        return text.append("  safety  ", palette.DIM).append(safety, palette.GOOD)

    @property
    def _why_no_plan(self) -> str:
        """Return why enter does not go on."""
        if self._request is None:
            return "no target is selected"
        if self._error is not None:
            return "this migration cannot be planned: choose another target, or r plans again"
        return "the plan is being computed; press enter when it is shown"

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
            self._request = Request(
                self.run_id,
                str(target),
                mode=self._mode,
                checkpoint=self._checkpoint,
                source=run.host if run else "",
                certify_steps=self._settings.certify_steps,
                healthy_steps=self._settings.healthy_steps,
                overrides=self._settings.overrides,
            )
            self.in_background(partial(self._make_plan, self._request, self.screen_state.snapshot))
        self._paint()

    def _make_plan(self, request: Request, snapshot: Snapshot) -> None:
        try:
            plan, error = self.midstream.actions.make_plan(snapshot, request), None
        except MidstreamError as problem:
            plan, error = None, problem
        self.post_message(self.Planned(request, plan, error))

    def on_wizard_screen_planned(self, event: Planned) -> None:
        if event.request is self._request and self._stage == PLAN:  # an older result may be of another moment
            self._plan, self._error = event.plan, event.error
            self._paint()

    # ------------------------------------------------------------------------------------------ preflight

    def on_checked(self, event: Checked) -> None:
        if self._stage == PREFLIGHT and self._preflight.add(event):
            self._paint()

    # ------------------------------------------------------------------------------------------ start

    def _confirm(self) -> None:
        plan = self._plan
        assert plan is not None

        def answered(yes: bool | None) -> None:
            if yes and self._stage == PREFLIGHT:
                self._stage = STARTING
                self._paint()
                self.in_background(partial(self._start, plan))

        title = f"Migrate {plan.run_id} from {plan.source} to {plan.target}"
        self.app.push_screen(ConfirmScreen(title, plan_text.consequences(plan), word=plan.run_id), answered)

    def _start(self, plan: Plan) -> None:
        try:
            migration = self.midstream.actions.start(plan)
        except MidstreamError as error:
            self.midstream.call_later(self._start_failed, error)
            return
        self.post_message(self.MigrationStarted(migration))

    def _start_failed(self, error: MidstreamError) -> None:
        """Show why the migration could not be started; nothing has changed.

        The user may have left the screen.
        """
        self.show_error(error)
        if self.is_attached:
            self._stage = PREFLIGHT
            self._paint()

    def on_wizard_screen_migration_started(self, event: MigrationStarted) -> None:
        self.midstream.read_migrations()
        self.when_in_front(lambda: self.app.switch_screen(MigrationScreen(event.migration)))

    # ------------------------------------------------------------------------------------------ commands

    def action_next(self) -> None:
        if self._stage == PLAN:
            if isinstance(self._error, TargetMissingError) and self._request is not None:
                if not self.refuse_readonly():
                    create_slice.ask(self.midstream, self._error.missing, self._request)
                return
            if self._plan is None:
                self.notify(self._why_no_plan, severity="warning")
                return
            self._stage = PREFLIGHT
            self.query_one(Pane).focus()
            self.action_again()
        elif self._stage == PREFLIGHT and self._preflight.complete:
            if self._preflight.failed is not None:
                self.notify("a check failed: fix it, then press r", severity="error")
            elif not self.refuse_readonly():
                self._confirm()

    def action_previous(self) -> None:
        if self._stage == PREFLIGHT:
            self._preflight.cancel()
            self._stage = PLAN
            self._replan()
            self.query_one(Table).focus()

    def action_checkpoint(self) -> None:
        """Choose the state to migrate: at the seal, the latest or an older checkpoint."""
        run = self.run_view
        if self._stage != PLAN or run is None:
            return
        rows = wizard_choices.checkpoint_rows(run, self.screen_state.now)
        self._choose("Checkpoint", wizard_choices.CHECKPOINT_COLUMNS, rows, "_checkpoint")

    def action_mode(self) -> None:
        if self._stage == PLAN:
            self._choose("Mode", wizard_choices.MODE_COLUMNS, wizard_choices.mode_rows(), "_mode")

    def action_settings(self) -> None:
        """Change batch, healthy steps and engine flags."""

        def chosen(settings: WizardSettings) -> None:
            if self._stage == PLAN and settings != self._settings:
                self._settings = settings
                self._replan()

        if self._stage == PLAN:
            wizard_settings.ask(self, self._settings, chosen)

    def action_compare(self) -> None:
        """Estimate accelerators and targets, and choose a target of them."""
        run = self.run_view
        if self._stage == PLAN and run is not None:
            ask_candidates(
                self, run, wizard_choices.comparable(self._targets, self.screen_state.snapshot), self._chosen_target
            )

    def _chosen_target(self, name: str) -> None:
        table = self.query_one(Table)
        if name not in table.keys:  # another one would be planned for
            self.notify(f"the run is on {name}", severity="warning", markup=False)
            return
        table.select(name)
        self._replan()

    def _choose(self, title: str, columns: Sequence[Column], rows: Sequence[Row], attribute: str) -> None:
        def chosen(key: Hashable) -> None:
            if key is not None and self._stage == PLAN and key != getattr(self, attribute):
                setattr(self, attribute, str(key))
                self._replan()

        self.app.push_screen(ChooseScreen(title, columns, rows, selected=getattr(self, attribute)), chosen)

    def action_again(self) -> None:
        if self._stage == PLAN:
            self._replan()
        elif self._stage == PREFLIGHT and self._plan is not None:
            self._preflight.start(partial(self.midstream.actions.preflight, self._plan))
            self._paint()

    def action_copy(self) -> None:
        if self._plan is not None:
            self.app.copy_to_clipboard(self._plan.command())
            self.notify("copied (if the terminal supports OSC 52)")
