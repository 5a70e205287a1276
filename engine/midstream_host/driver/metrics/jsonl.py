"""Metrics in a file with one JSON object a line."""

from __future__ import annotations

import json
from typing import List

from midstream_core.json_types import JsonValue
from midstream_host.driver.metrics.parser import IndependentLines, Parsed
from midstream_host.driver.metrics.rows import Columns, Point

PATTERN = "**/*.jsonl"


class JsonlParser(IndependentLines):
    """Parser of lines of JSON; see `Parser`.

    Lines that are no object with a step are left out; where a file begins with such lines alone, the problem says so.
    """

    def __init__(self, columns: Columns) -> None:
        """``columns``: names of the step and the time."""
        super().__init__()
        self._columns = columns

    def parse(self, data: bytes, offset: int) -> Parsed:
        """Parse the complete lines; see `Parser.parse`."""
        points: List[Point] = []
        other = ""
        lines, consumed, problem = self._lines.split(data)
        for line in lines:
            try:
                value: JsonValue = json.loads(line)
            except (ValueError, RecursionError):
                continue
            point = self._columns.point(value) if isinstance(value, dict) else None
            if point is not None and point.values:
                points.append(point)
            else:
                other = other or _other(value, self._columns, single=len(lines) == 1)
        if not points and not offset:
            problem = problem or other
        return Parsed(points, consumed, problem)


def _other(value: JsonValue, columns: Columns, *, single: bool) -> str:
    """Return what a line is that is no row.

    A single object may be the settings before the rows.
    """
    if isinstance(value, list):
        return 'its lines are arrays, and rows are read from objects ({"step": 1, "loss": 2.5})'
    if isinstance(value, dict) and not single and columns.point(value) is None:
        return columns.without_step
    return ""
