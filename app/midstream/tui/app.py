"""The terminal UI: the fleet on a screen, and the moves that one can make from there."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from textual import events
from textual.app import App
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.filter import LineFilter
from textual.message import Message
from textual.screen import Screen

from midstream.errors import MidstreamError
from midstream.migrate import model
from midstream.migrate.model import MigrationView, Request
from midstream.printable import printable
from midstream.tui import commands, notifications, palette
from midstream.tui.actions import Actions, FleetActions
from midstream.tui.background import Background
from midstream.tui.glyphs import ASCII, UNICODE
from midstream.tui.responsiveness import Pauses
from midstream.tui.saved_layout import Layout
from midstream.tui.screen_state import Source, World
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.fleet.add_hosts import RELOAD
from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.screens.fleet.table_rows import utilisation
from midstream.tui.series_cache import SeriesCache
from midstream.tui.shutdown import Ending
from midstream.tui.styled_text import NoControls
from midstream.tui.widgets.curve import CurveView
from midstream.tui.widgets.log_pane import LogPane
from midstream.tui.widgets.table import Column, Row
from midstream.watch.snapshot import LIVE

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import Hosts

REPAINT = 0.25  # seconds between repaints, at least, however often hosts report
TICK = 1.0  # seconds after which ages are painted anew without any change
HISTORY = 120  # looks at a host that are remembered
TOLD = 3  # toasts at once
ROWS = 40_000  # of long runs, taken into curves at a time: some milliseconds
MIGRATIONS = 0.5  # seconds between looks at the migrations' journals


class TableCommands(Provider):
    """The command table, searched by name."""

    def _found(self) -> list[tuple[commands.Command, Callable]]:
        if not isinstance(self.screen, MidstreamScreen):
            return []
        table = commands.of(self.screen.SCOPE, commands.EVERYWHERE)
        return [(command, partial(self.screen.run_action, command.action)) for command in table]

    async def discover(self) -> Hits:
        for command, run in self._found():
            yield DiscoveryHit(command.name, run, help=f"{commands.key_name(command.keys[0])}  {command.description}")

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for command, run in self._found():
            score = matcher.match(f"{command.name} {command.description}")
            if score > 0:
                keys = commands.key_name(command.keys[0])
                yield Hit(score, matcher.highlight(command.name), run, help=f"{keys}  {command.description}")


class MidstreamApp(App[int], inherit_bindings=False):
    """Screens over a source of snapshots. ``clock`` gives UTC seconds."""

    CSS_PATH = "midstream.tcss"
    TITLE = "midstream"
    COMMANDS: ClassVar = {TableCommands}
    ENABLE_COMMAND_PALETTE = True

    class MigrationsRead(Message):
        """The migrations' directories were read."""

        def __init__(self, migrations: tuple[MigrationView, ...]) -> None:
            super().__init__()
            self.migrations = migrations

    def __init__(
        self,
        source: Source,
        actions: Actions,
        *,
        readonly: bool = False,
        ascii_only: bool = False,
        start_run: str | None = None,
        move: Request | None = None,
        demo: bool = False,
        clock: Callable[[], float] = time.time,
        layout: Layout | None = None,
    ) -> None:
        super().__init__()
        self._no_controls = NoControls()
        self.kept = layout or Layout()
        self.book = SeriesCache(ROWS)
        self._pauses: Pauses | None = None
        self.history: dict[str, deque[float]] = {}  # host -> what its accelerators were busy, 0..1, over time
        self.source = source
        self.actions = actions
        self.background = Background(self)
        self.readonly = readonly
        self.glyphs = ASCII if ascii_only else UNICODE
        self.world = World(source.snapshot(), (), clock())
        self._clock = clock
        self._start_run = start_run
        self._demo = demo  # what runs ends with the screen
        self.moves = ""  # what is to become of moves under way, where that was asked
        self.move = move  # that the wizard is to go on with, here or once the app has begun anew
        self._changed = True
        self._painted = 0.0
        self._reading = False
        self._told = ""
        self._unsubscribe: Callable[[], object] | None = None
        for theme in palette.themes():
            self.register_theme(theme)
        self.use_theme(self.kept.theme)
        if ascii_only:
            self.add_class("-ascii")

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), self._no_controls]

    def notify(self, message: str, *, title: str = "", markup: bool = False, **options: Any) -> None:
        """Show a message; markup in it is never read, because hosts' words are in it."""
        super().notify(printable(message, "\n"), title=printable(title), markup=False, **options)

    def copy_to_clipboard(self, text: str) -> None:
        """Lines are meant for a shell: one that holds a line's end would be run as it is pasted."""
        super().copy_to_clipboard(printable(text))

    def get_default_screen(self) -> Screen:
        return FleetScreen()

    def on_mount(self) -> None:
        self._unsubscribe = self.source.subscribe(self._source_changed)
        if self._start_run:
            from midstream.tui.screens.run.run_screen import RunScreen

            self.push_screen(RunScreen(self._start_run))
        self.set_interval(REPAINT, self._repaint)
        self.set_interval(MIGRATIONS, self.read_migrations)
        self.read_migrations()

    def run_alone(self) -> None:
        """Run in a process that is there for it: no pause of the interpreter is to be felt."""
        with Ending(self), Pauses() as self._pauses:
            self.run()

    async def on_event(self, event: events.Event) -> None:
        if self._pauses is not None and isinstance(event, events.InputEvent):
            self._pauses.touched()
        await super().on_event(event)

    def on_unmount(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        self.kept.save()

    # ------------------------------------------------------------------------------------------ the world

    def _source_changed(self, *_: object) -> None:
        """Called on any thread, as often as it likes: it only leaves a mark."""
        self._changed = True

    def _repaint(self) -> None:
        if self._pauses is not None:
            self._pauses.settle()
        if self._changed or time.monotonic() - self._painted >= TICK:
            self.publish()

    def publish(self) -> None:
        """Take the newest snapshot, and show it."""
        if not self.is_running:  # going down: the screens are being taken apart
            return
        self._changed = False
        self._painted = time.monotonic()
        before = self.world
        self.world = World(self.source.snapshot(), before.migrations, self._clock())
        self._remember(before)
        self._tell(before)
        if (front := self.front) is not None:
            front.refresh_world()
        if self.move is not None:
            self._go_on(self.move)

    def _remember(self, before: World) -> None:
        known = set(map(id, before.snapshot.hosts))
        for host in self.world.snapshot.hosts:
            if id(host) not in known and (busy := utilisation(host)) is not None:
                self.history.setdefault(host.name, deque(maxlen=HISTORY)).append(busy)

    def _tell(self, before: World) -> None:
        """Toasts, a few at a time: who looks at five hundred hosts must not be buried."""
        looked_at = getattr(self.front, "migration", "")
        items = [
            item for item in notifications.between(before, self.world) if not item.about or item.about != looked_at
        ]
        for item in items[:TOLD]:
            self.notify(item.text, severity=item.severity, markup=False)  # type: ignore[arg-type]  # one of three
        if len(items) > TOLD:
            self.notify(f"and {len(items) - TOLD} more")

    @property
    def front(self) -> MidstreamScreen | None:
        """The screen that is in front, or behind a dialog."""
        return next((screen for screen in reversed(self.screen_stack) if isinstance(screen, MidstreamScreen)), None)

    def read_migrations(self) -> None:
        """Look at the migrations' directories, in the background, one look at a time."""
        if not self._reading:
            self._reading = True
            self.background.run(self._read_migrations, self._migrations_unread)

    def _read_migrations(self) -> None:
        try:
            self.post_message(self.MigrationsRead(self.actions.migrations()))
        finally:
            self._reading = False

    def _migrations_unread(self, error: Exception) -> None:
        front = self.front
        if front is not None and str(error) != self._told:  # it is looked for twice a second, and said once
            self._told = str(error)
            front.failed(error)

    def on_midstream_app_migrations_read(self, event: MigrationsRead) -> None:
        if event.migrations != self.world.migrations:
            before = self.world
            self.world = World(before.snapshot, event.migrations, before.now)
            self._tell(before)
            self.publish()

    # ------------------------------------------------------------------------------------------ going places

    def begin_anew(self, move: Request | None = None) -> None:
        """End here, and begin with the fleet as it is now; the wizard goes on with ``move``."""
        self.move = move
        self.exit(RELOAD, return_code=RELOAD)

    def _go_on(self, move: Request) -> None:
        """The wizard again, as soon as run and target answer; not where a person has gone elsewhere meanwhile."""
        if self.return_value is not None:
            return
        if not isinstance(self.screen, FleetScreen):
            self.move = None
            return
        wanted = next((target.hosts for target in self.actions.targets() if target.name == move.target), ())
        links = {host.name: host.link for host in self.world.snapshot.hosts}
        if self.world.snapshot.copies(move.run_id) and wanted and all(links.get(host) == LIVE for host in wanted):
            self.move = None
            self.open_wizard(move.run_id, move)

    def open_wizard(self, run_id: str, begun: Request | None = None) -> None:
        """The wizard for a run; the move that is under way instead, where there is one."""
        from midstream.tui.screens.migration.migration_screen import MigrationScreen
        from midstream.tui.screens.migration.wizard import WizardScreen

        under_way = next((view for view in self.world.migrations if view.open and view.plan.run_id == run_id), None)
        if under_way is not None:
            self.notify(f"{run_id} is being moved already", markup=False)
            self.push_screen(MigrationScreen(under_way.migration))
            return
        try:
            targets = self.actions.targets()
        except MidstreamError as error:
            self.notify(error.hint, title=error.message, severity="error", markup=False)
            return
        self.push_screen(WizardScreen(run_id, targets, begun))

    def action_command_palette(self) -> None:
        if isinstance(self.screen, CommandPalette):
            return
        self.push_screen(CommandPalette(placeholder="search for a command"))
        if self.glyphs is ASCII:
            self.call_after_refresh(self._plain_palette)

    def _plain_palette(self) -> None:
        """Textual's palette draws a lens and lines beyond ASCII, and the style sheet does not reach it."""
        self.screen.query("SearchIcon").set(display=False)
        for widget in self.screen.query("#--input, CommandList"):
            widget.styles.border = ("none", "transparent")

    def use_theme(self, name: str) -> None:
        """Draw in other colours, at once."""
        palette.use(name)
        self.kept.theme = name if name in palette.PALETTES else palette.DEFAULT
        self.theme = self.kept.theme
        if self.is_running:
            self.kept.save()
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

        lines = [
            Row(name, (name, (self.glyphs.full * 2, colours.GOOD), (self.glyphs.full * 2, colours.BAD)))
            for name, colours in palette.PALETTES.items()
        ]

        def chosen(name: Hashable) -> None:
            if name is not None:
                self.use_theme(str(name))

        columns = (Column("THEME"), Column("GOOD"), Column("BAD"))
        self.push_screen(ChooseScreen("Theme", columns, lines, selected=self.kept.theme), chosen)

    def action_picture(self) -> None:
        folder = self.kept.file.parent if self.kept.file else Path.cwd()
        path = folder / f"screen-{time.strftime('%Y%m%d-%H%M%S')}.svg"
        try:
            path.write_text(self.export_screenshot(title="midstream"))
        except OSError as error:
            self.notify(f"{path} cannot be written: {error.strerror}", severity="error", markup=False)
            return
        self.notify(f"saved: {path}", markup=False)

    async def action_quit(self) -> None:
        under_way = next((view for view in self.world.migrations if view.state == model.RUNNING), None)
        if not self._demo or under_way is None:
            self.exit(0)
            return
        from midstream.tui.screens.dialogs.quit import QuitScreen

        def answered(answer: str | None) -> None:
            if answer:
                self.moves = answer
                self.exit(0)

        target = self.world.run(under_way.plan.target_host, under_way.plan.run_id)
        given_up = under_way.steps_given_up(target.step if target else None)
        self.push_screen(QuitScreen(under_way, given_up=given_up, readonly=self.readonly), answered)


class Ended(NamedTuple):
    """How a person left: the exit code, RELOAD where the fleet is another now; then a move to go on with, or None;
    then what is to become of moves under way, in a demo where that was asked."""

    code: int
    move: Request | None
    moves: str = ""


def run_tui(
    fleet: Fleet,
    hosts: Hosts,
    *,
    readonly: bool = False,
    ascii_only: bool = False,
    start_run: str | None = None,
    record: str | None = None,
    move: Request | None = None,
    demo: bool = False,
) -> Ended:
    """Watch the fleet on a screen until a person quits. ``start_run`` is opened first. ``record``: a file that the
    session is written to. ``move``: what the wizard goes on with. ``demo``: what runs ends with the screen."""
    from midstream.hosts.prompter import PROMPTS
    from midstream.migrate.execution.migration_directory import state_directory
    from midstream.tui.dialog_prompter import DialogPrompter
    from midstream.tui.recording import Recorder
    from midstream.watch.watcher import Watch

    recorder = Recorder(record) if record else None
    watch = Watch(fleet, hosts, interval=1.0, heard=recorder.heard if recorder else None)
    actions = FleetActions(fleet, hosts)
    app = MidstreamApp(
        watch,
        recorder.over(actions) if recorder else actions,
        readonly=readonly,
        ascii_only=ascii_only,
        start_run=start_run,
        move=move,
        demo=demo,
        layout=Layout.load(state_directory() / "screen.json"),
    )
    person = DialogPrompter(app)
    with PROMPTS.of(person):  # from the first host that is reached to the last: nobody asks beside the screen
        watch.start()
        try:
            app.run_alone()
        finally:
            person.leave()
            watch.stop()
            if recorder:
                recorder.close()
    if app.return_code == 0 and not demo:
        print(f"midstream: {_goes_on(app.world)}", file=sys.stderr)
    return Ended(app.return_code or 0, app.move, app.moves)


def _goes_on(world: World) -> str:
    """What a person leaves running."""
    under_way = [view.migration for view in world.migrations if view.state == model.RUNNING]
    follow = f"; midstream --continue {under_way[0]} follows the move" if under_way else ""
    return f"runs and migrations go on; midstream --status shows them{follow}"


def replay_tui(file: str, *, ascii_only: bool = False, speed: float = 1.0) -> int:
    """Show a recorded session as it was. Nothing can be done from there but looking."""
    from midstream.tui.recording import Replay

    replay = Replay.load(file, speed)
    app = MidstreamApp(replay, replay, readonly=True, ascii_only=ascii_only, clock=replay.clock)
    replay.play()
    try:
        app.run_alone()
    finally:
        replay.stop()
    return app.return_code or 0
