"""Terminal UI: the application, and the ways between its screens."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.command import CommandPalette
from textual.filter import LineFilter
from textual.screen import Screen

from midstream.errors import MidstreamError
from midstream.migrate.journal import migration_state
from midstream.printable import printable
from midstream.tui.pause_limiter import PauseLimiter
from midstream.tui.refreshing_app import RefreshingApp
from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.shutdown import Shutdown
from midstream.tui.state.saved_layout import SavedLayout
from midstream.tui.state.screen_state import SnapshotSource
from midstream.tui.style import palette
from midstream.tui.style.glyphs import ASCII
from midstream.tui.style.styled_text import ControlFilter
from midstream.tui.style.terminal_colors import TerminalColors
from midstream.tui.table_commands import TableCommands
from midstream.watch.snapshot import LIVE

if TYPE_CHECKING:
    from midstream.launch.launch_request import LaunchRequest
    from midstream.migrate.journal.request import Request
    from midstream.tui.actions import Actions

MIGRATIONS_INTERVAL = 0.5  # seconds between reads of the migrations' journals
DEMO_GUIDE = "Demo: press m to migrate this run to other devices; ? lists the keys, q ends it"


class MidstreamApp(RefreshingApp, inherit_bindings=False):
    """Screens over a source of snapshots."""

    CSS_PATH = "midstream.tcss"
    TITLE = "midstream"
    COMMANDS: ClassVar = {TableCommands}
    ENABLE_COMMAND_PALETTE = True

    def __init__(
        self,
        source: SnapshotSource,
        actions: Actions,
        *,
        readonly: bool = False,
        ascii_only: bool = False,
        start_run: str | None = None,
        request: Request | None = None,
        demo: bool = False,
        clock: Callable[[], float] = time.time,
        layout: SavedLayout | None = None,
        after_first_frame: Callable[[], object] | None = None,
    ) -> None:
        """Create the application.

        Args:
            source: Source of fleet snapshots.
            actions: Actions on the fleet that screens may start.
            readonly: Refuse every action that changes something.
            ascii_only: Draw with ASCII glyphs only.
            start_run: Run whose screen is opened first.
            request: Migration request that the wizard opens with once run and target answer.
            demo: Runs and migrations end with the application.
            clock: Returns UTC seconds.
            layout: Layout saved by an earlier session.
            after_first_frame: Called once, in the background, when the first frame is on the terminal.
        """
        super().__init__(
            source,
            actions,
            readonly=readonly,
            ascii_only=ascii_only,
            request=request,
            clock=clock,
            layout=layout,
        )
        self._control_filter = ControlFilter()
        self._terminal_colors = TerminalColors(self.console.color_system or "")
        self._start_run = start_run
        self._after_first_frame = after_first_frame
        self._demo = demo
        self.quit_choice = ""  # answer of the quit dialog: what to do with running migrations
        for theme in palette.themes():
            self.register_theme(theme)
        self.use_theme(self.saved_layout.theme)
        self.stylesheet.set_variables(self.get_css_variables())  # of the theme, for the first parse of the style sheets
        self._first_theme = self.theme
        if ascii_only:
            self.add_class("-ascii")

    def refresh_css(self, animate: bool = True) -> None:
        """Parse the style sheets again, except for the first frame.

        The first parse had the theme of the saved layout already.
        """
        parsed, self._first_theme = self._first_theme == self.theme, ""
        if not parsed:
            super().refresh_css(animate=animate)

    def get_line_filters(self) -> Sequence[LineFilter]:
        added = (self._control_filter, self._terminal_colors)
        return [filter for filter in (*super().get_line_filters(), *added) if filter.enabled]

    def notify(self, message: str, *, title: str = "", markup: bool = False, **options: Any) -> None:
        """Show a toast. ``markup`` is ignored: messages contain text from hosts."""
        super().notify(printable(message, "\n"), title=printable(title), markup=False, **options)

    def copy_to_clipboard(self, text: str) -> None:
        """Copy with newlines escaped: a shell would run a pasted line at each newline."""
        self._copy(printable(text))

    def copy_lines(self, text: str) -> None:
        self._copy(printable(text, "\n\t"))

    def _copy(self, text: str) -> None:
        """Copy to the terminal's clipboard (OSC 52), and to the buffer of an outer tmux."""
        from midstream.tui import tmux_buffer

        super().copy_to_clipboard(text)
        self.background.run(partial(tmux_buffer.copy, text), lambda _: None)

    def get_default_screen(self) -> Screen:
        return FleetScreen()

    def on_mount(self) -> None:
        self.app_resume_signal.subscribe(self, self._draw_again)
        self.follow()
        if self._start_run:
            from midstream.tui.screens.run_screen import RunScreen

            self.push_screen(RunScreen(self._start_run, guide=DEMO_GUIDE if self._demo else ""))
        self.call_after_refresh(self._begin)

    def _draw_again(self, _: object) -> None:
        """Draw all lines: after ctrl+z and fg the terminal has none of them."""
        self.refresh(layout=True)

    def _begin(self) -> None:
        """Start what the first frame does without, in the background."""
        gc.enable()
        self.read_migrations()
        self.set_interval(MIGRATIONS_INTERVAL, self.read_migrations)
        self.background.run(self._after_frame, self._start_failed)

    def _after_frame(self) -> None:
        if self._after_first_frame is not None:
            self._after_first_frame()
        self._opened = True
        from midstream.tui.screens import preload

        preload.load()
        self.facts.labels = self.actions.labels()

    def _start_failed(self, error: Exception) -> None:
        if (front := self.front_screen) is not None:
            front.failed(error)

    def run_alone(self) -> None:
        """Run as the main task of this process.

        Install signal handlers and limit interpreter pauses.
        """
        with Shutdown(self), PauseLimiter() as self._pause_limiter:
            self.run()

    async def on_event(self, event: events.Event) -> None:
        if self._pause_limiter is not None and isinstance(event, events.InputEvent):
            self._pause_limiter.touched()
        await super().on_event(event)

    def on_unmount(self) -> None:
        self.unfollow()
        self.saved_layout.save()

    # ------------------------------------------------------------------------------------------ navigation

    def resume_wizard(self, request: Request) -> None:
        """Open the wizard with ``request`` once run and target answer.

        If the user opens another screen, the wizard is not opened.
        """
        if self.return_value is not None:
            return
        if not isinstance(self.screen, FleetScreen):
            self.request = None
            return
        targets = self.actions.targets()
        hosts = next((target.hosts for target in targets if target.name == request.target), ())
        links = {host.name: host.link for host in self.screen_state.snapshot.hosts}
        copies = self.screen_state.snapshot.copies(request.run_id)
        if copies and hosts and all(links.get(host) == LIVE for host in hosts):
            self.request = None
            self.open_wizard(request.run_id, request)

    def open_run(self, run_id: str, *, started: float | None = None) -> None:
        from midstream.tui.screens.run_screen import RunScreen

        behind = next(
            (screen for screen in self.screen_stack if isinstance(screen, RunScreen) and screen.run_id == run_id), None
        )
        if behind is None:
            self.push_screen(RunScreen(run_id, started=started))
            return
        while self.screen is not behind:  # esc leads back to where the run was opened, not to the same run
            self.pop_screen()
        behind.restarted(started)

    def open_launch(self, request: LaunchRequest) -> None:
        from midstream.tui.screens import launch_form

        front = self.front_screen
        if front is not None and request.config is not None:
            launch_form.ask_launch(front, request=request)
        elif front is not None:
            launch_form.ask_start_again(front, request)

    def open_wizard(self, run_id: str, request: Request | None = None) -> None:
        """Open the migration wizard for a run, or the run's open migration if it has one."""
        from midstream.tui.screens.migration_screen import MigrationScreen
        from midstream.tui.screens.wizard import WizardScreen

        migrations = self.screen_state.migrations
        under_way = next((view for view in migrations if view.open and view.plan.run_id == run_id), None)
        if under_way is not None:
            self.notify(f"{run_id} is already being migrated", markup=False)
            self.push_screen(MigrationScreen(under_way.migration))
            return
        try:
            targets = self.actions.targets()
        except MidstreamError as error:
            self.notify(error.hint, title=error.message, severity="error", markup=False)
            return
        self.push_screen(WizardScreen(run_id, targets, request))

    def action_command_line(self) -> None:
        from midstream.tui import command_line
        from midstream.tui.screens.dialogs.command_input import CommandInputScreen

        def chosen(action: Callable[[], object] | None) -> None:
            if action is not None:
                action()

        self.push_screen(
            CommandInputScreen(partial(command_line.complete, self), partial(command_line.read, self)), chosen
        )

    def action_command_palette(self) -> None:
        if isinstance(self.screen, CommandPalette):
            return
        self.push_screen(CommandPalette(placeholder="search for a command"))
        if self.glyphs is ASCII:
            self.call_after_refresh(self._plain_palette)

    def _plain_palette(self) -> None:
        """Remove non-ASCII glyphs from Textual's palette.

        The style sheet does not reach the palette.
        """
        self.screen.query("SearchIcon").set(display=False)
        for widget in self.screen.query("#--input, CommandList"):
            widget.styles.border = ("none", "transparent")

    def use_theme(self, name: str) -> None:
        """Switch to another theme and save the choice."""
        palette.use(name)
        self.saved_layout.theme = name if name in palette.PALETTES else palette.DEFAULT
        self.theme = self.saved_layout.theme
        if self.is_running:
            from midstream.tui.widgets.curve import CurveView
            from midstream.tui.widgets.log_pane import LogPane

            self.saved_layout.save()
            for screen in self.screen_stack:
                for widget in screen.walk_children():
                    if isinstance(widget, CurveView):
                        widget.see(widget.viewport)
                    elif isinstance(widget, LogPane):
                        widget.on_log_view_changed()
                    widget.refresh(layout=False)
            self.publish()

    def action_theme(self) -> None:
        from midstream.tui.screens.dialogs.choose import ChooseScreen
        from midstream.tui.widgets.table import Column, Row

        lines = [
            Row(name, (name, (self.glyphs.full * 2, colours.GOOD), (self.glyphs.full * 2, colours.BAD)))
            for name, colours in palette.PALETTES.items()
        ]

        def chosen(name: Hashable) -> None:
            self.use_theme(before if name is None else str(name))

        before = self.saved_layout.theme
        columns = (Column("THEME"), Column("GOOD"), Column("BAD"))
        dialog = ChooseScreen("Theme", columns, lines, selected=before, preview=lambda name: self.use_theme(str(name)))
        self.push_screen(dialog, chosen)

    def action_picture(self) -> None:
        folder = self.saved_layout.file.parent if self.saved_layout.file else Path.cwd()
        path = folder / f"screen-{time.strftime('%Y%m%d-%H%M%S')}.svg"
        try:
            path.write_text(self.export_screenshot(title="midstream"))
        except OSError as error:
            self.notify(f"{path} cannot be written: {error.strerror}", severity="error", markup=False)
            return
        self.notify(f"saved: {path}", markup=False)

    async def action_quit(self) -> None:
        migrations = self.screen_state.migrations
        running = next((view for view in migrations if view.state == migration_state.RUNNING), None)
        if not self._demo or running is None:
            self.exit(0)
            return
        from midstream.tui.screens.dialogs.quit import QuitScreen

        def answered(answer: str | None) -> None:
            if answer:
                self.quit_choice = answer
                self.exit(0)

        target = self.screen_state.run(running.plan.target_host, running.plan.run_id)
        discarded = running.steps_given_up(target.step if target else None)
        self.push_screen(QuitScreen(running, discarded_steps=discarded, readonly=self.readonly), answered)
