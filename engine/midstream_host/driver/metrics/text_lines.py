"""Lines of a growing text file, complete and of bounded length."""

from __future__ import annotations

import re
from typing import List, NamedTuple

from midstream_core.json_types import JsonValue

LINE_LIMIT = 1 << 20  # bytes of a line that is read; a longer one is passed over
END_OF_LINE = rb"\n"
END_OF_PART = rb"[\r\n]"  # a progress bar overwrites its line for minutes before the line ends


class TextLines(NamedTuple):
    """Complete lines of a read, without their ends.

    ``consumed``: bytes that are not read again. ``problem``: what was passed over.
    """

    lines: List[str]
    consumed: int
    problem: str


class LineSplitter:
    """Splitter of consecutive reads of a text into lines."""

    def __init__(self, end: bytes = END_OF_LINE) -> None:
        """``end``: regular expression of what ends a line."""
        self._end = re.compile(end)
        self._passes = False  # the read begins within a line that is too long

    @property
    def state(self) -> bool:
        """Whether the next read begins within a line that is passed over."""
        return self._passes

    def restore(self, state: JsonValue) -> None:
        """Continue from a state; one of another shape starts from nothing."""
        self._passes = state is True

    def split(self, data: bytes) -> TextLines:
        """Return the complete lines of ``data``.

        A line that is too long is passed over up to its end.
        """
        lines: List[str] = []
        at, long = 0, False
        for match in self._end.finditer(data):
            line, at = data[at : match.start()], match.end()
            if not self._passes and len(line) <= LINE_LIMIT:
                lines.append(line.decode("utf-8", "replace").rstrip("\r"))
            long = long or (not self._passes and len(line) > LINE_LIMIT)
            self._passes = False
        rest = len(data) - at
        if self._passes or rest > LINE_LIMIT:
            long = long or not self._passes
            self._passes, at = True, len(data)
        problem = "a line of more than {} bytes before it was passed over".format(LINE_LIMIT) if long else ""
        return TextLines(lines, at, problem)
