"""Interface of the parsers of one growing file."""

from __future__ import annotations

from typing import List, NamedTuple, Protocol

from midstream_core.json_types import JsonValue
from midstream_host.driver.metrics.rows import Point
from midstream_host.driver.metrics.text_lines import END_OF_LINE, LineSplitter


class Parsed(NamedTuple):
    """Result of one read.

    ``consumed``: bytes that are not read again. ``problem``: why the rest waits.
    """

    points: List[Point]
    consumed: int
    problem: str = ""


class Parser(Protocol):
    """A parser of one file; it is created again for each file and each new part of it."""

    @property
    def state(self) -> JsonValue:
        """State from which it continues later, as JSON."""
        ...

    def restore(self, state: JsonValue) -> None:
        """Continue from a state; one of another shape starts from nothing."""
        ...

    def parse(self, data: bytes, offset: int) -> Parsed:
        """Parse bytes from file ``offset`` on; leave an incomplete end for the next read."""
        ...

    def rewritten(self, data: bytes) -> bool:
        """Return whether a file now has its earlier content, written with more columns.

        The file begins with ``data``.

        The parser then leaves out what it has had. Otherwise the file is a new part.
        """
        ...


class IndependentParts:
    """Base of the parsers of independent lines or records, in files that only grow."""

    @property
    def state(self) -> JsonValue:
        """Nothing: reading continues after a complete part."""
        return None

    def restore(self, state: JsonValue) -> None:
        """Nothing to restore."""

    def rewritten(self, data: bytes) -> bool:  # noqa: ARG002 (of `Parser`)
        """Such a file is only appended to."""
        return False


class IndependentLines(IndependentParts):
    """Base of the parsers whose lines are independent."""

    def __init__(self, end: bytes = END_OF_LINE) -> None:
        """``end``: regular expression of what ends a line."""
        self._lines = LineSplitter(end)

    @property
    def state(self) -> JsonValue:
        """Whether the next read begins within a line that is passed over."""
        return self._lines.state

    def restore(self, state: JsonValue) -> None:
        """Continue; see `Parser.restore`."""
        self._lines.restore(state)
