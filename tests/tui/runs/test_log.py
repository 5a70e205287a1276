"""LogView: follow, search, levels, time windows and folding, also for a million lines."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from midstream.errors import RemoteError
from midstream.tui.app import MidstreamApp
from midstream.tui.widgets import log_view
from midstream.tui.widgets.log_pane import LogPane
from midstream.tui.widgets.log_view import LogView, new_lines
from midstream.tui.widgets.paged_log_view import PAGE, PagedLogView
from midstream.watch import host_log
from midstream.watch.log_query import LogQuery
from midstream.watch.snapshot import LogRange, RunView
from midstream_core import records
from midstream_host.runs.log_pages import LogMatches, LogPage
from support.tui import fleets
from support.tui.prepared_actions import PreparedActions, PreparedSnapshots
from support.tui.screens import app_over, screen_text, settle


class LogApp(App[None]):
    pilot: Pilot[None]

    def compose(self) -> ComposeResult:
        yield LogPane()

    @property
    def view(self) -> LogView:
        return self.query_one(LogView)

    async def text(self) -> list[str]:
        await self.pilot.pause()
        view = self.view
        return [view.render_line(y).text.rstrip() for y in range(view.size.height)]


@pytest.fixture
async def log_app() -> AsyncIterator[LogApp]:
    app = LogApp()
    async with app.run_test(size=(80, 24)) as pilot:
        app.pilot = pilot
        yield app


def stamped(minute: int, words: str, level: str = "I") -> str:
    return f"2026-11-21T10:{minute:02}:00Z {level} {words}"


LINES = (
    stamped(0, "begins"),
    stamped(10, "a disk is slow", "W"),
    stamped(40, "it failed", "E"),
    "Traceback (most recent call last):",
    "  File train.py, line 3",
    stamped(50, "goes on"),
    stamped(52, "Saved step-1200"),
)


@pytest.mark.parametrize(
    ("before", "now", "added"),
    [
        ((), ("a",), None),
        (("a", "b"), ("a", "b", "c"), ("c",)),
        (("a", "b", "c"), ("b", "c", "d", "e"), ("d", "e")),
        (("a", "b"), ("a", "b"), ()),
        (("a", "b"), ("x", "y"), None),
        (("x", "x", "y"), ("x", "y", "x"), ("x",)),
    ],
)
def test_log_new_lines_of_a_sliding_window(
    before: Sequence[str], now: Sequence[str], added: Sequence[str] | None
) -> None:
    assert new_lines(before, now) == added


async def test_log_keeps_lines_that_left_the_window(log_app: LogApp) -> None:
    lines = [f"line {number}" for number in range(300)]
    for start in range(0, 200, 10):
        log_app.view.show(tuple(lines[start : start + 100]))
    assert log_app.view.lines == tuple(lines[:290])
    assert (await log_app.text())[-1].strip() == "line 289"


async def test_log_level_filter_keeps_lines_of_an_error(log_app: LogApp) -> None:
    log_app.view.show(LINES)
    log_app.view.action_level()
    assert [line.strip() for line in await log_app.text() if line][:1][0].endswith("a disk is slow")
    log_app.view.action_level()
    shown = [line.strip() for line in (await log_app.text()) if line]
    assert shown == [LINES[2], LINES[3], LINES[4].strip()]
    assert log_app.view.status == "following, errors, 3 of 7 lines"
    log_app.view.show((*LINES, stamped(53, "it failed again", "E")))
    assert log_app.view.count == 4


async def test_log_time_window_ends_at_newest_line(log_app: LogApp) -> None:
    log_app.view.show(LINES)
    counts = []
    for _ in range(5):
        log_app.view.action_window()
        counts.append(log_app.view.count)
    assert counts == [1, 2, 5, 7, 7]


async def test_log_search_steps_through_matches_and_hides_rest(log_app: LogApp) -> None:
    lines = [f"{stamped(number % 60, f'step {number}')}" for number in range(1000)]
    lines[100] += " Saved"
    lines[700] += " saved"
    log_app.view.show(tuple(lines))
    log_app.view.find("saved")
    assert "step 700 saved" in "".join(await log_app.text())
    log_app.view.action_match(-1)
    assert "step 100 Saved" in "".join(await log_app.text())
    log_app.view.action_match(1)
    assert "step 700 saved" in "".join(await log_app.text())
    log_app.view.action_only()
    assert log_app.view.count == 2
    log_app.view.find("saved !100")
    assert log_app.view.count == 1
    log_app.view.find("Saved")
    assert log_app.view.count == 1
    log_app.view.find("")
    assert log_app.view.count == 1000


async def test_log_slash_opens_search_and_esc_reaches_screen() -> None:
    app = LogApp()
    async with app.run_test(size=(80, 24)) as pilot:
        app.view.show(LINES)
        app.view.focus()
        await pilot.press("slash", *"disk", "enter", "e")
        await pilot.pause()
        assert app.view.count == 1
        assert app.query_one(LogPane).escaped()
        assert app.view.count == 7
        assert not app.query_one(LogPane).escaped()


async def test_log_folds_long_lines(log_app: LogApp) -> None:
    long = "x" * 100 + "y" * 100
    log_app.view.show(("first", long, "last"))
    log_app.view.action_wrap()
    shown = [line.strip() for line in (await log_app.text()) if line]
    assert shown[0] == "first"
    assert "".join(shown[1:-1]) == long
    assert shown[-1] == "last"
    log_app.view.show(("first", long, "last", "more"))
    assert [line.strip() for line in (await log_app.text()) if line][-1] == "more"


@pytest.mark.drawn
@pytest.mark.long
async def test_log_of_a_million_lines_scrolls_searches_and_folds(log_app: LogApp) -> None:
    lines = [f"step {number}" for number in range(1_000_000)]
    log_app.view.show(lines)
    for _ in range(50):
        log_app.view.action_page(-1)
        (await log_app.text())
    assert log_app.view.count == 1_000_000
    log_app.view.action_scroll_home()
    assert (await log_app.text())[0].strip() == "step 0"
    log_app.view.find("step 765432")
    log_app.view.action_only()
    assert log_app.view.count == 1
    log_app.view.find("")
    log_app.view.action_wrap()
    log_app.view.action_scroll_end()
    assert (await log_app.text())[-1].strip() == "step 999999"


def log_file(lines: int) -> str:
    return "".join(f"line {number} of the log{' rare' if number % 5000 == 77 else ''}\n" for number in range(lines))


def run_with_tail(log: str, lines: int, end: int | None = None) -> RunView:
    """A run whose host has reported the last ``lines`` of the first ``end`` bytes of its log."""
    end = len(log) if end is None else end
    tail = tuple(log[:end].splitlines()[-lines:])
    begin = end - sum(len(line) + 1 for line in tail)
    return fleets.run(log=tail, log_range=LogRange(begin, end))


@pytest.fixture
async def paged() -> AsyncIterator[tuple[MidstreamApp, Pilot[int], PreparedActions, str]]:
    """The log of a run of which the last 100 of 40,000 lines are known."""
    actions = PreparedActions()
    actions.log = log_file(40_000)
    app = app_over(fleets.small_fleet(run_with_tail(actions.log, 100)), actions, start_run="nano")
    async with app.run_test(size=(110, 24)) as pilot:
        await pilot.press("2")
        await settle(pilot)
        yield app, pilot, actions, actions.log


Paged = tuple[MidstreamApp, Pilot[int], PreparedActions, str]


async def test_log_states_that_it_is_partial_and_loads_more_on_scroll(paged: Paged) -> None:
    app, pilot, actions, log = paged
    view = app.screen.query_one(PagedLogView)
    assert "100 lines, the last 2.2 kB of 869 kB" in screen_text(app)
    for _ in range(8):
        await pilot.press("pageup")
    await settle(pilot, lambda: view.count > 5000)
    assert view.lines == tuple(log.splitlines()[-view.count :]), "complete lines, in their order"
    assert actions.calls[0][:2] == ("read_log", 0)
    shown = screen_text(app).splitlines()[2].strip()
    assert 39_800 <= int(shown.split()[1]) < 39_950, f"the view stays where it was: {shown}"
    assert isinstance(app.source, PreparedSnapshots)
    grown = log + "one more line\n"
    app.source.set(fleets.small_fleet(run_with_tail(grown, 100)))
    await settle(pilot, lambda: view.lines[-1] == "one more line")


async def test_log_goes_to_its_first_line_and_back_to_the_newest(paged: Paged) -> None:
    app, pilot, _, log = paged
    view = app.screen.query_one(PagedLogView)
    await pilot.press("g")
    await settle(pilot, lambda: view.lines[:1] == ("line 0 of the log",))
    assert "0 B to 262 kB of 869 kB" in screen_text(app)
    for _ in range(6):
        view.scroll_to(y=view.max_scroll_y, animate=False)
        view.action_page(1)
        await settle(pilot)
    assert view.lines == tuple(log.splitlines()), "the part that was read goes on to the lines that are reported"
    assert view.attached
    await pilot.press("g")
    await settle(pilot)
    assert "line 0 of the log" in screen_text(app)
    await pilot.press("G")
    await settle(pilot)
    assert "following" in screen_text(app)


async def test_log_search_counts_in_the_file_and_loads_its_matches(paged: Paged) -> None:
    app, pilot, actions, log = paged
    view = app.screen.query_one(PagedLogView)
    await pilot.press("slash", *"rare", "enter")
    await settle(pilot, lambda: ">line 35077 of the log rare" in screen_text(app))
    assert "search 'rare'" in screen_text(app)
    assert "8 matches in all 869 kB" in screen_text(app)
    for number in (30_077, 25_077):
        await pilot.press("N")
        await settle(pilot, lambda number=number: f">line {number} of the log rare" in screen_text(app))
    await pilot.press("n")
    await settle(pilot, lambda: ">line 30077 of the log rare" in screen_text(app))
    await pilot.press("f")
    await settle(pilot)
    assert isinstance(app.source, PreparedSnapshots)
    app.source.set(fleets.small_fleet(run_with_tail(log + "another rare line\n", 100)))
    await settle(pilot, lambda: "9 matches in all 869 kB" in screen_text(app))
    actions.calls.clear()
    view.find("no such words")
    await settle(pilot)
    assert [call[0] for call in actions.calls] == ["search_log"]
    assert "0 matches" in view.status


async def test_log_of_another_process_is_read_from_its_end() -> None:
    actions = PreparedActions()
    actions.log = (
        "fine\n" * 50_000 + "Traceback (most recent call last):\n  File x\nOSError: no disk\n" + "late\n" * 200
    )
    run = fleets.run(running=False, exit=records.ProcessExit(1, 1, fleets.NOW, message="exit code 1: late"))
    app = app_over(fleets.small_fleet(run), actions)
    async with app.run_test(size=(110, 24)) as pilot:
        await pilot.press("enter")
        await settle(pilot, lambda: ">OSError: no disk" in screen_text(app))
        assert actions.calls[0] == ("read_log", 1, -PAGE, 1 << 62)


async def test_log_after_a_move_to_fewer_processes_is_that_of_the_run() -> None:
    def of_group(run: RunView, process: int, processes: int) -> RunView:
        assert run.status is not None
        status = replace(run.status, process=process, processes=processes)
        return replace(run, status=status, log=(f"process {process} of {run.host}",), log_range=LogRange(0, 9, process))

    group = [of_group(fleets.run("nano", host), number, 2) for number, host in enumerate(("small", "large"))]
    app = app_over(fleets.small_fleet(*group), PreparedActions(), start_run="nano")
    async with app.run_test(size=(110, 24), notifications=True) as pilot:
        await pilot.press("2", "r", "j", "enter")
        await settle(pilot, lambda: "process 1 of large" in screen_text(app))
        assert isinstance(app.source, PreparedSnapshots)
        moved = of_group(fleets.run("nano", "small", attempt=2), 0, 1)
        app.source.set(fleets.small_fleet(moved, group[1]))
        await settle(pilot, lambda: "process 0 of small" in screen_text(app))


class Hostile:
    """A host that gives a prepared answer to every call."""

    name = "evil"

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def call(self, _: object) -> Callable[..., object]:
        return lambda **_: self._answer


@pytest.mark.parametrize(
    "page",
    [LogPage("x\n", 0, 2, 100), LogPage("x\n", 50, 40, 100), LogPage("x\n", 60, 260, 300), LogPage("x\n", 60, 60, 99)],
)
def test_log_pages_outside_of_the_request_are_refused(page: LogPage) -> None:
    host: Any = Hostile(page)
    with pytest.raises(RemoteError, match=r"evil: runs\.log_pages"):
        host_log.read_page(host, "log", 50, 150)


@pytest.mark.parametrize("matches", [LogMatches(1, 9, 9, 70, None), LogMatches(1, 9, 9, None, 20)])
def test_log_matches_outside_of_the_request_are_refused(matches: LogMatches) -> None:
    host: Any = Hostile(matches)
    with pytest.raises(RemoteError, match=r"evil: runs\.log_pages"):
        host_log.search(host, "log", LogQuery.parse("a"), 50)


@given(
    st.text(alphabet="aE_ 0.", max_size=3), st.sampled_from(["", "Error", "Warning", "WARN", "FATAL"]), st.text("x_ :.")
)
def test_level_of_a_line_is_that_of_its_words(before: str, word: str, after: str) -> None:
    line = f"{before}{word}{after}"
    bad = re.search(r"\b(ERROR|CRITICAL|FATAL|Traceback|\w+Error)\b|Z [EC] ", line)
    warn = re.search(r"\bWARN(ING)?\b|\w+Warning\b|Z W ", line)
    assert log_view.level_of(line) == (log_view.ERRORS if bad else log_view.WARNINGS if warn else log_view.ALL)


@pytest.mark.parametrize("pattern", [log_view._BAD, log_view._WARN])
def test_level_reads_each_character_of_a_line_once(pattern: re.Pattern[str]) -> None:
    """With a repetition, a word of 4096 characters is searched from each of them to its end."""
    assert not set(pattern.pattern) & set("*+{")
