"""What all screens share: the frame, the world they show, the errors of their work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Static

from midstream.errors import MidstreamError
from midstream.migrate import model as migrate
from midstream.tui import palette
from midstream.tui.glyphs import Glyphs
from midstream.tui.screen_state import World
from midstream.tui.styled_text import Text
from midstream.tui.widgets.chrome import Breadcrumbs, Hints
from midstream.watch import snapshot as watch

if TYPE_CHECKING:
    from midstream.tui.app import MidstreamApp


SOON = 0.02  # seconds


class MidstreamScreen(Screen[None]):
    """A screen under breadcrumbs and above the hint line. ``SCOPE`` is its name in the command table.

    Its parts are made in ``body``; ``show`` is called with the world whenever that has changed, at most four times a
    second, and when the screen comes to the front.
    """

    SCOPE = ""
    _ready = False  # its parts are there
    _lines: dict[str, int]  # text -> its lines
    _reading: Timer | None = None  # until long curves are read on

    @property
    def midstream(self) -> MidstreamApp:
        from midstream.tui.app import MidstreamApp

        return cast(MidstreamApp, self.app)

    @property
    def glyphs(self) -> Glyphs:
        return self.midstream.glyphs

    @property
    def world(self) -> World:
        return self.midstream.world

    def __init__(self) -> None:
        super().__init__()
        self._lines = {}

    def compose(self) -> ComposeResult:
        yield Breadcrumbs(self.glyphs)
        yield from self.body()
        yield Hints(self.SCOPE)

    def body(self) -> ComposeResult:
        raise NotImplementedError

    def show(self, world: World) -> None:
        raise NotImplementedError

    def crumbs(self) -> tuple[str, ...]:
        raise NotImplementedError

    def refresh_world(self) -> None:
        """Show the present world."""
        if self._ready:
            self.query_one(Breadcrumbs).show(self.crumbs(), self._fleet_state(self.world))
            self.midstream.book.begin()
            self.show(self.world)
            self.read_on()

    def read_on(self) -> None:
        """Where a curve in sight is so long that it is taken in by and by: go on soon, after keys that wait."""
        if self.midstream.book.behind and self._reading is None:
            self._reading = self.set_timer(SOON, self._read_on)

    def _read_on(self) -> None:
        self._reading = None
        if self.midstream.front is self:
            self.refresh_world()

    def put(self, selector: str, text: Text) -> None:
        """Show a text whose lines are not folded. The screen is laid out anew only where their number has changed."""
        count = text.plain.count("\n")
        self.query_one(selector, Static).update(text, layout=count != self._lines.get(selector))
        self._lines[selector] = count

    def on_mount(self) -> None:
        """Textual calls this after the subclass' own."""
        self._ready = True
        self.refresh_world()

    def on_screen_resume(self) -> None:
        self.refresh_world()

    def action_back(self) -> None:
        self.app.pop_screen()

    def action_help(self) -> None:
        from midstream.tui.screens.dialogs.help import HelpScreen

        self.app.push_screen(HelpScreen(self.SCOPE))

    def refused(self) -> bool:
        """Whether --readonly stands against it; says so."""
        if self.midstream.readonly:
            self.notify("--readonly: this screen changes nothing", severity="warning")
        return self.midstream.readonly

    def say(self, error: MidstreamError) -> None:
        """An error as a toast: what is wrong, and what to do."""
        self.notify(error.hint or "", title=error.message, severity="error", timeout=12, markup=False)

    def in_background(self, work: Callable[[], object]) -> None:
        """Begin work that blocks. What it raises is said on the screen."""
        self.midstream.background.run(work, self.failed)

    def failed(self, error: Exception) -> None:
        if isinstance(error, MidstreamError):
            self.say(error)
        else:
            self.notify(
                f"{type(error).__name__}: {error}", title="midstream failed here", severity="error", markup=False
            )

    def _fleet_state(self, world: World) -> Text:
        """``● 3 live  ✗ 1 down``, and what mode the screen is in."""
        text = Text(no_wrap=True)
        links = [host.link for host in world.snapshot.hosts]
        glyphs = self.glyphs
        for link, sign, colour in (
            (watch.LIVE, glyphs.running, palette.GOOD),
            (watch.CONNECTING, glyphs.busy, palette.WAIT),
            (watch.STALE, glyphs.stale, palette.WAIT),
            (watch.DOWN, glyphs.failed, palette.BAD),
        ):
            if count := links.count(link):
                text.append(f"{sign} {count} {link}  ", colour)
        if moving := sum(view.state == migrate.RUNNING for view in world.migrations):
            text.append(f"{glyphs.now} {moving} moving  ", palette.ACCENT)
        if waiting := sum(view.open and view.state != migrate.RUNNING for view in world.migrations):
            text.append(f"{glyphs.busy} {waiting} interrupted  ", palette.WAIT)
        if self.midstream.readonly:
            text.append("read-only  ", palette.WAIT)
        return text
