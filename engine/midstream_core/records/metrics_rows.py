"""Rows of ``metrics.jsonl``."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Iterable, List, Optional

from midstream_core import json_shapes
from midstream_core.json_types import JsonObject, JsonValue
from midstream_core.records.errors import RecordError

START_NUMBER = "start_number"  # column: the start that wrote the row; a version without start numbers has none


def start_of(row: JsonObject) -> Optional[int]:
    """Return the number of the start that wrote a row; None where it has none."""
    number = row.get(START_NUMBER)
    return number if type(number) is int and number > 0 else None


def parse_metrics(lines: Iterable[str]) -> List[Dict[str, Any]]:
    """Parse the rows of ``metrics.jsonl``.

    A partial last line (it is being written, or its writer was killed) is left out. Raises RecordError where a line in
    the middle is partial, or a line is not a row of metrics.
    """
    rows: List[Dict[str, Any]] = []
    partial: Optional[int] = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if partial is not None:
            raise RecordError(f"metrics.jsonl line {partial} is partial, and lines follow it")
        try:
            value: JsonValue = json.loads(line)
        except (ValueError, RecursionError):
            partial = number
            continue
        row: Dict[str, JsonValue] = value if isinstance(value, dict) else {"global_step": None}
        step = row.get("global_step", 0)
        if type(step) is not int or not 0 <= step <= json_shapes.MAX_INTEGER:
            raise RecordError(f"metrics.jsonl line {number} is not a row of metrics")
        rows.append(row)
    return rows


def relative_difference(a: float, b: float) -> float:
    """Return |a-b| / max(|a|, |b|).

    0 for equal values, infinity where one of two unequal values is not finite.
    """
    if not (math.isfinite(a) and math.isfinite(b)):
        return 0.0 if a == b else math.inf
    return 0.0 if a == b else abs(a - b) / max(abs(a), abs(b))


def difference_text(difference: float) -> str:
    """Return a `relative_difference` as the end of "differ by ..."."""
    if math.isinf(difference):
        return "infinity (a loss of one side is not finite)"
    return f"{difference:.1e} relative"


def both_nan(a: float, b: float) -> bool:
    """Return whether both are NaN: such a pair of measured values says nothing."""
    return math.isnan(a) and math.isnan(b)
