"""LogView: up to a million log lines, following the newest until the user scrolls."""

from __future__ import annotations

import calendar
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from midstream.counts import count as counted
from midstream.printable import printable
from midstream.tui import commands
from midstream.tui.style import palette
from midstream.watch.log_query import LogQuery

MAX_LINES = 1_000_000  # the oldest are dropped at 10% more
OVERLAP = 400  # lines compared to find the new ones
ALL, WARNINGS, ERRORS = 0, 1, 2
LEVELS = ("", "warnings and errors", "errors")
WINDOWS = (0, 1, 5, 15, 60)  # minutes; 0: all
STAMP = "%Y-%m-%dT%H:%M:%SZ"  # timestamp of the engine, in UTC
# Without repetitions: a line that is one word of 4096 characters would take up to 150 ms, at each repaint.
_BAD = re.compile(r"\b(ERROR|CRITICAL|FATAL|Traceback)\b|\wError\b|Z [EC] ")
_WARN = re.compile(r"\bWARN(ING)?\b|\wWarning\b|Z W ")
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


def clean(line: str) -> str:
    """Return a line without colours and overwritten text.

    Other control characters are escaped.
    """
    if line.isprintable():
        return line
    return printable(_COLOUR.sub("", line.expandtabs(4).rstrip("\r\n").rsplit("\r", 1)[-1]))


def level_of(line: str) -> int:
    return ERRORS if _BAD.search(line) else WARNINGS if _WARN.search(line) else ALL


