"""Cache of the series that curves are drawn from."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from midstream.charts import points
from midstream.charts.points import AXES, CLOCK, COLUMN_OF_AXIS, STEP, TIME, TOKENS
from midstream.tui.state.series import Series
from midstream.watch.loss_curve import CurveRows
from midstream_core.json_types import JsonObject, LoggedRow

__all__ = ["AXES", "CLOCK", "STEP", "TIME", "TOKENS", "SeriesCache", "x_of_step"]

MAX_SERIES = 48  # the least recently used is dropped first


@dataclass
class _Entry:
    rows: Sequence[LoggedRow]
    consumed: int  # rows
    series: Series


class SeriesCache:
    """Series by run, metric and axis.

    Long runs are added in steps of ``rows_at_once`` rows per `begin`.
    """

    def __init__(self, rows_at_once: int | None = None) -> None:
        self._entries: dict[Hashable, _Entry] = {}
        self._at_once = self._left = rows_at_once
        self.behind = False

    def begin(self) -> None:
        """Start a step. After it ``behind`` is True if a requested series is incomplete."""
        self._left, self.behind = self._at_once, False

    def series(self, key: Hashable, rows: Sequence[JsonObject], metric: str, axis: str = STEP) -> tuple[Series, bool]:
        """Return the series of a metric over an axis, and whether it was rebuilt.

        The second value is True if it was rebuilt instead of extended.

        ``key`` identifies the run that the rows belong to.
        """
        full = (key, metric, axis)
        entry = self._entries.pop(full, None)
        fresh = entry is None
        if entry is None or not (rows is entry.rows or (isinstance(rows, CurveRows) and rows.continues(entry.rows))):
            entry, fresh = _Entry((), 0, Series()), True
        entry.rows = rows
        stop = len(rows) if self._left is None else min(len(rows), entry.consumed + self._left)
        if stop > entry.consumed:
            _extend(entry.series, rows, entry.consumed, stop, metric, axis)
            self._left = None if self._left is None else self._left - (stop - entry.consumed)
            entry.consumed = stop
        self.behind = self.behind or entry.consumed < len(rows)
        self._entries[full] = entry
        while len(self._entries) > MAX_SERIES:
            del self._entries[next(iter(self._entries))]
        return entry.series, fresh


def x_of_step(rows: Sequence[LoggedRow], step: int, axis: str) -> float | None:
    """Return the position of a step on an axis, or None if no row has it."""
    if axis == STEP:
        return float(step)
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if rows[middle]["global_step"] < step else (low, middle)
    if low == len(rows):
        return None
    value = rows[low].get(COLUMN_OF_AXIS[axis])
    return None if value is None else value - (rows[0].get("time") or 0.0 if axis == TIME else 0.0)


def _extend(series: Series, rows: Sequence[JsonObject], start: int, stop: int, metric: str, axis: str) -> None:
    last = series.x[-1] if len(series) else 0.0
    for attempt, x, y in points.blocks(rows, start, stop, metric, axis, last):
        series.extend(x, y, attempt)
