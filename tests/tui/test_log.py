"""LogView: following, searching, levels, time windows, folding; a million lines as easily as a hundred."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from midstream.tui.widgets.log_pane import LogPane
from midstream.tui.widgets.log_view import LogView, _added


class Board(App[None]):
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
async def board():
    app = Board()
    async with app.run_test(size=(80, 24)) as pilot:
        app.pilot = pilot
        yield app


def stamped(minute: int, words: str, level: str = "I") -> str:
    return f"2026-11-21T10:{minute:02}:00Z {level} {words}"


STORY = (
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
def test_what_is_new_of_a_window_that_slides(before: Sequence[str], now: Sequence[str], added: Sequence[str] | None):
    assert _added(before, now) == added


async def test_lines_that_the_window_has_left_stay(board: Board) -> None:
    lines = [f"line {number}" for number in range(300)]
    for start in range(0, 200, 10):
        board.view.show(tuple(lines[start : start + 100]))
    assert board.view.lines == tuple(lines[:290])
    assert (await board.text())[-1].strip() == "line 289"


async def test_levels_keep_what_belongs_to_an_error(board: Board) -> None:
    board.view.show(STORY)
    board.view.action_level()
    assert [line.strip() for line in await board.text() if line][:1][0].endswith("a disk is slow")
    board.view.action_level()
    shown = [line.strip() for line in (await board.text()) if line]
    assert shown == [STORY[2], STORY[3], STORY[4].strip()]
    assert board.view.status == "following, errors, 3 of 7 lines"
    board.view.show((*STORY, stamped(53, "it failed again", "E")))
    assert board.view.count == 4


async def test_a_time_window_ends_at_the_newest_line(board: Board) -> None:
    board.view.show(STORY)
    counts = []
    for _ in range(5):
        board.view.action_window()
        counts.append(board.view.count)
    assert counts == [1, 2, 5, 7, 7]


async def test_a_search_goes_through_its_matches_and_hides_the_rest(board: Board) -> None:
    lines = [f"{stamped(number % 60, f'step {number}')}" for number in range(1000)]
    lines[100] += " Saved"
    lines[700] += " saved"
    board.view.show(tuple(lines))
    board.view.find("saved")
    assert "step 700 saved" in "".join(await board.text())
    board.view.action_match(-1)
    assert "step 100 Saved" in "".join(await board.text())
    board.view.action_match(1)
    assert "step 700 saved" in "".join(await board.text())
    board.view.action_only()
    assert board.view.count == 2
    board.view.find("saved !100")
    assert board.view.count == 1
    board.view.find("Saved")
    assert board.view.count == 1
    board.view.find("")
    assert board.view.count == 1000


async def test_slash_asks_for_the_words_and_esc_is_left_to_the_screen() -> None:
    app = Board()
    async with app.run_test(size=(80, 24)) as pilot:
        app.view.show(STORY)
        app.view.focus()
        await pilot.press("slash", *"disk", "enter", "e")
        await pilot.pause()
        assert app.view.count == 1
        assert app.query_one(LogPane).escaped()
        assert app.view.count == 7
        assert not app.query_one(LogPane).escaped()


async def test_long_lines_are_folded(board: Board) -> None:
    long = "x" * 100 + "y" * 100
    board.view.show(("first", long, "last"))
    board.view.action_wrap()
    shown = [line.strip() for line in (await board.text()) if line]
    assert shown[0] == "first"
    assert "".join(shown[1:-1]) == long
    assert shown[-1] == "last"
    board.view.show(("first", long, "last", "more"))
    assert [line.strip() for line in (await board.text()) if line][-1] == "more"


async def test_a_million_lines_are_walked_searched_and_folded(board: Board) -> None:
    lines = [f"step {number}" for number in range(1_000_000)]
    board.view.show(lines)
    for _ in range(50):
        board.view.action_page(-1)
        (await board.text())
    assert board.view.count == 1_000_000
    board.view.action_scroll_home()
    assert (await board.text())[0].strip() == "step 0"
    board.view.find("step 765432")
    board.view.action_only()
    assert board.view.count == 1
    board.view.find("")
    board.view.action_wrap()
    board.view.action_scroll_end()
    assert (await board.text())[-1].strip() == "step 999999"
