"""Application as screens and dialogs see it: state, services and navigation."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from textual.app import App
from textual.dom import DOMNode
from textual.screen import Screen

from midstream.listing.fleet_facts import FleetFacts
from midstream.tui.background import Background
from midstream.tui.state.saved_layout import SavedLayout
from midstream.tui.state.screen_state import ScreenState, SnapshotSource
from midstream.tui.state.series_cache import SeriesCache
from midstream.tui.style.glyphs import ASCII, UNICODE

if TYPE_CHECKING:
    from midstream.launch.launch_request import LaunchRequest
    from midstream.migrate.journal.request import Request
    from midstream.tui.actions import Actions
    from midstream.tui.state.system_curves import SystemCurves

RELOAD_EXIT_CODE = 75  # the caller reads the fleet file again and starts another application
SHORT_SCREEN = 20  # rows; a screen with fewer shows what is needed to act, and no empty lines
ROWS_PER_REFRESH = 80_000  # rows of long runs added to curves per refresh


class BaseApp(App[int], inherit_bindings=False):
    """State and services that screens use.

    `MidstreamApp` adds the screens and the refresh loop.
    """

    def __init__(
        self,
        source: SnapshotSource,
        actions: Actions,
        *,
        readonly: bool = False,
        ascii_only: bool = False,
        request: Request | None = None,
        clock: Callable[[], float] = time.time,
        layout: SavedLayout | None = None,
    ) -> None:
        """Create the application.

        Args:
            source: Source of fleet snapshots.
            actions: Actions on the fleet that screens may start.
            readonly: Refuse every action that changes something.
            ascii_only: Draw with ASCII glyphs only.
            request: Migration request that the wizard opens with, now or after `restart`.
            clock: Returns UTC seconds.
            layout: Layout saved by an earlier session; None starts with the defaults and saves nothing.
        """
        super().__init__()
        self.source = source
        self.actions = actions
        self.background = Background(self)
        self.readonly = readonly
        self.glyphs = ASCII if ascii_only else UNICODE
        self.clock = clock
        self.saved_layout = layout or SavedLayout()
        self.series_cache = SeriesCache(ROWS_PER_REFRESH)
        self.facts = FleetFacts()
        self.screen_state = ScreenState(source.snapshot(), (), clock(), self.facts)
        self.request = request

    @cached_property
    def system_curves(self) -> SystemCurves:
        """Series of the hosts' system metrics."""
        from midstream.tui.state.system_curves import SystemCurves

        return SystemCurves(self.series_cache)

    def restart(self, request: Request | None = None) -> None:
        """Exit with `RELOAD_EXIT_CODE`.

        The next application opens the wizard with ``request``.
        """
        self.request = request
        self.exit(RELOAD_EXIT_CODE, return_code=RELOAD_EXIT_CODE)

    @property
    @abstractmethod
    def front_screen(self) -> Screen | None:
        """The screen in front, or behind a dialog."""

    @abstractmethod
    def copy_lines(self, text: str) -> None:
        """Copy a text with its newlines, for an editor."""

    @abstractmethod
    def read_migrations(self) -> None:
        """Read the migrations' directories in the background, one read at a time."""

    @abstractmethod
    def use_theme(self, name: str) -> None:
        """Switch to another theme and save the choice."""

    @abstractmethod
    def open_run(self, run_id: str, *, started: float | None = None) -> None:
        """Open the screen of a run.

        ``started`` is when this program started it, in UTC seconds.
        """

    @abstractmethod
    def open_launch(self, request: LaunchRequest) -> None:
        """Open the form of a launch with the values of ``request``."""

    @abstractmethod
    def open_wizard(self, run_id: str, request: Request | None = None) -> None:
        """Open the migration wizard for a run, or the run's open migration if it has one."""


def app_of(node: DOMNode) -> BaseApp:
    """Return the application of a widget or screen."""
    app = node.app
    assert isinstance(app, BaseApp)
    return app
