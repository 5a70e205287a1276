"""Export of what a curve view shows.

The user enters a file name, then the file is written in the background.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise

from midstream.charts.chart import NO_RANGE, Chart, Line
from midstream.charts.chart_file import check_path, write_chart
from midstream.errors import UsageError
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.dialogs.enter_text import EnterTextScreen
from midstream.tui.widgets.curve import CurveView
from midstream.tui.widgets.plot import Drawn
from midstream.watch.system_metrics import metric_of

MAX_NAME = 100  # characters


def ask(screen: MidstreamScreen, curve: CurveView, name: str, lines: Callable[[str, str], Sequence[Line]]) -> None:
    """Prompt for a file and export the curve to it.

    Args:
        screen: The screen that has the curve.
        curve: The curve; its range, axes and smoothing are exported.
        name: What the curve is of, as part of the file's name.
        lines: Returns the lines of (metric, axis), in a background thread.
    """
    style, span, metric = curve.style_options, curve.span, curve.metric
    system = metric_of(metric)
    complete = span is None or curve.viewport == curve.home

    def entered(text: str | None) -> None:
        if text is None:
            return
        path = check_path(text)

        def work() -> None:
            chart = Chart(
                metric,
                lines(metric, style.axis),
                style.axis,
                unit=system.unit if system else "",
                log_x=style.log_x,
                log_y=style.log,
                smoothing=style.smoothing,
                x_range=NO_RANGE if complete or span is None else span,
                y_range=style.y_range,
            )
            if not chart.lines:
                raise UsageError(f"{metric} has no points", "choose another metric with p")
            write_chart(chart, path)
            screen.app.call_later(screen.notify, f"saved: {path.absolute()}", markup=False)

        screen.in_background(work)

    words = ("The suffix chooses the format: .csv, .svg or .png.", "Range, axes and smoothing are those of the screen.")
    file = re.sub(r"[^A-Za-z0-9_.+-]+", "-", f"{name[:MAX_NAME]}-{metric}.svg")
    screen.app.push_screen(EnterTextScreen("Export", words, file, check_path), entered)


def drawn_lines(drawn: Sequence[Drawn], run: str = "") -> list[Line]:
    """Return series as lines, one for each attempt of a series without a name.

    Values are those of a float32.
    """
    lines: list[Line] = []
    for number, curve in enumerate(drawn):
        series = curve.series
        starts = [*series.attempts, (len(series), 0)]
        for index, ((start, attempt), (stop, _)) in enumerate(pairwise(starts)):
            x, y = series.x[start:stop], array("d", map(series.values.value, range(start, stop)))
            named = curve.name or f"attempt {attempt}"
            lines.append(Line(named, x, y, curve.name or run, attempt, number if curve.name else index))
    return lines
