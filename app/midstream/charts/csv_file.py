"""A chart's points as CSV."""

from __future__ import annotations

import csv
import io

from midstream.charts.chart import Chart
from midstream.charts.points import CLOCK, STEP, TIME

SECONDS, UTC_SECONDS = "seconds", "utc_seconds"  # columns of the axes of time


def csv_text(chart: Chart) -> str:
    """Return one row for each point in the visible range of x, at full precision.

    Columns: ``run``, ``attempt``, the axis (``step``, ``tokens``, ``seconds`` or ``utc_seconds``), the metric, and
    with a smoothing factor ``smoothed``. NaN and infinity are ``nan``, ``inf`` and ``-inf``.
    """
    low, high = chart.x_ends()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    axis = {TIME: SECONDS, CLOCK: UTC_SECONDS}.get(chart.axis, chart.axis)
    writer.writerow(["run", "attempt", axis, chart.metric, *(["smoothed"] if chart.smoothing else [])])
    smoothed = chart.averages() if chart.smoothing else [None] * len(chart.lines)
    for line, averages in zip(chart.lines, smoothed, strict=True):
        for index, (x, y) in enumerate(zip(line.x, line.y, strict=True)):
            if low <= x <= high:
                row = [line.run or line.name, line.attempt, int(x) if chart.axis == STEP else x, y]
                writer.writerow(row if averages is None else [*row, averages[index]])
    return text.getvalue()
