"""Metrics in the lines of a log, by a regular expression with named groups."""

from __future__ import annotations

import re
from typing import Any, Dict, List

from midstream_host.driver.metrics.parser import IndependentLines, Parsed
from midstream_host.driver.metrics.rows import Columns, Point
from midstream_host.driver.metrics.text_lines import END_OF_PART

PATTERN = "*.log"
MATCHED = 2000  # characters of a line: an expression may take time that grows with the length
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class RegexParser(IndependentLines):
    """Parser of lines of text; see `Parser`.

    A progress bar overwrites its line: each of its texts is a line of its own, which ends where the next begins.

    Raises:
        ValueError: The expression is none, or has no group ``step``.
    """

    def __init__(self, expression: str, columns: Columns) -> None:
        """Create a parser of lines that match ``expression``.

        ``expression`` has the groups ``step``, ``loss``, ``learning_rate``, and others by their names.
        """
        super().__init__(END_OF_PART)
        try:
            self._expression = re.compile(expression)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError("the regular expression for metrics is none: {}".format(error)) from None
        if "step" not in self._expression.groupindex:
            raise ValueError("the regular expression for metrics has no group (?P<step>...)")
        self._columns = Columns(columns.first_step)

    def parse(self, data: bytes, offset: int) -> Parsed:  # noqa: ARG002
        """Parse the complete lines; see `Parser.parse`."""
        points: List[Point] = []
        lines, consumed, problem = self._lines.split(data)
        for line in lines:
            match = self._expression.search(_ESCAPE.sub("", line[:MATCHED]))
            if match:
                groups: Dict[str, Any] = match.groupdict(default="")
                point = self._columns.point({name: value.replace(",", "") for name, value in groups.items()})
                if point is not None:
                    points.append(point)
        return Parsed(points, consumed, problem)
