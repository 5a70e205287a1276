"""Run: the loss first, then the log, the checkpoints, and where it comes from."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from textual import events
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.widgets import Static

from midstream.tui import commands, number_format, palette, series_cache
from midstream.tui.screen_state import World, attempt_hues, attempt_names, latest
from midstream.tui.screens.dialogs.choose import ChooseScreen
from midstream.tui.screens.fleet.table_rows import CHECKPOINT_COLUMNS, checkpoint_rows
from midstream.tui.screens.run import run_text, stop_run
from midstream.tui.screens.run.run_text import metrics_of
from midstream.tui.screens.run.run_tools import CHECKPOINTS, CURVES, INFO, LOGS, CloserScreen
from midstream.tui.widgets.chrome import Hints, Views
from midstream.tui.widgets.curve import SMOOTHINGS, CurveView, Look
from midstream.tui.widgets.log_pane import LogPane
from midstream.tui.widgets.log_view import LogView
from midstream.tui.widgets.pane import Pane
from midstream.tui.widgets.plot import Drawn
from midstream.tui.widgets.table import Column, Row, Table
from midstream.tui.widgets.viewport import Viewport
from midstream.watch import snapshot as watch
from midstream.watch.snapshot import RunView

ZOOMS = (1.0, 0.5, 0.25, 0.1, 0.01)
TILES = 6  # small multiples at most
TILE_HEIGHT = 7
WIDE, TALL = 110, 34  # cells from which small multiples stand beside the curve, and lines from which below it


class RunScreen(CloserScreen):
    """One run, wherever it is at the moment: the copy with the highest fence epoch. ``others`` are runs whose curves
    are laid over its own."""

    SCOPE = commands.RUN
    BINDINGS = commands.bindings(commands.RUN, commands.EVERYWHERE)

    def __init__(self, run_id: str, others: Sequence[str] = ()) -> None:
        super().__init__(run_id)
        self._others = list(others)
        self._metric = "train/loss"
        self._zoom = 0
        self._tiles_wanted: bool | None = None  # as a person wants them here; None: where there is room

    def body(self) -> ComposeResult:
        glyphs = self.glyphs
        yield Views(self.SCOPE)
        with Container(id=CURVES):
            yield CurveView(glyphs, id="main-curve")
            with Container(id="tiles"):
                for number in range(TILES):
                    yield CurveView(glyphs, compact=True, id=f"tile-{number}")
        yield LogPane(id=LOGS)
        with Vertical(id=CHECKPOINTS):
            yield Table(CHECKPOINT_COLUMNS, glyphs, id="checkpoint-table")
            with Pane(id="checkpoint-report"):
                yield Static(id="report-text")
        with Pane(id=INFO):
            yield Static(id="info-text")
        yield Static(id="facts")

    def on_mount(self) -> None:
        kept = self.midstream.kept
        smoothing = kept.smoothing % len(SMOOTHINGS)
        axis = kept.axis if kept.axis in series_cache.AXES else series_cache.STEP
        self._curve.restyle(Look(kept.log, kept.robust, smoothing, axis))
        self.query_one(LogView).wrapping = kept.wrap
        self.query_one("#checkpoint-report").display = False
        self._arrange()
        self.action_view(CURVES)

    def on_resize(self, event: events.Resize) -> None:
        self._arrange()

    def crumbs(self) -> tuple[str, ...]:
        return ("Runs", self.run_id)

    @property
    def _curve(self) -> CurveView:
        return self.query_one("#main-curve", CurveView)

    # ------------------------------------------------------------------------------------------ showing

    def show(self, world: World) -> None:
        run = self.run_view
        if run is None:
            asked = [host.name for host in world.snapshot.hosts if host.link == watch.CONNECTING]
            unknown = f"no host knows a run {self.run_id!r}; esc goes back to the list"
            self._curve.show((), empty=f"asking {', '.join(asked)} ..." if asked else unknown)
            self.query_one("#facts", Static).update("")
            return
        if self._view == CURVES:
            self._show_curves(run, world)
        elif self._view == LOGS:
            self.query_one(LogPane).show(run.log)
        elif self._view == CHECKPOINTS:
            self.query_one("#checkpoint-table", Table).show(
                checkpoint_rows(run, world, self.glyphs, self._verified),
                empty=run_text.no_checkpoints(run),
            )
        else:
            text = run_text.info(run, world, self.glyphs, self.size.width, self._changes)
            self.query_one("#info-text", Static).update(text)
        following = self.query_one(LogView).following
        self.midstream.kept.wrap = self.query_one(LogView).wrapping
        self.query_one(Views).show(
            self._view, {CHECKPOINTS: str(len(run.checkpoints)), LOGS: "" if following else "held"}
        )
        facts = run_text.facts(run, world, self.glyphs, self.size.width)
        self.query_one("#facts", Static).update(facts, layout=False)  # it has two lines, whatever they say

    def _show_curves(self, run: RunView, world: World) -> None:
        axis = self._curve.look.axis
        runs = [run, *(copies[0] for name in self._others if (copies := world.snapshot.copies(name)))]
        drawn = []
        for number, each in enumerate(runs):
            series, _ = self.midstream.book.series(each.key, each.curve, self._metric, axis)
            alone = len(runs) == 1
            if alone:
                drawn.append(Drawn(series, hues=attempt_hues(each)))
            else:
                drawn.append(Drawn(series, each.run_id, palette.series(number)))
        places = (series_cache.x_of_step(run.curve, point.step, axis) for point in run.checkpoints if point.complete)
        names = attempt_names(run, self.glyphs.times)
        self._curve.draw(
            drawn,
            metric=self._metric,
            names=names,
            points=[place for place in places if place is not None],
            empty=f"no steps yet ({run.state})",
        )
        if not self.query_one("#tiles").display:
            return
        others = [name for name in metrics_of(run) if name != self._metric]
        for number in range(TILES):
            tile = self.query_one(f"#tile-{number}", CurveView)
            tile.display = number < min(len(others), self._tile_count)
            if tile.display:
                series, _ = self.midstream.book.series(run.key, run.curve, others[number], axis)
                tile.draw((Drawn(series, hues=attempt_hues(run)),), metric=others[number], empty="no values")

    @property
    def _tile_count(self) -> int:
        if self.size.width >= WIDE:
            return min(TILES, max(1, (self.size.height - 5) // TILE_HEIGHT))
        return max(1, min(TILES, self.size.width // 26))

    def _arrange(self) -> None:
        """Small multiples beside the curve, below it, or nowhere."""
        if not self.query("#tiles"):
            return  # its parts are not there yet
        room = self.size.width >= WIDE or self.size.height >= TALL
        wanted = self._tiles_wanted if self._tiles_wanted is not None else (self.midstream.kept.tiles and room)
        self.query_one("#tiles").display = wanted
        self.set_class(self.size.width >= WIDE, "-beside")

    # ------------------------------------------------------------------------------------------ commands

    def action_view(self, view: str) -> None:
        self._view = view
        for name in (CURVES, LOGS, CHECKPOINTS, INFO):
            self.query_one(f"#{name}").display = name == view
        focus = {CURVES: "#main-curve", LOGS: f"#{LOGS}", CHECKPOINTS: "#checkpoint-table", INFO: f"#{INFO}"}[view]
        self.query_one(focus).focus()
        curves = ("metric(1)", "zoom")
        self.query_one(Hints).hide(*(() if view == CURVES else curves), *(() if view == CHECKPOINTS else ("verify",)))
        self.refresh_world()

    def action_back(self) -> None:
        """Out of a search, off the crosshair, and then to the fleet."""
        if self._view == LOGS and self.query_one(LogPane).escaped():
            return
        if self._view == CURVES and self._curve.forget_cursor():
            return
        if self._view == CHECKPOINTS and self.query_one("#checkpoint-report").display:
            self.query_one("#checkpoint-report").display = False
            self.query_one("#checkpoint-table").focus()
            return
        super().action_back()

    def action_metric(self, by: int) -> None:
        run = self.run_view
        if run is not None:
            names = metrics_of(run)
            place = names.index(self._metric) if self._metric in names else 0
            self._promote(names[(place + by) % len(names)])

    def _promote(self, metric: str) -> None:
        self._metric = metric
        self.action_view(CURVES)

    def on_curve_view_picked(self, event: CurveView.Picked) -> None:
        self._promote(event.metric)

    def action_metrics(self) -> None:
        run = self.run_view
        if run is None:
            return
        rows = []
        for name in metrics_of(run):
            rows.append(Row(name, (name, number_format.loss(latest(run, name)))))
        columns = (Column("METRIC"), Column("LAST", right=True))

        def chosen(name: Hashable) -> None:
            if name is not None:
                self._promote(str(name))

        self.app.push_screen(ChooseScreen("Draw", columns, rows, selected=self._metric), chosen)

    def action_zoom(self) -> None:
        self._zoom = (self._zoom + 1) % len(ZOOMS)
        self._curve.see(Viewport(ZOOMS[self._zoom]))
        self.action_view(CURVES)

    def _restyle(self, look: Look, words: str) -> None:
        """Draw in another way, and keep that."""
        kept = self.midstream.kept
        kept.log, kept.robust, kept.smoothing, kept.axis = look.log, look.robust, look.smoothing, look.axis
        kept.save()
        self._curve.restyle(look)
        self.notify(words, timeout=2)
        self.action_view(CURVES)

    def action_axis(self) -> None:
        look = self._curve.look
        axis = series_cache.AXES[(series_cache.AXES.index(look.axis) + 1) % len(series_cache.AXES)]
        self._restyle(replace(look, axis=axis), f"x axis: {axis}")

    def action_log_y(self) -> None:
        look = self._curve.look
        self._restyle(replace(look, log=not look.log), "linear values" if look.log else "logarithmic values")

    def action_smooth(self) -> None:
        look = self._curve.look
        number = (look.smoothing + 1) % len(SMOOTHINGS)
        self._restyle(replace(look, smoothing=number), f"average: {SMOOTHINGS[number][0]}")

    def action_outliers(self) -> None:
        look = self._curve.look
        words = "spikes have their height" if look.robust else "spikes are cut"
        self._restyle(replace(look, robust=not look.robust), words)

    def action_tiles(self) -> None:
        self._tiles_wanted = self.midstream.kept.tiles = not self.query_one("#tiles").display
        self.midstream.kept.save()
        self._arrange()
        self.action_view(CURVES)

    def action_overlay(self) -> None:
        """Lay another run over this one; one that lies there is taken away."""
        rows = [
            Row(
                run.run_id,
                (
                    (self.glyphs.chosen if run.run_id in self._others else " ") + " " + run.run_id,
                    run.host,
                    number_format.grouped(run.step),
                    number_format.loss(run.loss),
                ),
            )
            for run in self.world.runs_in_order
            if run.run_id != self.run_id
        ]
        if not rows:
            self.notify("there is no other run to compare with")
            return

        def chosen(name: Hashable) -> None:
            if name in self._others:
                self._others.remove(str(name))
            elif name is not None:
                self._others.append(str(name))
            self.action_view(CURVES)

        columns = (Column("RUN"), Column("HOST"), Column("STEP", right=True), Column("LOSS", right=True))
        self.app.push_screen(ChooseScreen("Compare with (again: take it away)", columns, rows), chosen)

    def action_copy(self) -> None:
        """What this view shows, as a command line."""
        flag = {CURVES: "--metrics", LOGS: "--log", CHECKPOINTS: "--checkpoints", INFO: "--config"}[self._view]
        name = ",".join([self.run_id, *self._others]) if self._view == CURVES else self.run_id
        line = f"midstream {flag} {name}"
        self.app.copy_to_clipboard(line)
        self.notify(f"copied: {line}", markup=False)

    def action_migrate(self) -> None:
        if self.run_view is not None and not self.refused():
            self.midstream.open_wizard(self.run_id)

    def action_stop(self) -> None:
        run = self.run_view
        if run is not None and not self.refused():
            stop_run.ask(self, run)
