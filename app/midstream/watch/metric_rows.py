"""Rows of metrics, parsed from the lines that a host reports."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from midstream_core.json_types import JsonValue

MAX_NAME_LENGTH, MAX_TEXT_LENGTH = 200, 1000  # characters of names and values of metrics
MAX_INTEGER = 2**53  # of metrics
THROUGHPUT = "throughput/"  # of these names of metrics, the values are times and rates: they are always finite


def parse_rows(text: str) -> Sequence[dict[str, JsonValue]]:
    """Parse lines of metrics for display.

    Partial lines (after a full disk, for example) are left out. The certificate reads the file itself.
    """
    rows = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            if None in row.values():
                row = {name: _number(name, value) for name, value in row.items()}
            # A long run has many lines: share the strings of their names.
            rows.append({sys.intern(name): value for name, value in row.items() if _is_metric(name, value)})
    return rows


def _number(name: str, value: Any) -> Any:
    """Return NaN for the null of a measured value.

    The engine writes null for a value that is not finite.
    """
    return math.nan if value is None and "/" in name else value


def _is_metric(name: str, value: Any) -> bool:
    """Return True for a value of limited size and of the type its name implies."""
    if len(name) > MAX_NAME_LENGTH:
        return False
    if name == "global_step":
        return type(value) is int and 0 <= value <= MAX_INTEGER
    if isinstance(value, float) or (isinstance(value, int) and abs(value) <= MAX_INTEGER):
        return math.isfinite(value) or not name.startswith(THROUGHPUT)
    measured = "/" in name or name == "time"
    return not measured and (value is None or (isinstance(value, str) and len(value) <= MAX_TEXT_LENGTH))
