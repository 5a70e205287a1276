"""PagedLogView: the end of a log, with earlier parts read on scroll or search."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from textual import events
from textual.message import Message

from midstream import format
from midstream.tui.widgets.log_view import LogView, clean, new_lines
from midstream.watch.host_log import LogLines
from midstream.watch.log_query import LogQuery
from midstream.watch.snapshot import LogRange
from midstream_host.runs.log_pages import LogMatches

PAGE = 1 << 18  # bytes
MARGIN = 3  # rows from an end of the loaded lines at which more are requested
BEFORE, AFTER, AT, END = "before", "after", "at", "end"
UNKNOWN = LogRange()


@dataclass(frozen=True)
class PageRequest:
    """Request for a part of the log: before, after or around a byte, or the last page.

    ``place``: that byte.
    """

    where: str
    place: int
    end: int = 0  # of a page AFTER

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Begin and end, in bytes, of the pages to read."""
        before = (max(0, self.place - PAGE), self.place)
        if self.where == BEFORE:
            return (before,)
        if self.where == AFTER:
            return ((self.place, self.end),)
        if self.where == END:
            return ((-PAGE, 1 << 62),)
        after = (self.place, self.place + PAGE)
        return (before, after) if self.place else (after,)


class PagedLogView(LogView):
    """A log of which bytes ``begin`` to ``end`` are loaded.

    Attached, it shows the lines that its host reports, and earlier ones once they are read. Detached, it shows another
    part of the file; it is attached again when that part is continued to the reported lines.
    """

    class PageWanted(Message):
        """A part of the log is to be read: answer with `take` or `failed`."""

        def __init__(self, request: PageRequest) -> None:
            super().__init__()
            self.request = request

    class SearchWanted(Message):
        """The log is to be searched on its host: answer with `found` or `failed`.

        ``by`` is -1 to go to the last match before byte ``place``, 1 to the first one from there on, 0 to count only.
        """

        def __init__(self, query: LogQuery, place: int, by: int) -> None:
            super().__init__()
            self.query, self.place, self.by = query, place, by

    def __init__(self, *, empty: str = "no lines yet", id: str | None = None) -> None:
        super().__init__(empty=empty, id=id)
        self.attached = True
        self.matches: LogMatches | None = None  # of the search, in the file
        self._begin = self._end = self._total = 0
        self._known = UNKNOWN
        self._reading = self._searching = False

    # ------------------------------------------------------------------------------------------ content

    def show(self, lines: Sequence[str], log_range: LogRange = UNKNOWN) -> None:
        """Show reported lines, bytes ``log_range`` of the log, after those shown so far."""
        self._known = log_range
        if lines is self._source:
            return
        fresh = new_lines(self._source, lines)
        self._source = lines
        if fresh is None and not (self.attached or lines):
            self.attached = True  # the log of another attempt, which is empty still
        if not self.attached:
            self._total = max(self._total, log_range.end)
            return
        self._end = self._total = log_range.end
        if fresh is None:
            self._begin, self.matches = log_range.begin, None
            self.replace(lines)
        elif fresh:
            self._extend(fresh)

    def _extend(self, lines: Sequence[str]) -> None:
        if self.matches is not None and self.attached and self._end > self.matches.size:
            count = sum(map(LogQuery.parse(self.query_words).matcher(), map(clean, lines)))
            new = self._end - self.matches.size
            self.matches = replace(
                self.matches,
                count=self.matches.count + count,
                searched=self.matches.searched + new,
                size=self._end,
            )
        super()._extend(lines)

    def forget(self) -> None:
        """Remove all lines, before those of another log are shown."""
        self.attached, self.matches, self._known, self._source = True, None, UNKNOWN, ()
        self._begin = self._end = self._total = 0
        self._reading = self._searching = False
        self.replace(())

    def take(self, request: PageRequest, pages: Sequence[LogLines], marked: int | None = None) -> None:
        """Show the parts that were read.

        ``marked`` is the line to mark; by default that at the requested byte.
        """
        self._reading = False
        if request.where == BEFORE and request.place == self._begin:
            self._prepend(pages[0])
        elif request.where == AFTER and request.place == self._end and not self.attached:
            self._end, self._total = pages[0].end, pages[0].size
            super()._extend(pages[0].lines)
            if self._source and self._end >= self._known.begin:
                self.attached, self._end = True, self._known.end
                super()._extend(self._source)
        elif request.where in (AT, END):
            self.attached = self.following = False
            self._begin, self._end, self._total = pages[0].begin, pages[-1].end, pages[-1].size
            self.replace([line for page in pages for line in page.lines])
            self._mark_line(marked if marked is not None else len(pages[0].lines) if len(pages) > 1 else 0)
        self.post_message(self.Changed())

    def failed(self) -> None:
        """Note that the part could not be read, or the log not be searched."""
        self._reading = self._searching = False
        self.post_message(self.Changed())

    def _prepend(self, page: LogLines) -> None:
        rows, count, marked = self.virtual_size.height, self.count, self._at
        y = int(self.scroll_offset.y)
        cleaned = [clean(line) for line in page.lines]
        self._lines[:0] = cleaned
        self._longest = max(self._longest, max(map(len, cleaned), default=0))
        self._begin, self._total = page.begin, max(self._total, page.size)
        self._reset()
        self._lay()
        self._at = marked + self.count - count if marked >= 0 else -1
        if not self.following:
            self.scroll_to(y=y + self.virtual_size.height - rows, animate=False, immediate=True, force=True)

    def _mark_line(self, index: int) -> None:
        """Mark a line, or the next shown one, and scroll to it."""
        if self._shown is not None:
            index = bisect_left(self._shown, index)
        if self.count:
            self._go_to(min(index, self.count - 1))

    @property
    def complete(self) -> bool:
        """Whether all lines of the log are loaded."""
        return self.attached and self._begin == 0

    def status_words(self) -> list[str]:
        words = super().status_words()
        if self.matches is not None and self.query_words:
            searched, size = self.matches.searched, self.matches.size
            text = f"{self.matches.count:,} match{'es' if self.matches.count != 1 else ''}"
            place = f" in all {format.size(size)}" if size else ""
            if searched < size:
                text, place = f"at least {text}", f" in the last {format.size(searched)}"
            words.append(text + place)
        if not self.complete:
            loaded, size = format.size(self._end - self._begin), format.size(self._total)
            begin, end = format.size(self._begin), format.size(self._end)
            words.append(f"the last {loaded} of {size}" if self.attached else f"{begin} to {end} of {size}")
        return words + ["searching ..."] * self._searching + ["reading ..."] * self._reading

    # ------------------------------------------------------------------------------------------ scrolling

    def _want(self, request: PageRequest) -> None:
        if not self._reading:
            self._reading = True
            self._post(self.PageWanted(request))
            self.post_message(self.Changed())

    def _post(self, message: Message) -> None:
        """Post a message to the screen, even while a message of the pane is handled.

        Without the pane as its sender, the message would end in the pane.
        """
        self.post_message(message.set_sender(self))

    def want_end(self) -> None:
        """Request the last page."""
        self._want(PageRequest(END, 0))

    def _want_more(self) -> None:
        """Request the page at that end of the loaded lines which is in sight."""
        if self.scroll_offset.y <= MARGIN and self._begin > 0:
            self._want(PageRequest(BEFORE, self._begin))
        elif self.scroll_offset.y >= self.max_scroll_y - MARGIN and not self.attached and self._end < self._total:
            limit = self._known.begin if self._source and self._known.begin > self._end else self._total
            self._want(PageRequest(AFTER, self._end, min(self._end + PAGE, limit)))

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if not self.attached:
            self.following = False
        if new_value != old_value and not self.following:
            self._want_more()

    def action_page(self, by: int) -> None:
        super().action_page(by)
        self._want_more()

    def action_scroll_up(self) -> None:
        super().action_scroll_up()
        self._want_more()

    def action_scroll_down(self) -> None:
        super().action_scroll_down()
        self._want_more()

    def on_mouse_scroll_up(self, _: events.MouseScrollUp) -> None:
        self._want_more()

    def on_mouse_scroll_down(self, _: events.MouseScrollDown) -> None:
        self._want_more()

    def action_scroll_home(self) -> None:
        """Go to the first line of the log."""
        if self._begin > 0:
            self._want(PageRequest(AT, 0))
        else:
            super().action_scroll_home()

    def action_scroll_end(self) -> None:
        """Follow the newest line."""
        self._show_live()
        super().action_scroll_end()

    def action_follow(self) -> None:
        self._show_live()
        super().action_follow()

    def _show_live(self) -> None:
        if not self.attached and self._source:
            self.attached, self.following = True, False
            self._begin, self._end, self._total = self._known.begin, self._known.end, self._known.end
            self.replace(self._source)

    # ------------------------------------------------------------------------------------------ searching

    def find(self, words: str) -> None:
        self.matches, self._searching = None, False
        super().find(words)
        if not self.query_words:
            return
        if self.complete:
            count = sum(map(LogQuery.parse(self.query_words).matcher(), self._lines))
            self.matches = LogMatches(count, self._total, self._total, None, None)
            self.post_message(self.Changed())
        elif not self._searching:
            self._search(self._begin, 0)

    def _search(self, place: int, by: int) -> None:
        self._searching = True
        self._post(self.SearchWanted(LogQuery.parse(self.query_words), place, by))
        self.post_message(self.Changed())

    def no_match(self, by: int) -> None:
        if by < 0 and self._begin > 0:
            self._search(self._begin, by)
        elif by > 0 and not self.attached and self._end < self._total:
            self._search(self._end, by)
        else:
            super().no_match(by)

    def show_matches(self, query: LogQuery, matches: LogMatches, by: int) -> None:
        """Show the number of matches, and go to the one that was looked for."""
        if query == LogQuery.parse(self.query_words):
            self.matches, self._searching = matches, False
            place = {-1: matches.before, 1: matches.after, 0: None}[by]
            if place is not None:
                self._reading = False
                self._want(PageRequest(AT, place))
            elif by:
                super().no_match(by)
        self.post_message(self.Changed())
