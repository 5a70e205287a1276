"""Base class of the screens: frame, state and errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import events
from textual.app import ComposeResult
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Input, Static

from midstream.errors import MidstreamError
from midstream.migrate.journal import migration_state
from midstream.tui.base_app import SHORT_SCREEN, BaseApp, app_of
from midstream.tui.state.screen_state import ScreenState
from midstream.tui.state.selection import Selection
from midstream.tui.style import palette
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.chrome import Breadcrumbs, Hints
from midstream.watch import snapshot as watch

CONTINUE_DELAY = 0.02  # seconds; keys are handled in between


class MidstreamScreen(Screen[None]):
    """Screen between breadcrumbs and hint line.

    ``SCOPE`` is its name in the command table.

    ``body`` yields its widgets. ``show`` is called after a change of the state, at most four times a second, and when
    the screen comes to the front.
    """

    SCOPE = ""
    migration = ""  # id of the migration that the screen shows
    _view = ""  # the view in front, where the screen has several
    _ready = False  # its widgets are mounted
    _lines: dict[str, int]  # selector -> number of lines of its text
    _reading: Timer | None = None  # pending refresh of incomplete curves
    _postponed: Callable[[], object] | None = None  # called once no dialog is in front

    @property
    def midstream(self) -> BaseApp:
        """The application."""
        return app_of(self)

    @property
    def glyphs(self) -> Glyphs:
        return self.midstream.glyphs

    @property
    def screen_state(self) -> ScreenState:
        return self.midstream.screen_state

    def __init__(self) -> None:
        super().__init__()
        self._lines = {}

    def compose(self) -> ComposeResult:
        yield Breadcrumbs(self.glyphs)
        yield from self.body()
        yield Hints(self.SCOPE, readonly=self.midstream.readonly)

    def body(self) -> ComposeResult:
        raise NotImplementedError

    def show(self, screen_state: ScreenState) -> None:
        raise NotImplementedError

    def crumbs(self) -> tuple[str, ...]:
        raise NotImplementedError

    def refresh_state(self) -> None:
        """Show the current state."""
        if self._ready:
            states = (self._fleet_state(self.screen_state, words) for words in (True, False))
            self.query_one(Breadcrumbs).show(self.crumbs(), *states)
            self.midstream.series_cache.begin()
            self.show(self.screen_state)
            self._follow_focus()
            self.continue_reading()

    def on_descendant_focus(self) -> None:
        if self._ready:
            self._follow_focus()

    def _follow_focus(self) -> None:
        """Show the keys of the view and of the widget that has the focus."""
        parts: Sequence[str] = getattr(self.focused, "SCOPES", ())
        self.query_one(Hints).follow(self._view, parts, typing=isinstance(self.focused, Input))

    def continue_reading(self) -> None:
        """Schedule another refresh if a visible curve is incomplete."""
        if self.midstream.series_cache.behind and self._reading is None:
            self._reading = self.set_timer(CONTINUE_DELAY, self._continue_reading)

    def _continue_reading(self) -> None:
        self._reading = None
        if self.midstream.front_screen is self:
            self.refresh_state()

    def update_text(self, selector: str, text: Text) -> None:
        """Show an unwrapped text.

        The layout is updated only if the number of lines of the text has changed.
        """
        count = text.plain.count("\n")
        self.query_one(selector, Static).update(text, layout=count != self._lines.get(selector))
        self._lines[selector] = count

    def on_mount(self) -> None:
        """Show the state. Textual calls this after the handler of the subclass."""
        self._ready = True
        self.refresh_state()
        # Again after the first layout: Textual sometimes keeps the height of a text that changes before it.
        self.call_after_refresh(self.refresh_state)

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.height < SHORT_SCREEN, "-short")

    def on_screen_resume(self) -> None:
        if self._postponed is not None and self.app.screen is self:
            postponed, self._postponed = self._postponed, None
            postponed()
        else:
            self.refresh_state()

    def when_in_front(self, action: Callable[[], object]) -> None:
        """Call ``action`` when no dialog is in front: now, or once the user has closed it.

        A dialog that another screen replaces has no answer: the connection that prompted would wait for ever.
        """
        if self.app.screen is self:
            action()
        else:
            self._postponed = action

    def action_back(self) -> None:
        self.app.pop_screen()

    def selection(self) -> Selection | None:
        """Return what is selected on the screen."""
        return None

    def action_document(self) -> None:
        """Show all that is known of the selection."""
        from midstream.tui.screens.dialogs.document import DocumentScreen

        selected = self.selection()
        if selected is None:
            self.notify("nothing is selected")
        else:
            self.app.push_screen(DocumentScreen(selected))

    def copy_command(self, *words: str) -> None:
        """Copy the command line of midstream with these words."""
        line = self.midstream.actions.command(*words)
        self.app.copy_to_clipboard(line)
        self.notify(f"copied: {line}", markup=False)

    def action_copy_name(self) -> None:
        """Copy the name of the selection."""
        selected = self.selection()
        if selected is None:
            self.notify("nothing is selected")
        else:
            self.app.copy_to_clipboard(selected.name)
            self.notify(f"copied: {selected.name}", markup=False)

    def action_help(self) -> None:
        from midstream.tui.screens.dialogs.help import HelpScreen

        self.app.push_screen(HelpScreen(self.SCOPE, self._view, getattr(self.focused, "SCOPES", ())))

    def refuse_readonly(self) -> bool:
        """Return True under --readonly, with a toast."""
        if self.midstream.readonly:
            self.notify("--readonly: changes are refused", severity="warning")
        return self.midstream.readonly

    def show_error(self, error: MidstreamError) -> None:
        """Show an error and its hint as a toast."""
        self.notify(error.hint or "", title=error.message, severity="error", timeout=12, markup=False)

    def in_background(self, work: Callable[[], object]) -> None:
        """Run blocking work in the background; show its error as a toast."""
        self.midstream.background.run(work, self.failed)

    def failed(self, error: Exception) -> None:
        if isinstance(error, MidstreamError):
            self.show_error(error)
        else:
            self.notify(f"{type(error).__name__}: {error}", title="internal error", severity="error", markup=False)

    def _fleet_state(self, screen_state: ScreenState, words: bool) -> Text:
        """Return ``● 3 live  ✗ 1 down``, open migrations and the mode of the screen.

        Without words it is ``● 3  ✗ 1``.
        """
        text = Text(no_wrap=True)
        links = [host.link for host in screen_state.snapshot.hosts]
        glyphs = self.glyphs
        for link, sign, colour in (
            (watch.LIVE, glyphs.running, palette.GOOD),
            (watch.CONNECTING, glyphs.busy, palette.WAIT),
            (watch.STALE, glyphs.stale, palette.WAIT),
            (watch.DOWN, glyphs.failed, palette.BAD),
        ):
            if count := links.count(link):
                text.append(f"{sign} {count} {link}  " if words else f"{sign}{count} ", colour)
        if running := sum(view.state == migration_state.RUNNING for view in screen_state.migrations):
            text.append(f"{glyphs.now} {running} migrating  " if words else f"{glyphs.now}{running} ", palette.ACCENT)
        if interrupted := sum(view.open and view.state != migration_state.RUNNING for view in screen_state.migrations):
            text.append(
                f"{glyphs.busy} {interrupted} interrupted  " if words else f"{glyphs.busy}{interrupted} ", palette.WAIT
            )
        if self.midstream.readonly:
            text.append("read-only  " if words else "ro ", palette.WAIT)
        return text
