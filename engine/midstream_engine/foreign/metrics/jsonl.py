"""Metrics in a file with one JSON object a line."""

from __future__ import annotations

import json
from typing import Any, Dict, List, cast

from midstream_engine.foreign.metrics.parser import IndependentParts, Parsed
from midstream_engine.foreign.metrics.rows import Columns, Point
from midstream_engine.foreign.metrics.text_lines import complete_lines

PATTERN = "**/*.jsonl"


class JsonlParser(IndependentParts):
    """Parser of lines of JSON; see `Parser`.

    Lines that are no object with a step are left out.
    """

    def __init__(self, columns: Columns) -> None:
        """``columns``: names of the step and the time."""
        self._columns = columns

    def parse(self, data: bytes, offset: int) -> Parsed:  # noqa: ARG002
        """Parse the complete lines; see `Parser.parse`."""
        points: List[Point] = []
        consumed = 0
        for line, end in complete_lines(data):
            consumed = end
            try:
                value: Any = json.loads(line)
            except (ValueError, RecursionError):
                continue
            point = self._columns.point(cast("Dict[str, Any]", value)) if isinstance(value, dict) else None
            if point is not None and point.values:
                points.append(point)
        return Parsed(points, consumed)
