"""Application that follows the fleet: refresh loop, toasts, migration journals."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from textual.message import Message

from midstream.tui.base_app import BaseApp
from midstream.tui.pause_limiter import PauseLimiter
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.state import notifications
from midstream.tui.state.screen_state import ScreenState

if TYPE_CHECKING:
    from midstream.migrate.journal.migration_view import MigrationView
    from midstream.migrate.journal.request import Request
    from midstream.operations.alerts import Alerts

REPAINT_INTERVAL = 0.25  # seconds: the shortest time between repaints, however often hosts report
REPAINT_SHARE = 0.1  # of the processor's time, which repaints may take where the fleet is so large
TICK_INTERVAL = 1.0  # seconds after which ages are repainted without any change
MAX_TOASTS = 3  # toasts shown at a time
COSTS_INTERVAL = 60.0  # seconds between two reads of costs, while a list shows them
ALERT_INTERVAL = 2.0  # seconds between two looks for alerts


class RefreshingApp(BaseApp, inherit_bindings=False):
    """Shows the newest state of the fleet on the screen in front."""

    _pause_limiter: PauseLimiter | None = None
    _changed = True  # since the last repaint
    _painted = 0.0  # moment of the last repaint
    _paint_seconds = 0.0  # processor time of the last repaint
    _reading = False  # the migrations' journals are being read
    _opened = False  # the first frame is shown, and the fleet is opened: actions may be called
    _reading_facts = False  # costs or configurations are being read
    _costs_due = 0.0  # moment from which on costs are read again
    _reported_error = ""
    _alerts: Alerts | None = None
    _alerted = 0.0  # moment of the last look for alerts
    _unsubscribe: Callable[[], object] | None = None

    class MigrationsRead(Message):
        """The migrations' directories were read."""

        def __init__(self, migrations: tuple[MigrationView, ...]) -> None:
            super().__init__()
            self.migrations = migrations

    def follow(self) -> None:
        """Show the state of the source from now on."""
        self._unsubscribe = self.source.subscribe(self._source_changed)
        self.set_interval(REPAINT_INTERVAL, self._repaint)

    def unfollow(self) -> None:
        """End what `follow` began."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    @abstractmethod
    def resume_wizard(self, request: Request) -> None:
        """Open the wizard with ``request`` once run and target answer."""

    def _source_changed(self, *_: object) -> None:
        """Note a change. Called on any thread, at any rate; `_repaint` reads the snapshot."""
        self._changed = True

    def _repaint(self) -> None:
        if self._pause_limiter is not None:
            self._pause_limiter.settle()
        rested = time.monotonic() - self._painted
        if rested < TICK_INTERVAL and self._pause_limiter is not None and not self._pause_limiter.between_keys:
            return  # the next key does not wait for this repaint
        if rested >= (0.0 if self._changed else TICK_INTERVAL) and rested >= self._paint_seconds / REPAINT_SHARE:
            self.publish()

    def publish(self) -> None:
        """Read the newest snapshot and show it."""
        if not self.is_running:  # on shutdown the screens are being removed
            return
        self._changed = False
        self._painted, began = time.monotonic(), time.thread_time()
        before = self.screen_state
        self.screen_state = ScreenState(self.source.snapshot(), before.migrations, self.clock(), self.facts)
        self._notify_changes(before)
        self._send_alerts()
        if (front := self.front_screen) is not None:
            front.refresh_state()
        if self.request is not None:
            self.resume_wizard(self.request)
        self._read_facts()
        self._paint_seconds = time.thread_time() - began

    def _read_facts(self) -> None:
        """Read in the background what lists show beyond the reports, one read at a time."""
        costs = self.facts.costs_named and time.monotonic() >= self._costs_due
        if not self._opened or self._reading_facts or not (costs or self.facts.due):
            return
        self._reading_facts = True
        if costs:
            self.facts.costs_named = False  # a list that still shows them names them again
            self._costs_due = time.monotonic() + COSTS_INTERVAL

        def read() -> None:
            try:
                self.actions.read_facts(self.facts, costs=costs)
            finally:
                self._reading_facts = False
                self._changed = True

        self.background.run(read, self.log)

    def _notify_changes(self, before: ScreenState) -> None:
        """Show toasts for changes, at most `MAX_TOASTS`.

        A fleet of 500 hosts would cover the screen with them.
        """
        from midstream.terminal_alert import alert

        shown = self.front_screen.migration if self.front_screen is not None else ""
        changes = notifications.between(before, self.screen_state)
        for item in changes:
            if item.alert:
                self.background.run(
                    lambda text=item.text: self.call_later(self._alert, alert(text)), self._alert_failed
                )
        items = [item for item in changes if not item.migration or item.migration != shown]
        for item in items[:MAX_TOASTS]:
            self.notify(item.text, severity=item.severity, markup=False)
        if len(items) > MAX_TOASTS:
            self.notify(f"and {len(items) - MAX_TOASTS} more")

    def _send_alerts(self) -> None:
        """Send alerts to the receivers of the fleet file, if it has any."""
        if not self._opened or not self.actions.has_receivers() or time.monotonic() - self._alerted < ALERT_INTERVAL:
            return
        self._alerted = time.monotonic()
        if self._alerts is None:
            from midstream.operations.alerts import Alerts

            self._alerts = Alerts()
        for alert in self._alerts.of(self.screen_state.snapshot):
            self.background.run(partial(self.actions.send_alert, alert), self._alert_failed)

    def _alert(self, written: str) -> None:
        """Write an alert to the terminal, between two frames."""
        if self._driver is not None and not self.is_headless:
            self._driver.write(written)

    def _alert_failed(self, error: Exception) -> None:
        self.log(error)  # an alert is a convenience

    @property
    def front_screen(self) -> MidstreamScreen | None:
        """The screen in front, or behind a dialog."""
        return next((screen for screen in reversed(self.screen_stack) if isinstance(screen, MidstreamScreen)), None)

    def read_migrations(self) -> None:
        """Read the migrations' directories in the background, one read at a time."""
        if not self._reading:
            self._reading = True
            self.background.run(self._read_migrations, self._migrations_unreadable)

    def _read_migrations(self) -> None:
        try:
            self.post_message(self.MigrationsRead(self.actions.migrations()))
        finally:
            self._reading = False

    def _migrations_unreadable(self, error: Exception) -> None:
        front = self.front_screen
        if front is not None and str(error) != self._reported_error:  # read twice a second, reported once
            self._reported_error = str(error)
            front.failed(error)

    def on_refreshing_app_migrations_read(self, event: MigrationsRead) -> None:
        if event.migrations != self.screen_state.migrations:
            before = self.screen_state
            self.screen_state = ScreenState(before.snapshot, event.migrations, before.now, self.facts)
            self._notify_changes(before)
            self.publish()