class LogView(ScrollView, can_focus=True, inherit_bindings=False):
    """Lines of text, filtered by search, level and time window."""

    SCOPES = (commands.PANE, commands.LOG)
    BINDINGS = commands.bindings(*SCOPES)
    DEFAULT_CSS = "LogView { height: 1fr; width: 1fr; }"

    class Changed(Message):
        """The status has changed: see ``status``."""

    class FindRequested(Message):
        """The search input is requested."""

    def __init__(self, *, empty: str = "no lines yet", id: str | None = None) -> None:
        super().__init__(id=id)
        self.empty = empty
        self.following = True
        self.wrapping = False
        self.query_words = ""
        self.only_matches = False
        self.level = ALL
        self.minutes = 0
        self._lines: list[str] = []
        self._source: Sequence[str] = ()
        self._shown: list[int] | None = None  # indices of the shown lines; None: all
        self._examined = 0  # lines that the filter has examined
        self._carried = ALL  # level of the last timestamped line; lines without a timestamp belong to it
        self._inside = True  # that line is in the time window
        self._longest = 0
        self._tops: list[int] = []  # with wrapping: first row of each shown line, and the end
        self._at = -1  # shown line of the current match

    # ------------------------------------------------------------------------------------------ content

    @property
    def lines(self) -> tuple[str, ...]:
        """All lines."""
        return tuple(self._lines)

    @property
    def count(self) -> int:
        """Number of shown lines."""
        return len(self._lines) if self._shown is None else len(self._shown)

    @property
    def status(self) -> str:
        """Follow state, filters and line counts."""
        return ", ".join(self.status_words())

    def status_words(self) -> list[str]:
        """Return the parts of the status."""
        words = ["following" if self.following else "paused"]
        if self.query_words:
            words.append(f"{'only' if self.only_matches else 'search'} '{self.query_words}'")
        if self.level:
            words.append(LEVELS[self.level])
        if self.minutes:
            words.append(f"last {self.minutes} min")
        if self._shown is not None:
            words.append(f"{self.count:,} of {counted(len(self._lines), 'line')}")
        else:
            words.append(counted(self.count, "line"))
        return words

    @property
    def plain(self) -> bool:
        """True without a search or filter."""
        return not (self.query_words or self.level or self.minutes)

    def show(self, lines: Sequence[str]) -> None:
        """Show the newest lines of the log, after the lines shown so far."""
        if lines is self._source:
            return
        fresh = new_lines(self._source, lines)
        self._source = lines
        if fresh is None:
            self.replace(lines)
        elif fresh:
            self._extend(fresh)

    def replace(self, lines: Sequence[str]) -> None:
        """Replace all lines."""
        self._lines, self._longest = [], 0
        self._reset()
        self._extend(lines)

    def _extend(self, lines: Sequence[str]) -> None:
        cleaned = [clean(line) for line in lines]
        self._lines += cleaned
        self._longest = max(self._longest, max(map(len, cleaned), default=0))
        if len(self._lines) > MAX_LINES * 1.1:
            del self._lines[: len(self._lines) - MAX_LINES]
            self._reset()
        self._lay()

    def _reset(self) -> None:
        """Reset the filter state."""
        self._shown, self._examined, self._carried, self._inside, self._tops, self._at = None, 0, ALL, True, [], -1

    def _refilter(self) -> None:
        self._reset()
        self._lay()
        self.post_message(self.Changed())

    def _lay(self) -> None:
        """Apply filters and wrapping to the lines that are new."""
        if self.level or self.minutes or (self.only_matches and self.query_words):
            self._filter()
        shown, width = self.count, max(10, self.size.width - 2)
        if self.wrapping:
            done = max(0, len(self._tops) - 1)
            rows = [-(-len(self._text(index)) // width) or 1 for index in range(done, shown)]
            self._tops = [*self._tops[:-1], *accumulate(rows, initial=self._tops[-1] if self._tops else 0)]
            self.virtual_size = Size(width, self._tops[-1])
        else:
            self.virtual_size = Size(self._longest + 2, shown)
        self._stay()
        self.refresh()
        self.post_message(self.Changed())

    def _filter(self) -> None:
        shown = self._shown if self._shown is not None else []
        since = self._since()
        matches = self._matcher() if self.only_matches else None
        for index in range(self._examined, len(self._lines)):
            line = self._lines[index]
            stamped = line[19:20] == "Z" and _STAMP.match(line) is not None
            if self.level:
                own = level_of(line)
                self._carried = own if stamped else max(own, self._carried)
                if self._carried < self.level:
                    continue
            if since:
                if stamped:
                    self._inside = line[:20] >= since
                if not self._inside:
                    continue
            if matches is None or matches(line):
                shown.append(index)
        self._shown, self._examined = shown, len(self._lines)

    def _since(self) -> str:
        """Return the timestamp at which the time window begins, before the newest line."""
        if not self.minutes:
            return ""
        newest = next((line[:20] for line in reversed(self._lines) if _STAMP.match(line)), "")
        if not newest:
            return ""
        seconds = calendar.timegm(time.strptime(newest, STAMP)) - 60 * self.minutes
        return time.strftime(STAMP, time.gmtime(seconds))

    def _matcher(self) -> Callable[[str], bool]:
        """Return a predicate for lines that match the search.

        A lower-case search ignores case.
        """
        return LogQuery.parse(self.query_words).matcher()

    def _text(self, shown: int) -> str:
        return self._lines[shown if self._shown is None else self._shown[shown]]

    # ------------------------------------------------------------------------------------------ scrolling

    def on_resize(self) -> None:
        self._tops = []
        self._lay()

    def _stay(self) -> None:
        if self.following:
            self.scroll_to(
                y=max(0, self.virtual_size.height - self.size.height), animate=False, immediate=True, force=True
            )

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        before = self.following
        if new_value >= self.max_scroll_y:
            self.following = True
        elif new_value < old_value:
            self.following = False
        if before is not self.following:
            self.post_message(self.Changed())

    def action_follow(self) -> None:
        """Follow the newest line, or stop following."""
        self.following = not self.following
        self._stay()
        self.post_message(self.Changed())

    def action_page(self, by: int) -> None:
        self.scroll_relative(y=by * max(1, self.size.height - 1), animate=False)

    def action_scroll_down(self) -> None:
        self.scroll_relative(y=1, animate=False)

    def action_scroll_up(self) -> None:
        self.scroll_relative(y=-1, animate=False)

    def action_scroll_left(self) -> None:
        self.scroll_relative(x=-8, animate=False)

    def action_scroll_right(self) -> None:
        self.scroll_relative(x=8, animate=False)

    def action_scroll_home(self) -> None:
        self.scroll_home(animate=False)

    def action_scroll_end(self) -> None:
        self.following = True
        self._stay()
        self.post_message(self.Changed())

    def go_to(self, from_end: int) -> None:
        """Mark the shown line ``from_end`` lines before the last one, and scroll to it."""
        if self.count:
            self._go_to(max(0, self.count - 1 - from_end))

    def _go_to(self, index: int) -> None:
        self._at = index
        top = self._tops[index] if self.wrapping else index
        self.following = False
        self.scroll_to(y=max(0, top - self.size.height // 2), animate=False, immediate=True, force=True)
        self.refresh()
        self.post_message(self.Changed())

    # ------------------------------------------------------------------------------------------ searching

    def action_find(self) -> None:
        self.post_message(self.FindRequested())

    def find(self, words: str) -> None:
        """Search for words and scroll to the newest match; empty text ends the search."""
        self.query_words = words.strip()
        if not self.query_words:
            self.only_matches = False
        self._refilter()
        if self.query_words and not self.only_matches:
            self._at = self.count
            self.action_match(-1)

    def action_match(self, by: int) -> None:
        """Scroll to the next (1) or previous (-1) match."""
        if not self.query_words:
            return
        matches = self._matcher()
        begin = self._at + by if self._at >= 0 else int(self.scroll_offset.y)
        for index in range(begin, self.count if by > 0 else -1, by):
            if 0 <= index < self.count and matches(self._text(index)):
                self._go_to(index)
                return
        self.no_match(by)

    def no_match(self, by: int) -> None:
        """Report that no later (1) or earlier (-1) line matches."""
        self.notify(f"no {'later' if by > 0 else 'earlier'} match", severity="warning")

    def action_only(self) -> None:
        if not self.query_words:
            self.action_find()
            return
        self.only_matches = not self.only_matches
        self._refilter()

    def action_level(self) -> None:
        self.level = (self.level + 1) % len(LEVELS)
        self._refilter()

    def action_window(self) -> None:
        self.minutes = WINDOWS[(WINDOWS.index(self.minutes) + 1) % len(WINDOWS)]
        self._refilter()

    def action_wrap(self) -> None:
        self.wrapping = not self.wrapping
        self._tops = []
        self.scroll_to(x=0, animate=False)
        self._lay()
        self.post_message(self.Changed())

    # ------------------------------------------------------------------------------------------ painting

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        base = self.rich_style
        if not self.count:
            message = f"no matching lines: {self.status}" if self._lines else self.empty
            text = f"   {message}" if y == 1 else ""
            return Strip([Segment(text, base + Style(color=palette.DIM))]).adjust_cell_length(width, base)
        column, top = self.scroll_offset
        row = y + top
        if not self.wrapping:
            if row >= self.count:
                return Strip.blank(width, base)
            return Strip(self._segments(row, self._text(row), base)).crop_extend(column, column + width, base)
        if row >= self._tops[-1]:
            return Strip.blank(width, base)
        line = bisect_right(self._tops, row) - 1
        room = max(10, width - 2)
        begin = (row - self._tops[line]) * room
        return Strip(self._segments(line, self._text(line)[begin : begin + room], base)).adjust_cell_length(width, base)

    def _segments(self, index: int, text: str, base: Style) -> list[Segment]:
        """Return a line in its colours, with matches highlighted."""
        level = level_of(self._text(index))
        style = base + Style(color=palette.BAD if level == ERRORS else palette.WAIT if level else palette.TEXT)
        lead = Segment(">" if index == self._at else " ", base + Style(color=palette.ACCENT))
        query = LogQuery.parse(self.query_words)
        if not query.marked:
            stamp = _STAMP.match(text)
            if stamp is None:
                return [lead, Segment(text, style)]
            return [lead, Segment(text[:20], base + Style(color=palette.DIM)), Segment(text[20:], style)]
        marked = "|".join(map(re.escape, query.marked))
        pieces = re.split(f"({marked})", text, flags=re.I if query.ignore_case else 0)
        mark = style + Style(color=palette.BACKGROUND, bgcolor=palette.WAIT)
        return [lead, *(Segment(piece, mark if number % 2 else style) for number, piece in enumerate(pieces) if piece)]


def new_lines(before: Sequence[str], now: Sequence[str]) -> Sequence[str] | None:
    """Return the lines of ``now`` after those of ``before``.

    The result is None if ``now`` does not continue ``before``.
    """
    if not before:
        return None
    last = before[-1]
    for index in range(len(now) - 1, -1, -1):
        if now[index] == last:
            length = min(index + 1, len(before), OVERLAP)
            if list(now[index + 1 - length : index + 1]) == list(before[len(before) - length :]):
                return now[index + 1 :]
    return None
