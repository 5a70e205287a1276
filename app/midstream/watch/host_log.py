"""Read and search a log on a host, in parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from midstream.counts import count
from midstream.errors import RemoteError
from midstream.hosts.host import Host
from midstream.hosts.rpc.result_checks import HINT
from midstream.watch.log_query import LogQuery
from midstream_host.runs import log_pages, run_state

PART_SIZE = 1 << 20  # bytes of a log in one answer
TAIL_SIZE = 16_000  # bytes of which the last lines are taken


def read_log(host: Host, path: str) -> Iterator[str]:
    """Yield the log at ``path`` as text, in parts of complete lines.

    Raises RemoteError if the host skips or repeats bytes: a host could otherwise send a log without end.
    """
    return (part.text for part in _parts(host, path, 0))


def _parts(host: Host, path: str, offset: int) -> Iterator[run_state.Lines]:
    """Yield the log from byte ``offset`` on. Errors as of `read_log`."""
    while (chunk := host.call(run_state.read_lines)(path=path, offset=offset, limit=PART_SIZE)).text:
        if not offset < chunk.offset <= offset + PART_SIZE:
            raise RemoteError(
                f"{host.name}: runs.run_state.read_lines: offset {chunk.offset} after {offset} in {path}",
                "Answer",
                HINT,
            )
        offset = chunk.offset
        yield chunk


class LogFollower:
    """The last lines of a log on a host, then those that are new."""

    def __init__(self, host: Host, path: str, last: int) -> None:
        self._host, self._path, self._last = host, path, last
        self._offset: int | None = None  # of the next line; None: nothing was read yet

    def new_lines(self, *, complete: bool) -> Iterator[str]:
        """Yield the lines since the call before; in the first call the last lines.

        ``complete``: nothing is written any more, so that the last line may have no end. Before, a line is left to the
        next call until its end is written; the parts of a progress bar are not.

        Errors are those of `read_log`.
        """
        if self._offset is not None:
            yield from self._lines(complete)
            return
        self._offset = read_page(self._host, self._path, -TAIL_SIZE, 1 << 62).begin
        yield from deque(self._lines(complete), self._last)

    def _lines(self, complete: bool) -> Iterator[str]:
        begin = self._offset or 0
        for part in _parts(self._host, self._path, begin):
            cut = not part.text.endswith("\n") and "\r" not in part.text and part.offset - begin < PART_SIZE
            if cut and not complete:
                return
            begin = self._offset = part.offset
            yield from part.text.removesuffix("\n").split("\n")


@dataclass(frozen=True)
class LogLines:
    """Lines of a log: its bytes ``begin`` to ``end``, of ``size`` that it has."""

    lines: tuple[str, ...]
    begin: int
    end: int
    size: int


def read_page(host: Host, path: str, begin: int, end: int) -> LogLines:
    """Return the lines between two bytes of a log.

    A negative ``begin`` counts from the end of the log.

    Raises:
        RemoteError: The host returns another part of the file: a view would show lines twice, or without end.
    """
    page = host.call(log_pages.page)(path=path, begin=begin, end=end)
    inside = page.begin <= page.end <= page.size and (begin < 0 or begin <= page.begin) and page.end <= max(end, begin)
    length = page.end - page.begin  # in bytes: a character takes one of them at least
    if not inside or len(page.text) > length or length > log_pages.MAX_PAGE:
        raise RemoteError(
            f"{host.name}: runs.log_pages.page: bytes {page.begin} to {page.end} for {begin} to {end} of {path}",
            "Answer",
            HINT,
        )
    lines = page.text.removesuffix("\n").split("\n") if page.text else []
    return LogLines(tuple(map(log_pages.displayed, lines)), page.begin, page.end, page.size)


def search(host: Host, path: str, query: LogQuery, place: int) -> log_pages.LogMatches:
    """Count the lines of a log that match, and find those next to byte ``place``.

    Raises:
        RemoteError: The host names a match that is not where it was looked for, or more than the log can have.
    """
    hits = host.call(log_pages.search)(
        path=path,
        words=list(query.words),
        excluded=list(query.excluded),
        ignore_case=query.ignore_case,
        place=place,
    )
    before, after = hits.before, hits.after
    next_to_it = (before is None or before < place) and (after is None or place <= after < hits.size)
    if not next_to_it or not hits.count <= hits.searched <= hits.size:
        matches = count(hits.count, "match", "matches")
        raise RemoteError(
            f"{host.name}: runs.log_pages.search: {matches} in {hits.searched} of {hits.size} "
            f"bytes, at {before} and {after} around {place} of {path}",
            "Answer",
            HINT,
        )
    return hits
