"""Metrics in a CSV file with a header.

Lightning's CSVLogger writes the file again from its beginning for a new column.
"""

from __future__ import annotations

import csv
from typing import Dict, List

from midstream_core.json_types import JsonValue, list_or_empty
from midstream_host.driver.metrics.parser import Parsed
from midstream_host.driver.metrics.rows import Columns, Point
from midstream_host.driver.metrics.text_lines import LineSplitter

PATTERN = "**/metrics.csv"
MAX_COLUMNS = 4096


class CsvParser:
    """Parses a CSV file; see `Parser`. Quoted cells may not have line breaks."""

    def __init__(self, columns: Columns) -> None:
        """``columns``: names of the step and the time."""
        self._columns = columns
        self._lines = LineSplitter()
        self._header: List[str] = []
        self._rows = 0  # data lines that were read
        self._skip = 0  # data lines to leave out, which were read before the file was written again

    @property
    def state(self) -> JsonValue:
        """Header, numbers of lines, and state of the line splitter."""
        return [self._header, self._rows, self._skip, self._lines.state]

    def restore(self, state: JsonValue) -> None:
        """Continue; see `Parser.restore`."""
        parts = list_or_empty(state)
        if len(parts) in (3, 4) and isinstance(parts[0], list) and type(parts[1]) is int and type(parts[2]) is int:
            self._header = [str(name) for name in parts[0]]
            self._rows, self._skip = parts[1], parts[2]
            self._lines.restore(parts[3] if len(parts) == 4 else False)  # builds before 2026-11-29 have three

    def rewritten(self, data: bytes) -> bool:
        """Return whether the header has all old columns and more.

        The old lines are then in the file again.
        """
        first = next(iter(LineSplitter().split(data).lines), "")
        header = _cells(first)
        if not self._header or not set(self._header) < set(header):
            return False
        self._skip, self._rows, self._header = max(self._rows, self._skip), 0, []
        self._lines.restore(False)
        return True

    def parse(self, data: bytes, offset: int) -> Parsed:  # noqa: ARG002
        """Parse the complete lines; see `Parser.parse`."""
        points: List[Point] = []
        lines, consumed, problem = self._lines.split(data)
        for line in lines:
            cells = _cells(line)
            if not cells:
                continue
            if not self._header:
                self._header = cells[:MAX_COLUMNS]
                if not set(self._columns.step_names) & set(self._header):
                    problem = problem or self._columns.without_step
                continue
            self._rows += 1
            if self._skip:
                self._skip -= 1
                continue
            values: Dict[str, JsonValue] = {name: cell for name, cell in zip(self._header, cells) if cell}
            point = self._columns.point(values)
            if point is not None and point.values:
                points.append(point)
        return Parsed(points, consumed, problem)


def _cells(line: str) -> List[str]:
    try:
        rows = list(csv.reader([line]))
        return rows[0] if rows else []
    except csv.Error:
        return []
