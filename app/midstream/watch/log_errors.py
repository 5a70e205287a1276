"""Find the line of a log that says why its process failed."""

from __future__ import annotations

import re
from collections.abc import Sequence

LAST_LINES = 12  # lines of a log without a traceback that count as its last words
SEARCHED_LINES = 1000  # at a log's end
MAX_TRACEBACK = 200  # lines
_TRACEBACK = re.compile(r"^\s*Traceback \(most recent call last\):")
_ERROR = re.compile(r"Z [EC] |\b(ERROR|CRITICAL|FATAL)\b|^[\w.]*(Error|Exception|Interrupt)\b")


def is_error(line: str) -> bool:
    """Return whether a line names an error."""
    return _ERROR.search(line) is not None


def error_line(lines: Sequence[str]) -> int:
    """Return the index of the line that says why the process failed.

    Index of the last line of the last traceback, else of the last line of an error, else of the last line that is not
    empty; 0 for an empty log.
    """
    if not lines:
        return 0
    first = max(0, len(lines) - SEARCHED_LINES)
    written = next((index for index in range(len(lines) - 1, first - 1, -1) if lines[index].strip()), first)
    for index in range(written, first - 1, -1):
        if _TRACEBACK.match(lines[index]):
            return _end_of_traceback(lines, index)
    return next((index for index in range(written, first - 1, -1) if is_error(lines[index])), written)


def last_words(lines: Sequence[str], error: int) -> Sequence[str]:
    """Return the lines from the error's traceback to the end.

    ``error``: index of the line at which the traceback ends. Without a traceback a few lines before that index come
    first.
    """
    for index in range(error, max(-1, error - MAX_TRACEBACK), -1):
        if index < len(lines) and _TRACEBACK.match(lines[index]):
            return lines[index : index + MAX_TRACEBACK]
    begin = max(0, min(error, len(lines) - LAST_LINES))
    return lines[begin : begin + MAX_TRACEBACK]


def _end_of_traceback(lines: Sequence[str], begin: int) -> int:
    """Return the index of the first line after the frames: the exception."""
    indent = len(lines[begin]) - len(lines[begin].lstrip())
    for index in range(begin + 1, len(lines)):
        line = lines[index]
        if line.strip() and len(line) - len(line.lstrip()) <= indent:
            return index
    return len(lines) - 1
