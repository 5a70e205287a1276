"""The series that are drawn, made of runs' rows once and then kept up to date."""

from __future__ import annotations

import math
from array import array
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

from midstream.tui.widgets.series import Series
from midstream.watch.loss_curve import Rows

STEP, TOKENS, TIME = "step", "tokens", "time"
AXES = (STEP, TOKENS, TIME)
_OF_AXIS = {TOKENS: "throughput/total_tokens", TIME: "time"}
KEPT = 48  # series; the one that was asked for the longest ago goes first


@dataclass
class _Entry:
    rows: Sequence[Mapping[str, Any]]
    taken: int  # of the rows
    series: Series


class SeriesCache:
    """Series by what they are of. Millions of rows are taken in by and by: ``rows_at_once`` after each `begin`."""

    def __init__(self, rows_at_once: int | None = None) -> None:
        self._entries: dict[Hashable, _Entry] = {}
        self._at_once = self._left = rows_at_once
        self.behind = False

    def begin(self) -> None:
        """Take in more. ``behind`` says afterwards whether a series that was asked for is not whole yet."""
        self._left, self.behind = self._at_once, False

    def series(
        self, key: Hashable, rows: Sequence[Mapping[str, Any]], metric: str, axis: str = STEP
    ) -> tuple[Series, bool]:
        """The series of a metric over an axis, and whether it is another than at the last call (not merely grown).
        ``key`` names whose rows these are."""
        full = (key, metric, axis)
        entry = self._entries.pop(full, None)
        fresh = entry is None
        if entry is None or not (rows is entry.rows or (isinstance(rows, Rows) and rows.continues(entry.rows))):
            entry, fresh = _Entry((), 0, Series()), True
        entry.rows = rows
        stop = len(rows) if self._left is None else min(len(rows), entry.taken + self._left)
        if stop > entry.taken:
            _take(entry.series, rows, entry.taken, stop, metric, axis)
            self._left = None if self._left is None else self._left - (stop - entry.taken)
            entry.taken = stop
        self.behind = self.behind or entry.taken < len(rows)
        self._entries[full] = entry
        while len(self._entries) > KEPT:
            del self._entries[next(iter(self._entries))]
        return entry.series, fresh


def x_of_step(rows: Sequence[Mapping[str, Any]], step: int, axis: str) -> float | None:
    """Where a step lies on an axis; None where no row tells."""
    if axis == STEP:
        return float(step)
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if rows[middle]["global_step"] < step else (low, middle)
    if low == len(rows):
        return None
    value = rows[low].get(_OF_AXIS[axis])
    return None if value is None else value - (rows[0].get("time") or 0.0 if axis == TIME else 0.0)


def _take(series: Series, rows: Sequence[Mapping[str, Any]], start: int, stop: int, metric: str, axis: str) -> None:
    origin = (rows[0].get("time") or 0.0) if axis == TIME else 0.0
    if isinstance(rows, Rows):
        for attempt, begin, end in rows.stretches(start, stop):
            values, there = rows.numbers(metric, begin, end)
            x = array("d", rows.steps(begin, end)) if axis == STEP else rows.numbers(_OF_AXIS[axis], begin, end)[0]
            if 0 in there:
                values, x = array("d", compress(values, there)), array("d", compress(x, there))
            _append(series, x, values, attempt, axis, origin)
        return
    for row in rows[start:stop]:
        if metric in row:
            at = row["global_step"] if axis == STEP else row.get(_OF_AXIS[axis])
            number = row[metric]
            values = array("d", (math.nan if number is None else number,))
            _append(series, array("d", (math.nan if at is None else at,)), values, row.get("attempt", 0), axis, origin)


def _append(series: Series, x: array[float], y: array[float], attempt: int, axis: str, origin: float) -> None:
    """Points in the order of their x. Tokens and times may be missing, and clocks be set back: such points go where
    the one before them is."""
    if axis != STEP:
        last = series.x[-1] if len(series) else 0.0
        for index, value in enumerate(x):
            last = max(last, value - origin) if math.isfinite(value) else last
            x[index] = last
    series.extend(x, y, attempt)
