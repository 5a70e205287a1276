"""Log of a run: the choice of its process, and pages read from the host on demand."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

from textual.message import Message

from midstream.tui.screens.dialogs.choose import ChooseScreen
from midstream.tui.screens.run_tools import LOGS, RunToolsScreen
from midstream.tui.widgets.log_pane import LogPane
from midstream.tui.widgets.paged_log_view import END, PagedLogView, PageRequest
from midstream.tui.widgets.table import Column, Row
from midstream.watch.host_log import LogLines
from midstream.watch.log_errors import error_line
from midstream.watch.snapshot import RunView
from midstream_host.runs.log_pages import LogMatches

Source = tuple[str, int, int]  # host, attempt and process of a log


class RunLogScreen(RunToolsScreen):
    """Run screen base class with the log."""

    class PageRead(Message):
        """Parts of a log were read; None: they could not be."""

        def __init__(self, source: Source, request: PageRequest, pages: Sequence[LogLines] | None) -> None:
            super().__init__()
            self.source, self.request, self.pages = source, request, pages

    class Searched(Message):
        """A log was searched; None: it could not be."""

        def __init__(self, source: Source, search: PagedLogView.SearchWanted, matches: LogMatches | None) -> None:
            super().__init__()
            self.source, self.search, self.matches = source, search, matches

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self._process: int | None = None  # whose log is shown; None: that which the run's host reports
        self._chosen_in = 0  # the attempt in which that process was chosen
        self._log_source: Source | None = None
        self._at_failure = False  # the next log read from its end is shown at the line that says why it failed

    @property
    def log_view(self) -> PagedLogView:
        return self.query_one(PagedLogView)

    def _log_copy(self, run: RunView) -> tuple[RunView, int]:
        """Return the copy of the run whose log is shown, and the number of its process.

        The chosen process is shown, unless a later attempt has fewer processes.
        """
        processes = run.status.processes if run.status is not None else 0
        missing = self._process is not None and run.attempt != self._chosen_in and self._process >= processes
        if self._process is None or missing:
            return run, run.log_range.process
        members = self.screen_state.snapshot.members(run)
        chosen = next((member for member in members if member.log_range.process == self._process), None)
        at = chosen or next(
            (member for member in members if member.status and member.status.process == self._process), run
        )
        return at, self._process

    def show_log(self, run: RunView) -> None:
        """Show the log as it is reported; read the end of one that is not."""
        copy, process = self._log_copy(run)
        source = (copy.host, copy.attempt, process)
        reported = copy.log_range.process == process
        if source != self._log_source:
            if self._log_source is not None or not reported:
                self.log_view.forget()
            self._log_source = source
            if not reported:
                self.log_view.want_end()
        if reported:
            self.query_one(LogPane).show(copy.log, copy.log_range)

    def go_to_failure(self) -> None:
        """Show the log of the process that failed first, at the line that says why."""
        run = self.run_view
        failure = self.screen_state.failure(run) if run is not None else None
        if run is None or failure is None:
            return
        if (failure.run.key, failure.process) != (run.key, run.log_range.process):
            self._process, self._chosen_in = failure.process, run.attempt
        self._at_failure = True
        self.show_log(run)
        copy = failure.run
        if copy.log_range.process == failure.process and copy.log:
            self._at_failure = False
            self.log_view.go_to(len(copy.log) - 1 - copy.error_line)

    def action_full_log(self) -> None:
        """Show the log from its first line on."""
        self.action_view(LOGS)
        self.log_view.action_scroll_home()

    def action_process(self) -> None:
        """Choose the process whose log is shown."""
        run = self.run_view
        count = run.status.processes if run is not None and run.status is not None else 1
        if run is None or count < 2:
            self.notify("the run has one process")
            return
        members = self.screen_state.snapshot.members(run)
        hosts = {member.status.process: member.host for member in members if member.status}
        rows = [Row(number, (str(number), hosts.get(number, run.host))) for number in range(count)]

        def chosen(number: Hashable) -> None:
            if isinstance(number, int):
                self._process, self._chosen_in = number, run.attempt
                self.action_view(LOGS)

        columns = (Column("PROCESS", right=True), Column("HOST"))
        selected = self._log_copy(run)[1]
        self.app.push_screen(ChooseScreen("Log of process", columns, rows, selected=selected), chosen)

    # ------------------------------------------------------------------------------------------ reading

    def on_paged_log_view_page_wanted(self, event: PagedLogView.PageWanted) -> None:
        run = self.run_view
        if run is None or self._log_source is None:  # its host has not reported it again
            self.log_view.failed()
        else:
            self.in_background(partial(self._read, *self._log_copy(run), self._log_source, event.request))

    def _read(self, run: RunView, process: int, source: Source, request: PageRequest) -> None:
        pages = None
        try:
            read = self.midstream.actions.read_log
            pages = [read(run, process, begin, end) for begin, end in request.ranges]
        finally:
            self.post_message(self.PageRead(source, request, pages))

    def on_run_log_screen_page_read(self, event: PageRead) -> None:
        if event.source != self._log_source:
            return
        if event.pages is None:
            self.log_view.failed()
            return
        marked = None
        if event.request.where == END:
            lines = event.pages[0].lines
            marked = error_line(lines) if self._at_failure else max(0, len(lines) - 1)
            self._at_failure = False
        self.log_view.take(event.request, event.pages, marked)

    def on_paged_log_view_search_wanted(self, event: PagedLogView.SearchWanted) -> None:
        run = self.run_view
        if run is None or self._log_source is None:
            self.log_view.failed()
        else:
            self.in_background(partial(self._search, *self._log_copy(run), self._log_source, event))

    def _search(self, run: RunView, process: int, source: Source, search: PagedLogView.SearchWanted) -> None:
        matches = None
        try:
            matches = self.midstream.actions.search_log(run, process, search.query, search.place)
        finally:
            self.post_message(self.Searched(source, search, matches))

    def on_run_log_screen_searched(self, event: Searched) -> None:
        if event.source != self._log_source:
            return
        if event.matches is None:
            self.log_view.failed()
        else:
            self.log_view.show_matches(event.search.query, event.matches, event.search.by)
