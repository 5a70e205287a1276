"""Base class of curve screens: main curve, small multiples, metric, zoom, style."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

from textual import events
from textual.app import ComposeResult
from textual.containers import Container

from midstream.charts.chart import NO_RANGE, Line, Range, parse_range, range_text
from midstream.charts.smoothing import MAX_FACTOR, parse_factor
from midstream.tui.screens import export_curves
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.dialogs.choose import ChooseScreen
from midstream.tui.screens.dialogs.enter_text import EnterTextScreen
from midstream.tui.state import series_cache
from midstream.tui.widgets.curve import CurveView
from midstream.tui.widgets.curve_style import SMOOTHINGS, CurveStyle
from midstream.tui.widgets.plot import Drawn
from midstream.tui.widgets.table import Column, Row
from midstream.tui.widgets.viewport import Viewport

CURVES = "curves"
ZOOMS = (1.0, 0.5, 0.25, 0.1, 0.01)
TILES = 6  # maximum of small multiples
TILE_HEIGHT = 7  # cells
WIDE, TALL = 110, 34  # width with small multiples beside the curve, height with them below it


class CurvesScreen(MidstreamScreen):
    """A screen whose view `CURVES` draws one metric large and others small.

    A subclass yields `curve_widgets`, calls `start_curves` when it is mounted, names its metrics and draws them.
    """

    metric = "train/loss"  # the one that is drawn large
    _zoom = 0
    _y_ranges: dict[str, Range]  # metric -> range that was chosen for it
    _tiles_wanted: bool | None = None  # chosen by key; None: shown if there is room

    def __init__(self) -> None:
        super().__init__()
        self._y_ranges = {}

    @abstractmethod
    def action_view(self, view: str) -> None:
        """Show a view of the screen."""

    @abstractmethod
    def metric_names(self) -> Sequence[str]:
        """Return the metrics that can be drawn, in the order of `action_metric`."""

    @abstractmethod
    def metric_value(self, metric: str) -> str:
        """Return the newest value of a metric, as text."""

    @abstractmethod
    def metric_series(self, metric: str, axis: str) -> Sequence[Drawn]:
        """Return the series of a metric, as a small multiple shows them."""

    def curve_widgets(self) -> ComposeResult:
        """Yield the container of the curves."""
        with Container(id=CURVES):
            yield CurveView(self.glyphs, id="main-curve")
            with Container(id="tiles"):
                for number in range(TILES):
                    yield CurveView(self.glyphs, compact=True, id=f"tile-{number}")

    def start_curves(self) -> None:
        """Apply the saved style."""
        layout = self.midstream.saved_layout
        smoothing = min(max(0.0, layout.smoothing), MAX_FACTOR)
        axis = layout.axis if layout.axis in series_cache.AXES else series_cache.STEP
        self.main_curve.restyle(CurveStyle(layout.log, layout.robust, smoothing, axis, layout.log_x))
        self.place_tiles()

    @property
    def main_curve(self) -> CurveView:
        return self.query_one("#main-curve", CurveView)

    # ------------------------------------------------------------------------------------------ small multiples

    def show_tiles(self, axis: str) -> None:
        """Draw the small multiples, if they are visible."""
        if not self.query_one("#tiles").display:
            return
        for tile, metric in self._tiles():
            tile.draw(self.metric_series(metric, axis), metric=metric, empty="no values")

    def tile_metrics(self) -> Sequence[str]:
        """Return the metrics of the small multiples, the most important first."""
        return [name for name in self.metric_names() if name != self.metric]

    def _tiles(self) -> Iterator[tuple[CurveView, str]]:
        names = self.tile_metrics()
        for number in range(TILES):
            tile = self.query_one(f"#tile-{number}", CurveView)
            tile.display = number < min(len(names), self._tile_count)
            if tile.display:
                yield tile, names[number]

    @property
    def _tile_count(self) -> int:
        if self.size.width >= WIDE:
            return min(TILES, max(1, (self.size.height - 5) // TILE_HEIGHT))
        return max(1, min(TILES, self.size.width // 26))

    def on_resize(self, event: events.Resize) -> None:
        del event
        self.place_tiles()

    def place_tiles(self) -> None:
        """Place the small multiples beside the curve, below it, or nowhere."""
        if not self.query("#tiles"):
            return  # not mounted yet
        room = self.size.width >= WIDE or self.size.height >= TALL
        shown = self._tiles_wanted if self._tiles_wanted is not None else (self.midstream.saved_layout.tiles and room)
        self.query_one("#tiles").display = shown
        self.set_class(self.size.width >= WIDE, "-beside")

    def action_tiles(self) -> None:
        self._tiles_wanted = self.midstream.saved_layout.tiles = not self.query_one("#tiles").display
        self.midstream.saved_layout.save()
        self.place_tiles()
        self.action_view(CURVES)

    # ------------------------------------------------------------------------------------------ the metric

    def promote(self, metric: str) -> None:
        """Draw a metric large, in the y range that was chosen for it."""
        self.metric = metric
        self.main_curve.restyle(replace(self.main_curve.style_options, y_range=self._y_ranges.get(metric, NO_RANGE)))
        self.action_view(CURVES)

    def on_curve_view_picked(self, event: CurveView.Picked) -> None:
        self.promote(event.metric)

    def action_metric(self, by: int) -> None:
        if names := self.metric_names():
            index = names.index(self.metric) if self.metric in names else 0
            self.promote(names[(index + by) % len(names)])

    def action_metrics(self) -> None:
        rows = [Row(name, (name, self.metric_value(name))) for name in self.metric_names()]
        if not rows:
            return

        def chosen(name: Hashable) -> None:
            if name is not None:
                self.promote(str(name))

        columns = (Column("METRIC"), Column("LAST", right=True))
        self.app.push_screen(ChooseScreen("Metric", columns, rows, selected=self.metric), chosen)

    # ------------------------------------------------------------------------------------------ zoom and style

    def action_zoom(self) -> None:
        self._zoom = (self._zoom + 1) % len(ZOOMS)
        self.main_curve.see(Viewport(ZOOMS[self._zoom]))
        self.action_view(CURVES)

    def _restyle(self, style: CurveStyle, message: str) -> None:
        """Change the style of the curve and save it."""
        layout = self.midstream.saved_layout
        layout.log, layout.robust, layout.smoothing = style.log, style.robust, style.smoothing
        if style.axis in series_cache.AXES:
            layout.axis, layout.log_x = style.axis, style.log_x
        layout.save()
        self.main_curve.restyle(style)
        self.notify(message, timeout=2)
        self.action_view(CURVES)

    def action_axis(self) -> None:
        style = self.main_curve.style_options
        axis = series_cache.AXES[(series_cache.AXES.index(style.axis) + 1) % len(series_cache.AXES)]
        self._restyle(replace(style, axis=axis), f"x axis: {axis}")

    def action_log_y(self) -> None:
        style = self.main_curve.style_options
        self._restyle(replace(style, log=not style.log), "linear values" if style.log else "logarithmic values")

    def action_smooth(self) -> None:
        style = self.main_curve.style_options
        factors = [factor for _, factor in SMOOTHINGS]
        number = (factors.index(style.smoothing) + 1) % len(factors) if style.smoothing in factors else 0
        self._restyle(replace(style, smoothing=factors[number]), f"average: {SMOOTHINGS[number][0]}")

    def action_smoothing_factor(self) -> None:
        style = self.main_curve.style_options

        def entered(text: str | None) -> None:
            if text is not None:
                factor = parse_factor(text)
                self._restyle(replace(style, smoothing=factor), f"smoothing {factor:.3g}")

        lines = (
            f"0 is no average, 0.6 a short one, {MAX_FACTOR} the longest.",
            "W&B draws the same with this number.",
        )
        self.app.push_screen(
            EnterTextScreen("Smoothing factor", lines, f"{style.smoothing:.3g}", parse_factor), entered
        )

    def action_log_x(self) -> None:
        style = self.main_curve.style_options
        self._restyle(replace(style, log_x=not style.log_x), "linear x axis" if style.log_x else "logarithmic x axis")

    def action_y_range(self) -> None:
        style = self.main_curve.style_options

        def parse(text: str) -> Range:
            return parse_range(text) if text else NO_RANGE

        def entered(text: str | None) -> None:
            if text is not None:
                self._y_ranges[self.metric] = parse(text)
                self._restyle(replace(style, y_range=parse(text)), f"y {text}" if text else "y by the values")

        lines = (f"LOW:HIGH of {self.metric}; 2: and :3.5 set one end.", "Empty: by the values.")
        self.app.push_screen(EnterTextScreen("Y range", lines, range_text(style.y_range), parse), entered)

    def action_outliers(self) -> None:
        style = self.main_curve.style_options
        message = "spikes in full" if style.robust else "spikes clipped"
        self._restyle(replace(style, robust=not style.robust), message)

    # ------------------------------------------------------------------------------------------ export

    def chart_lines(self, metric: str, axis: str) -> Sequence[Line]:
        """Return the lines that the main curve draws. Called in a background thread."""
        del metric, axis
        return export_curves.drawn_lines(self.main_curve.drawn)

    def chart_name(self) -> str:
        """Return what the curves are of, as part of a file's name."""
        return self.crumbs()[-1]

    def on_curve_view_exported(self) -> None:
        export_curves.ask(self, self.main_curve, self.chart_name(), self.chart_lines)
