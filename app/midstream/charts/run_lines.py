"""Lines of runs' metrics."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from midstream.charts.chart import Line
from midstream.charts.points import blocks
from midstream.watch.loss_curve import CurveRows
from midstream.watch.snapshot import RunView


def lines_of(runs: Sequence[RunView], metric: str, axis: str) -> list[Line]:
    """Return the lines of a metric: of one run by attempt, of several runs by run."""
    lines: list[Line] = []
    for number, run in enumerate(runs):
        parts: dict[int, tuple[array[float], array[float]]] = {}
        for attempt, x, y in blocks(run.curve, 0, len(run.curve), metric, axis):
            if not len(x):
                continue
            points = parts.setdefault(attempt, (array("d"), array("d")))
            points[0].extend(x)
            points[1].extend(y)
        if len(runs) == 1:
            names = _attempt_names(run)
            lines += [
                Line(names.get(attempt, f"attempt {attempt}"), x, y, run.run_id, attempt, index)
                for index, (attempt, (x, y)) in enumerate(parts.items())
            ]
        else:
            lines += [Line(run.run_id, x, y, run.run_id, attempt, number) for attempt, (x, y) in parts.items()]
    return lines


def metric_names(runs: Sequence[RunView]) -> list[str]:
    """Return the names of all numbers that the runs have recorded, sorted."""
    names: set[str] = set()
    for run in runs:
        curve = run.curve
        names |= curve.names() if isinstance(curve, CurveRows) else {name for row in curve for name in row}
    return sorted(names)


def _attempt_names(run: RunView) -> dict[int, str]:
    entries = run.lineage.entries if run.lineage else []
    return {
        entry.attempt: f"attempt {entry.attempt}: {entry.target}, {entry.devices} x {entry.device_kind}"
        for entry in entries
    }
