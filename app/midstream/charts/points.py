"""Points of a metric over an axis: steps, tokens or time."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from itertools import compress

from midstream.watch.loss_curve import CurveRows
from midstream_core.json_types import LoggedRow

STEP, TOKENS, TIME = "step", "tokens", "time"
AXES = (STEP, TOKENS, TIME)  # of runs
CLOCK = "clock"  # of hosts, which have no steps: UTC seconds, shown as local time
COLUMN_OF_AXIS = {TOKENS: "throughput/total_tokens", TIME: "time"}

Block = tuple[int, "array[float]", "array[float]"]  # attempt, x, y


def blocks(
    rows: Sequence[LoggedRow], start: int, stop: int, metric: str, axis: str, last: float = 0.0
) -> Iterator[Block]:
    """Yield the points of rows ``start <= i < stop``, in blocks of one attempt each.

    x is in ascending order. Tokens and times may be missing or decrease (a clock set back): such a point gets the x of
    the one before it. Times are seconds since the first row.

    Args:
        rows: Rows of all accepted attempts, in order.
        start: Index of the first row.
        stop: Index after the last row.
        metric: Name of the metric; rows without it have no point.
        axis: One of `AXES`.
        last: x of the point before the first one.
    """
    origin = (rows[0].get("time") or 0.0) if axis == TIME and len(rows) else 0.0
    for attempt, x, y in _raw(rows, start, stop, metric, axis):
        if axis != STEP:
            for index, value in enumerate(x):
                last = max(last, value - origin) if math.isfinite(value - origin) else last
                x[index] = last
        yield attempt, x, y


def _raw(rows: Sequence[LoggedRow], start: int, stop: int, metric: str, axis: str) -> Iterator[Block]:
    if isinstance(rows, CurveRows):
        for attempt, begin, end in rows.stretches(start, stop):
            values, present = rows.numbers(metric, begin, end)
            x = (
                array("d", rows.steps(begin, end))
                if axis == STEP
                else rows.numbers(COLUMN_OF_AXIS[axis], begin, end)[0]
            )
            if 0 in present:
                values, x = array("d", compress(values, present)), array("d", compress(x, present))
            yield attempt, x, values
        return
    for row in rows[start:stop]:
        if metric in row:
            at = row["global_step"] if axis == STEP else row.get(COLUMN_OF_AXIS[axis])
            number = row[metric]
            y = array("d", (math.nan if number is None else number,))
            yield row.get("attempt", 0), array("d", (math.nan if at is None else at,)), y
