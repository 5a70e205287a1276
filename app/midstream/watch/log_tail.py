"""Last lines of a log as its host reports them, and their bytes in the file."""

from __future__ import annotations

from collections import deque

from midstream.watch.snapshot import LogRange
from midstream_core.json_types import ReportLine

MAX_LINES = 5000


class LogTail:
    """Collects the log events of one run, and drops the oldest lines past `MAX_LINES`."""

    __slots__ = ("_begin", "_end", "_lines", "_process")

    def __init__(self) -> None:
        # Each line with its bytes in the file. An empty deque takes 0.7 kB, and most runs have ended.
        self._lines: deque[tuple[str, int]] | None = None
        self._begin = self._end = self._process = 0

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(line for line, _ in self._lines or ())

    @property
    def range(self) -> LogRange:
        """The bytes that the lines are; an empty range if the host does not report it."""
        return LogRange(min(self._begin, self._end), self._end, self._process)

    def clear(self) -> None:
        self._lines = None
        self._begin = self._end = self._process = 0

    def take(self, event: ReportLine) -> None:
        """Add the lines of a log event."""
        from midstream_host.runs.log_pages import displayed

        offset, end = event.get("offset", 0), event.get("end", 0)
        if event["first"] or offset != self._end:
            self.clear()
            self._begin, self._process = offset, event.get("process", 0)
        raw = event["text"].removesuffix("\n").split("\n")
        sizes = [len(line.encode("utf-8", "surrogatepass")) + 1 for line in raw] if end else [0] * len(raw)
        if end:  # bytes that are no UTF-8 are longer as text
            sizes[-1] = max(0, sizes[-1] + end - offset - sum(sizes))
        self._end = end
        if self._lines is None or len(raw) > MAX_LINES:
            self._lines = deque()
        if len(raw) > MAX_LINES:
            self._begin = offset + sum(sizes[:-MAX_LINES])
        self._lines.extend(zip(map(displayed, raw[-MAX_LINES:]), sizes[-MAX_LINES:], strict=True))
        while len(self._lines) > MAX_LINES:
            self._begin += self._lines.popleft()[1]
