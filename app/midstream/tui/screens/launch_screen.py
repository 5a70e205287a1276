"""Launch screen: a launch's preflight, then its progress until the run is started."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from textual.app import ComposeResult
from textual.message import Message
from textual.widgets import Static

from midstream import format
from midstream.check.check_result import FAIL, OWNERSHIP
from midstream.errors import MidstreamError
from midstream.install.reporter import Reporter, state_line
from midstream.launch.launch_request import LaunchRequest
from midstream.tui import commands
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.screens.preflight import Checked, Preflight
from midstream.tui.state.screen_state import ScreenState
from midstream.tui.style import checks_text, palette
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.chrome import Hints, Rule
from midstream.tui.widgets.pane import Pane

CHECKING, READY, STARTING, FAILED = "checking", "ready", "starting", "failed"


class LaunchScreen(MidstreamScreen):
    """Preflight and progress of a launch. Nothing changes before the confirmation."""

    SCOPE = commands.LAUNCH
    BINDINGS = commands.bindings(commands.LAUNCH, commands.EVERYWHERE)

    class LaunchProgress(Message):
        """The launch reported a line that stays, or a state that the next one replaces."""

        def __init__(self, line: str, *, stays: bool) -> None:
            super().__init__()
            self.line, self.stays = line, stays

    class RunStarted(Message):
        """The run was started."""

        def __init__(self, run_id: str) -> None:
            super().__init__()
            self.run_id = run_id

    def __init__(self, request: LaunchRequest) -> None:
        super().__init__()
        self.request = request
        self._stage = CHECKING
        self._preflight = Preflight(self)
        self._reports: list[str] = []
        self._state = ""  # of the current operation
        self._error: MidstreamError | None = None
        self._since = 0.0  # UTC seconds: the start was confirmed

    def body(self) -> ComposeResult:
        yield Rule("preflight", self.glyphs)
        with Pane(id="wizard-text"):
            yield Static(id="wizard-words")
        yield Static(id="verdict")
        own = "" if self.request.config else " (CONFIG: any, the run has its own)"
        yield Rule(f"command line{own}", self.glyphs, "y copies")
        yield Static(id="command")

    def on_mount(self) -> None:
        self.query_one(Pane).focus()
        self.action_again()

    def crumbs(self) -> tuple[str, ...]:
        return ("Runs", "Launch" if self.request.config else "Start again", self.request.target)

    @property
    def _run_id(self) -> str:
        """The id that the last check has named, or the requested one."""
        detail = next(
            (check.detail for check in self._preflight.checks if check.name == "run" and check.state != FAIL), ""
        )
        return self.request.run_id or detail.partition(" ")[0]

    @property
    def _command(self) -> str:
        return self.midstream.actions.launch_command(self.request)

    # ------------------------------------------------------------------------------------------ showing

    def show(self, screen_state: ScreenState) -> None:  # noqa: ARG002 (of the base class)
        width = max(20, self.size.width)
        words = self.query_one("#wizard-words", Static)
        rule = self.query(Rule).first()
        if self._stage in (STARTING, FAILED):
            rule.show(f"start of {self._run_id} on {self.request.target}")
            text = Text()
            for line in self._reports:
                text.append(f"  {format.folded(line, width - 1, 4)}\n", palette.DIM)
            if self._state and self._stage == STARTING:
                text.append(f"  {self.glyphs.busy} {format.folded(self._state, width - 1, 4)}", palette.ACCENT)
            words.update(text)
            self.query_one(Pane).scroll_end(animate=False)
        else:
            rule.show(f"preflight: {checks_text.summary(self._preflight.checks)}")
            words.update(checks_text.describe(self._preflight.checks, self._stage == READY, self.glyphs, width - 1))
        self.query_one("#verdict", Static).update(self._verdict(width))
        # During the start these keys do nothing.
        self.query_one(Hints).hide(*(("again", "next", "previous") if self._stage == STARTING else ()))
        command = self._command
        self.query_one("#command", Static).update(Text(command, palette.ACCENT))

    def _verdict(self, width: int) -> Text:
        if self._error is not None:
            text = Text(f"  {self.glyphs.failed} {format.folded(self._error.message, width, 4)}\n", palette.BAD)
            return text.append(f"    {format.folded(self._error.hint or 'r checks again', width, 4)}", palette.DIM)
        if self._stage == STARTING:
            age = format.age(max(0.0, self.screen_state.now - self._since))
            return Text(f"  starting for {age}; esc leaves the screen, the start continues", palette.ACCENT)
        if self._stage == CHECKING:
            return Text(f"  checking ...  {len(self._preflight.checks)} done", palette.ACCENT)
        failed = self._preflight.failed
        if failed is not None:
            words = f"Cannot start: {failed.name}: {failed.detail}."
            text = Text(f"  {format.folded(words, width, 2)}\n", palette.BAD)
            return text.append("  Fix it, then press r; b returns to the form.", palette.DIM)
        return Text("  Ready. enter starts the run, after confirmation.", f"bold {palette.GOOD}")

    # ------------------------------------------------------------------------------------------ preflight

    def action_again(self) -> None:
        if self._stage != STARTING:
            self._stage, self._error, self._reports = CHECKING, None, []
            self._preflight.start(partial(self.midstream.actions.launch_checks, self.request))
            self.refresh_state()

    def on_checked(self, event: Checked) -> None:
        if self._stage == CHECKING and self._preflight.add(event):
            if self._preflight.complete:
                self._stage = READY
            self.refresh_state()

    # ------------------------------------------------------------------------------------------ start

    def action_next(self) -> None:
        if self._stage != READY:
            self.notify("the checks are not done" if self._stage == CHECKING else "press r to check again")
            return
        failed = self._preflight.failed
        if failed is not None:
            self.notify("a check failed: fix it, then press r", severity="error")
        elif not self.refuse_readonly():
            run = next((check.detail for check in self._preflight.checks if check.name == "run"), "")
            lines = (
                f"{run}.",
                "midstream installs its engine and the packages where they are missing, then starts the run.",
                "S stops it again; nothing is deleted.",
                *self._consent,
            )
            title, word = f"Start {self._run_id} on {self.request.target}", self._run_id if self._consent else ""
            self.app.push_screen(ConfirmScreen(title, lines, word=word), self._confirmed)

    @property
    def _consent(self) -> tuple[str, ...]:
        """Reasons why the start needs consent, as the checks have found them."""
        return tuple(f"{check.detail}." for check in self._preflight.checks if check.name == OWNERSHIP)

    def _confirmed(self, yes: bool | None) -> None:
        if yes and self._stage == READY:
            self._stage, self._since = STARTING, self.screen_state.now
            self.refresh_state()
            request = replace(self.request, run_id=self._run_id, agreed=bool(self._consent))
            self.in_background(partial(self._start, request))

    def _start(self, request: LaunchRequest) -> None:
        app = self.midstream
        try:
            run_id = self.midstream.actions.launch(request, _Reports(self))
        except MidstreamError as error:
            app.call_later(self._start_failed, error)
            return
        self.post_message(self.RunStarted(run_id))
        app.call_later(app.notify, f"{run_id} starts on {request.target}", markup=False)

    def on_launch_screen_launch_progress(self, event: LaunchProgress) -> None:
        if event.stays:
            self._reports.append(event.line)
        self._state = "" if event.stays else event.line
        self.refresh_state()

    def _start_failed(self, error: MidstreamError) -> None:
        """Show why the run could not be started.

        If the user has left the screen, a toast shows it.
        """
        if not self.is_attached:
            self.show_error(MidstreamError(f"{self._run_id} could not be started: {error.message}", error.hint))
            return
        self._stage, self._error = FAILED, error
        self.refresh_state()

    def on_launch_screen_run_started(self, event: RunStarted) -> None:
        self.when_in_front(partial(self._open_run, event.run_id))

    def _open_run(self, run_id: str) -> None:
        self.app.pop_screen()
        self.midstream.open_run(run_id, started=self._since)

    # ------------------------------------------------------------------------------------------ commands

    def action_previous(self) -> None:
        """Return to the form with its values."""
        if self._stage != STARTING:
            self._preflight.cancel()
            self.app.pop_screen()
            self.midstream.open_launch(self.request)

    def action_back(self) -> None:
        self._preflight.cancel()
        super().action_back()

    def action_copy(self) -> None:
        self.app.copy_to_clipboard(self._command)
        self.notify("copied (if the terminal supports OSC 52)")


class _Reports(Reporter):
    """Reports of a launch, shown on its screen."""

    def __init__(self, screen: LaunchScreen) -> None:
        self._screen = screen

    def __call__(self, line: str) -> None:
        self._screen.post_message(LaunchScreen.LaunchProgress(line, stays=True))

    def update(self, what: str, state: str, seconds_left: float | None = None) -> None:
        self._screen.post_message(LaunchScreen.LaunchProgress(state_line(what, state, seconds_left), stays=False))
