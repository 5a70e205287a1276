"""Complete lines of a growing text file."""

from __future__ import annotations

from typing import Iterator, Tuple

LINE_LIMIT = 1 << 20  # bytes of a line that is read; a longer one is passed over


def complete_lines(data: bytes) -> Iterator[Tuple[str, int]]:
    """Yield (line, position after it) of the lines of ``data`` that have an end."""
    at = 0
    while True:
        end = data.find(b"\n", at)
        if end < 0:
            return
        line = data[at:end]
        at = end + 1
        yield ("" if len(line) > LINE_LIMIT else line.decode("utf-8", "replace").rstrip("\r")), at
