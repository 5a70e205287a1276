"""Run screen: curves, log, checkpoints and info."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from midstream import format
from midstream.charts.chart import Line
from midstream.charts.run_lines import lines_of
from midstream.listing import fleet_fields, run_facts
from midstream.listing.field_type import group_name
from midstream.listing.run_facts import latest
from midstream.tui import commands
from midstream.tui.screens import compared_runs, label_form, launch_form, report_and_export, run_text, stop_run
from midstream.tui.screens.checkpoint_rows import CHECKPOINT_COLUMNS, checkpoint_rows
from midstream.tui.screens.dialogs.choose import ChooseScreen
from midstream.tui.screens.run_log import RunLogScreen
from midstream.tui.screens.run_text import FIRST_METRICS, metrics_of
from midstream.tui.screens.run_tools import CHECKPOINTS, CURVES, INFO, LOGS
from midstream.tui.state import series_cache
from midstream.tui.state.screen_state import ScreenState, attempt_hues, attempt_names
from midstream.tui.state.selection import MAX_COMPARED
from midstream.tui.state.series import Series
from midstream.tui.style import palette
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.chrome import Views
from midstream.tui.widgets.log_pane import LogPane
from midstream.tui.widgets.pane import Pane
from midstream.tui.widgets.plot import Drawn
from midstream.tui.widgets.plot_axes import value_words
from midstream.tui.widgets.table import Column, Row, Rows, Table
from midstream.watch import snapshot as watch
from midstream.watch.loss_curve import CurveRows
from midstream.watch.snapshot import RunView
from midstream.watch.system_metrics import metric_of


class RunScreen(RunLogScreen):
    """One run: the copy with the highest fence epoch.

    ``others`` are runs whose curves are overlaid. ``at_failure`` opens its log where it failed.
    """

    SCOPE = commands.RUN
    BINDINGS = commands.bindings(commands.RUN, commands.EVERYWHERE)

    def __init__(
        self,
        run_id: str,
        others: Sequence[str] = (),
        *,
        view: str = CURVES,
        at_failure: bool = False,
        guide: str = "",
        started: float | None = None,
    ) -> None:
        """Create the screen of a run.

        Args:
            run_id: The run.
            others: Runs whose curves are overlaid.
            view: The view that is shown first.
            at_failure: Open the log at the line that says why the run failed.
            guide: A line below the views that says what to press.
            started: When this program started the run, in UTC seconds; None: it did not.
        """
        super().__init__(run_id)
        self._view = LOGS if at_failure else view
        self._guide = guide
        self._started = started
        self._open_at_failure = at_failure
        self._others = list(others)[: MAX_COMPARED - 1]
        self._banded = False  # mean and band in place of each run's curve
        self._bands = compared_runs.Bands()
        self._series_given_up: dict[Hashable, Series] = {}

    def body(self) -> ComposeResult:
        glyphs = self.glyphs
        yield Views(self.SCOPE)
        if self._guide:
            yield Static(Text(f" {self._guide}", style=f"bold {palette.ACCENT}", no_wrap=True), id="guide")
        yield from self.curve_widgets()
        yield Static(id="legend")
        yield LogPane(id=LOGS)
        with Vertical(id=CHECKPOINTS):
            yield Table(CHECKPOINT_COLUMNS, glyphs, id="checkpoint-table")
            with Pane(id="checkpoint-report"):
                yield Static(id="report-text")
        with Pane(id=INFO):
            yield Static(id="info-text")
        yield Static(id="facts")

    def on_mount(self) -> None:
        self.start_curves()
        self.log_view.wrapping = self.midstream.saved_layout.wrap
        self.query_one("#checkpoint-report").display = False
        self.action_view(self._view)
        if self._open_at_failure:
            self.call_after_refresh(self.go_to_failure)

    def restarted(self, started: float | None) -> None:
        """Show the curves of the run, which was perhaps started again at ``started``."""
        self._started = started or self._started
        self.action_view(CURVES)

    def crumbs(self) -> tuple[str, ...]:
        name = self.midstream.facts.labels.of(self.run_id).name
        return ("Runs", f"{self.run_id} ({name})" if name else self.run_id)

    # ------------------------------------------------------------------------------------------ showing

    def show(self, screen_state: ScreenState) -> None:
        run = self.run_view
        if run is None:
            connecting = [host.name for host in screen_state.snapshot.hosts if host.link == watch.CONNECTING]
            unknown = f"no host has a run {self.run_id!r}; esc returns to the list"
            if self._started is not None:
                unknown = run_text.not_reported(self.run_id, screen_state.now - self._started)
            self.main_curve.show((), empty=f"connecting to {', '.join(connecting)} ..." if connecting else unknown)
            self.query_one("#facts", Static).update("")
            return
        if self._view == CURVES:
            self._show_curves(run)
        elif self._view == LOGS:
            self.show_log(run)
        elif self._view == CHECKPOINTS:
            self.query_one("#checkpoint-table", Table).show(
                checkpoint_rows(run, screen_state, self.glyphs, self.verified_in(run)),
                empty=run_text.no_checkpoints(run),
            )
        else:
            text = run_text.info(run, screen_state, self.glyphs, self.size.width, self._changes)
            self.query_one("#info-text", Static).update(text)
        self.midstream.saved_layout.wrap = self.log_view.wrapping
        self._show_views(run)
        facts = run_text.facts(run, screen_state, self.glyphs, self.size.width, self._started)
        self.query_one("#facts", Static).update(facts, layout=False)  # always two lines

    def _show_views(self, run: RunView) -> None:
        paused = "" if self.log_view.following else "paused"
        self.query_one(Views).show(self._view, {CHECKPOINTS: str(len(run.checkpoints)), LOGS: paused})

    def on_log_view_changed(self) -> None:
        if (run := self.run_view) is not None:
            self._show_views(run)

    def _show_curves(self, run: RunView) -> None:
        axis = self.main_curve.style_options.axis
        runs = self._drawn_runs()
        if len(runs) == 1:
            drawn = [
                *self._given_up(run, axis),
                Drawn(self._series(run, self.metric, axis), hues=attempt_hues(run)),
            ]
        elif self._banded:
            drawn = self._bands.lines(self._grouped(runs, axis))
        else:
            drawn = compared_runs.lines([(run_.run_id, self._series(run_, self.metric, axis)) for run_ in runs])
        positions = (
            series_cache.x_of_step(run.curve, checkpoint.step, axis)
            for checkpoint in run.checkpoints
            if checkpoint.complete
        )
        names = attempt_names(run, self.glyphs.times)
        self.main_curve.draw(
            drawn,
            metric=self.metric,
            names=names,
            points=[position for position in positions if position is not None],
            empty="no values while it trains, yet" if self._is_system(self.metric) else self._no_steps(run),
        )
        self._show_legend()
        self.show_tiles(axis)

    def _given_up(self, run: RunView, axis: str) -> list[Drawn]:
        """Return the series of the steps that earlier attempts did and that do not count."""
        if axis != series_cache.STEP or not isinstance(run.curve, CurveRows):
            return []
        before, self._series_given_up = self._series_given_up, {}
        hues, lines = attempt_hues(run), list[Drawn]()
        for attempt, begin, stop in run.curve.given_up():
            key = (run.key, self.metric, attempt, begin, stop)
            if key not in before:
                before[key] = Series()
                before[key].extend(*run.curve.points_of(attempt, self.metric, begin, stop), attempt)
            series = self._series_given_up[key] = before[key]
            colour = palette.faded(palette.series(hues.get(attempt, 0)))
            lines.append(Drawn(series, colour=colour, smooth=False, given_up=True))
        return lines

    def _grouped(self, runs: Sequence[RunView], axis: str) -> dict[str, list[Series]]:
        """Return the series of each group of the list; without groups, all together."""
        field = fleet_fields.RUNS.named(self.midstream.saved_layout.list_of("runs").group)
        groups: dict[str, list[Series]] = {}
        for run in runs:
            name = group_name(field.get(run, self.screen_state)) if field is not None else ""
            words = f"{field.name} {name or 'none'}" if field is not None else "all runs"
            groups.setdefault(words, []).append(self._series(run, self.metric, axis))
        return groups

    def _show_legend(self) -> None:
        """List the compared runs with their values, where there are several."""
        curve, widget = self.main_curve, self.query_one("#legend", Static)
        widget.display = sum(bool(drawn.name) for drawn in curve.drawn) > 1 or self._banded
        if widget.display:
            height = max(2, self.size.height // 4)
            text = compared_runs.legend(curve.drawn, self.metric, curve.cursor, self.glyphs, self.size.width, height)
            self.update_text("#legend", text)

    def on_curve_view_cursor_moved(self) -> None:
        self._show_legend()

    def action_band(self) -> None:
        """Draw mean and band of the compared runs in place of their curves, or these."""
        if len(self._drawn_runs()) < 2:
            self.notify("c adds runs to compare with; or mark runs in the list, then enter")
            return
        self._banded = not self._banded
        self.action_view(CURVES)

    def _no_steps(self, run: RunView) -> str:
        return run_text.no_steps(run, self.screen_state, self.screen_state.failure(run), self._started)

    def metric_names(self) -> Sequence[str]:
        """Return the names of the metrics, the well-known ones first.

        One metric of the hosts follows, then the run's others and the hosts' others.
        """
        run = self.run_view
        if run is None:
            return ()
        own = metrics_of(run)
        system = self.midstream.system_curves.names_of_run(self.screen_state.snapshot, run)
        first = sum(name in FIRST_METRICS for name in own)
        return list(dict.fromkeys([*own[:first], *system[:1], *own[first:], *system[1:]]))

    def metric_value(self, metric: str) -> str:
        run = self.run_view
        if run is None:
            return ""
        if self._is_system(metric):
            return value_words(metric, self._series(run, metric, series_cache.TIME).last)
        return format.loss(latest(run, metric))

    def tile_metrics(self) -> Sequence[str]:
        """Return the metrics of the same kind as the large one first."""
        system = self._is_system(self.metric)
        return sorted(super().tile_metrics(), key=lambda name: system and not self._is_system(name))

    def metric_series(self, metric: str, axis: str) -> Sequence[Drawn]:
        run = self.run_view
        return (Drawn(self._series(run, metric, axis), hues=attempt_hues(run)),) if run is not None else ()

    def _is_system(self, metric: str) -> bool:
        """Return True for a metric of the run's hosts."""
        return metric_of(metric) is not None

    def _series(self, run: RunView, metric: str, axis: str) -> Series:
        if self._is_system(metric):
            return self.midstream.system_curves.of_run(self.screen_state.snapshot, run, metric, axis)
        return self.midstream.series_cache.series(run.key, run.curve, metric, axis)[0]

    def chart_lines(self, metric: str, axis: str) -> Sequence[Line]:
        return (
            super().chart_lines(metric, axis) if self._is_system(metric) else lines_of(self._drawn_runs(), metric, axis)
        )

    def chart_name(self) -> str:
        return "+".join(run.run_id for run in self._drawn_runs())[:100]

    def compared(self) -> Sequence[RunView]:
        return self._drawn_runs()[1:] if self.run_view is not None else ()

    def _drawn_runs(self) -> list[RunView]:
        """Return this run and the overlaid ones, as far as a host has them."""
        copies = map(self.screen_state.snapshot.copies, (self.run_id, *self._others))
        return [views[0] for views in copies if views]

    # ------------------------------------------------------------------------------------------ commands

    def action_view(self, view: str) -> None:
        self._view = view
        for name in (CURVES, LOGS, CHECKPOINTS, INFO):
            self.query_one(f"#{name}").display = name == view
        self.query_one("#legend").display = False  # `show` displays it below several curves
        focus = {CURVES: "#main-curve", LOGS: f"#{LOGS}", CHECKPOINTS: "#checkpoint-table", INFO: f"#{INFO}"}[view]
        self.query_one(focus).focus()
        self.refresh_state()

    def action_back(self) -> None:
        """End the search, remove the crosshair or close the report, else go to the fleet."""
        if self._view == LOGS and self.query_one(LogPane).escaped():
            return
        if self._view == CURVES and self.main_curve.forget_cursor():
            return
        if self._view == CHECKPOINTS and self.query_one("#checkpoint-report").display:
            self.query_one("#checkpoint-report").display = False
            self.query_one("#checkpoint-table").focus()
            return
        super().action_back()

    def action_overlay(self) -> None:
        """Choose a run to overlay; an overlaid one is removed."""
        others = [run for run in self.screen_state.current_runs if run.run_id != self.run_id]

        def row(index: int) -> Row:
            run = others[index]
            mark = self.glyphs.chosen if run.run_id in self._others else " "
            step, loss = format.grouped(run.step), format.loss(run_facts.loss(run))
            return Row(run.run_id, (f"{mark} {run.run_id}", run.host, step, loss))

        rows = Rows([run.run_id for run in others], row)
        if not rows:
            self.notify("no other run to compare with")
            return

        def chosen(name: Hashable) -> None:
            if name in self._others:
                self._others.remove(str(name))
            elif name is not None and len(self._others) < MAX_COMPARED - 1:
                self._others.append(str(name))
            self.action_view(CURVES)

        columns = (Column("RUN"), Column("HOST"), Column("STEP", right=True), Column("LOSS", right=True))
        self.app.push_screen(ChooseScreen("Compare with (choose again to remove)", columns, rows), chosen)

    def action_report(self) -> None:
        if self.run_view is not None:
            report_and_export.ask_report(self, self.run_id)

    def action_export(self) -> None:
        if not self.refuse_readonly() and (selected := self.selected_checkpoint("export", "E")) is not None:
            report_and_export.ask_export(self, *selected)

    def action_copy(self) -> None:
        """Copy the command line that prints this view."""
        flag = {CURVES: "--metrics", LOGS: "--log", CHECKPOINTS: "--checkpoints", INFO: "--config"}[self._view]
        name = ",".join([self.run_id, *self._others]) if self._view == CURVES else self.run_id
        self.copy_command(flag, name)

    def action_migrate(self) -> None:
        if self.run_view is not None and not self.refuse_readonly():
            self.midstream.open_wizard(self.run_id)

    def action_start_again(self) -> None:
        run = self.run_view
        if run is not None and not self.refuse_readonly():
            launch_form.offer_start_again(self, run)

    def action_edit(self) -> None:
        if not self.refuse_readonly():
            label_form.ask(self, self.run_id)

    def action_undo(self) -> None:
        if not self.refuse_readonly():
            label_form.undo(self)

    def action_stop(self) -> None:
        run = self.run_view
        if run is not None and not self.refuse_readonly():
            stop_run.ask(self, run)
