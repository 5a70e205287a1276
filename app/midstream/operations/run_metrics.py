"""Curves of runs, and their charts as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from midstream.errors import UsageError
from midstream.operations.fleet_snapshot import fleet_snapshot, run_of

if TYPE_CHECKING:
    from pathlib import Path

    from midstream.charts.chart import Chart
    from midstream.hosts.host_pool import HostPool
    from midstream.watch.snapshot import RunView


def runs_with_curves(hosts: HostPool, names: Sequence[str]) -> list[RunView]:
    """Return runs with the rows of all their attempts.

    Raises:
        UsageError: There is no such run.
    """
    snapshot = fleet_snapshot(hosts)
    return [run_of(snapshot, name) for name in names]


def losses_by_step(runs: Sequence[RunView]) -> list[tuple[int, list[float | None]]]:
    """Return each step with a loss of at least one run, and the runs' losses at it."""
    losses = [{row["global_step"]: row["train/loss"] for row in run.curve if "train/loss" in row} for run in runs]
    steps = sorted(set[int]().union(*losses))
    return [(step, [of_run.get(step) for of_run in losses]) for step in steps]


def plot_runs(runs: Sequence[RunView], chart: Chart, path: Path) -> int:
    """Write the chart of the runs to a file. Return its number of points.

    Raises:
        UsageError: No run has points of the metric.
    """
    from midstream.charts.chart_file import write_chart
    from midstream.charts.run_lines import lines_of, metric_names
    from midstream.suggestions import nearest

    chart = replace(chart, lines=lines_of(runs, chart.metric, chart.axis))
    if not chart.lines:
        names = ", ".join(run.run_id for run in runs)
        raise UsageError(f"no points of {chart.metric!r} in {names}", nearest(chart.metric, metric_names(runs)))
    write_chart(chart, path)
    return sum(len(line.x) for line in chart.lines)
