"""Host screen: system metrics over the last day, and the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from textual.app import ComposeResult
from textual.widgets import Static

from midstream import format
from midstream.listing import documents
from midstream.tui import commands
from midstream.tui.screens.curves_screen import CURVES, CurvesScreen
from midstream.tui.screens.fleet.host_text import describe_host, utilization_of
from midstream.tui.state.screen_state import ScreenState
from midstream.tui.state.selection import Selection
from midstream.tui.state.series_cache import CLOCK
from midstream.tui.style import palette
from midstream.tui.widgets.chrome import Views
from midstream.tui.widgets.pane import Pane
from midstream.tui.widgets.plot import Drawn
from midstream.tui.widgets.plot_axes import value_words
from midstream.watch.snapshot import LIVE

MACHINE = "machine"


class HostScreen(CurvesScreen):
    """One host, with curves that begin when this session began to watch it."""

    SCOPE = commands.HOST
    BINDINGS = commands.bindings(commands.HOST, commands.EVERYWHERE)

    def __init__(self, host: str) -> None:
        super().__init__()
        self.host = host
        self.metric = ""  # the first that the host has
        self._view = CURVES

    def body(self) -> ComposeResult:
        yield Views(self.SCOPE)
        yield from self.curve_widgets()
        with Pane(id=MACHINE):
            yield Static(id="machine-text")

    def on_mount(self) -> None:
        self.start_curves()
        self.main_curve.restyle(replace(self.main_curve.style_options, axis=CLOCK))
        self.action_view(CURVES)

    def crumbs(self) -> tuple[str, ...]:
        """Return the screen's place, with the last report's age for an unreachable host."""
        host = self.screen_state.snapshot.host(self.host)
        if host is None or host.link == LIVE or host.last_seen is None:
            return ("Hosts", self.host)
        age = format.age(self.screen_state.host_age(host))
        return ("Hosts", f"{self.host} {self.glyphs.stale} last report {age} ago")

    def chart_name(self) -> str:
        return self.host

    def show(self, screen_state: ScreenState) -> None:
        names = self.metric_names()
        self.metric = self.metric or (names[0] if names else "")
        self.query_one(Views).show(self._view)
        host = screen_state.snapshot.host(self.host)
        if self._view == MACHINE:
            if host is not None:
                history = utilization_of(screen_state.snapshot.system.get(host.name))
                text = describe_host(host, self.glyphs, self.size.width, screen_state.now, history)
                self.query_one("#machine-text", Static).update(text)
            return
        empty = "no values yet" if host is not None and host.machine is not None else "no report yet"
        drawn = self.metric_series(self.metric, CLOCK)
        self.main_curve.draw(drawn, metric=self.metric or self.host, names={0: self.host}, empty=empty)
        self.show_tiles(CLOCK)

    def selection(self) -> Selection | None:
        host = self.screen_state.snapshot.host(self.host)
        return Selection(host.name, "host", documents.host_event(host).fields()) if host is not None else None

    def metric_names(self) -> Sequence[str]:
        return self.midstream.system_curves.names_of_host(self.screen_state.snapshot, self.host)

    def metric_value(self, metric: str) -> str:
        return ", ".join(value_words(metric, drawn.series.last) for drawn in self.metric_series(metric, CLOCK))

    def metric_series(self, metric: str, axis: str) -> Sequence[Drawn]:  # noqa: ARG002 (hosts have no steps)
        """Return one series, or one for each accelerator."""
        host = self.midstream.system_curves.of_host(self.screen_state.snapshot, self.host, metric)
        if len(host) == 1:
            return (Drawn(host[0].series, colour=palette.series(0)),)
        return [Drawn(named.series, named.name, palette.series(number)) for number, named in enumerate(host)]

    # ------------------------------------------------------------------------------------------ commands

    def action_view(self, view: str) -> None:
        self._view = view
        for name in (CURVES, MACHINE):
            self.query_one(f"#{name}").display = name == view
        self.query_one("#main-curve" if view == CURVES else f"#{MACHINE}").focus()
        self.refresh_state()

    def action_back(self) -> None:
        """Remove the crosshair, else return to the fleet."""
        if self._view == CURVES and self.main_curve.forget_cursor():
            return
        super().action_back()
