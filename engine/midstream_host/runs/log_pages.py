"""Pages of a log, and the lines of it that match a search.

Runs on the host; standard library only.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from typing import BinaryIO, Callable, List, Optional

from midstream_core import records
from midstream_host.declarations import PAGE_LIMIT, reads
from midstream_host.shapes import Text

MAX_LINE = 4096  # characters of a line that are shown and searched
MAX_PAGE = 1 << 20  # bytes
BLOCK = 1 << 20  # bytes that a search reads at a time
SEARCH_TIME = 20.0  # seconds after which a search ends with the part that it has searched
_COLOUR = re.compile("\x1b\\[[0-9;:]*m")


@dataclasses.dataclass(frozen=True)
class LogPage:
    """Complete lines of a log: its bytes ``begin`` to ``end``, of ``size`` in all."""

    text: Text
    begin: int
    end: int
    size: int


@dataclasses.dataclass(frozen=True)
class LogMatches:
    """The lines that match a search in the last ``searched`` of ``size`` bytes.

    ``before`` is the byte at which the last match before the given place begins, ``after`` that of the first match from
    there on; None where there is none.
    """

    count: int
    searched: int
    size: int
    before: Optional[int]
    after: Optional[int]


def displayed(line: str) -> str:
    """Return what a terminal would show of a line with carriage returns.

    A progress bar has such lines.
    """
    return line.rstrip("\r").rpartition("\r")[2][:MAX_LINE]


def plain(line: str) -> str:
    """Return a line as a search reads it: the text of a terminal, without colours."""
    return _COLOUR.sub("", displayed(line))


def alternatives(word: str) -> List[str]:
    """Return the parts of ``a|b``; a word without such parts is its own."""
    return [text for text in word.split("|") if text] or [word]


def matcher(words: List[str], excluded: List[str], ignore_case: bool) -> Callable[[str], bool]:
    """Return a predicate for lines with all of ``words`` and none of ``excluded``.

    Of a word with alternatives, ``a|b``, a line has one.
    """
    needed, refused = list(map(alternatives, words)), list(map(alternatives, excluded))

    def matches(line: str) -> bool:
        text = line.lower() if ignore_case else line
        return all(any(part in text for part in word) for word in needed) and not any(
            part in text for word in refused for part in word
        )

    return matches


@reads(limit=PAGE_LIMIT)
def page(path: str, begin: int, end: int) -> LogPage:
    """Return the lines between two bytes of a log, at most `MAX_PAGE` bytes.

    A line that crosses ``begin`` or ``end`` is left out, unless the page would be empty. A negative ``begin`` counts
    from the end of the file. The last line of a file may have no end.
    """
    with records.open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        begin = max(0, size + begin) if begin < 0 else min(begin, size)
        end = max(begin, min(end, size, begin + MAX_PAGE))
        data = _read(file, begin, end)
        if begin and data and _read(file, begin - 1, begin) != b"\n":
            skipped = data.find(b"\n") + 1
            if 0 < skipped < len(data):
                data, begin = data[skipped:], begin + skipped
        if end < size and b"\n" in data:
            data = data[: data.rfind(b"\n") + 1]
    return LogPage(data.decode("utf-8", "replace"), begin, begin + len(data), size)


@reads()
def search(
    path: str, words: List[str], excluded: List[str], ignore_case: bool, place: int, seconds: float = SEARCH_TIME
) -> LogMatches:
    """Count the matching lines of a log, and find those next to byte ``place``.

    The log is read from its end to its beginning. The search ends early after ``seconds``. A line longer than
    `BLOCK` counts in parts.

    Args:
        path: Path of the log.
        words: Words that a matching line has, all of them.
        excluded: Words of which it has none.
        ignore_case: Whether to compare lower case; ``words`` and ``excluded`` are then in lower case.
        place: Byte of the log.
        seconds: Time limit.
    """
    matches = matcher(words, excluded, ignore_case)
    deadline = time.monotonic() + seconds
    count, before, after = 0, None, None
    with records.open_regular(path) as file:
        size = end = os.fstat(file.fileno()).st_size
        while end > 0 and time.monotonic() < deadline:
            begin = max(0, end - BLOCK)
            data = _read(file, begin, end)
            if begin:
                partial = data.find(b"\n") + 1
                if 0 < partial < len(data):
                    data, begin = data[partial:], begin + partial
            at = begin
            for raw in data.split(b"\n"):
                if raw and matches(plain(raw.decode("utf-8", "replace"))):
                    count += 1
                    if at < place and (before is None or at > before):
                        before = at
                    if at >= place and (after is None or at < after):
                        after = at
                at += len(raw) + 1
            end = begin
    return LogMatches(count, size - end, size, before, after)


def _read(file: BinaryIO, begin: int, end: int) -> bytes:
    file.seek(begin)
    return file.read(end - begin)
