"""All that a user needs to act stays on the screen of a small terminal."""

from __future__ import annotations

import pytest

from midstream.tui.style.glyphs import UNICODE
from midstream.tui.widgets.bars import copy_progress
from midstream.tui.widgets.table import Table
from support.tui import fleets, prepared_migrations
from support.tui.prepared_actions import PreparedActions
from support.tui.screens import app_over, screen_text, settle

SMALL = ((60, 14), (40, 12))


@pytest.mark.long
@pytest.mark.long
@pytest.mark.long
@pytest.mark.long
@pytest.mark.parametrize("size", SMALL)
async def test_confirm_dialog_shows_its_input_and_scrolls_its_text(size: tuple[int, int]) -> None:
    actions = PreparedActions()
    app = app_over(fleets.small_fleet(), actions)
    async with app.run_test(size=size) as pilot:
        for key in ("m", "enter", "enter"):
            await pilot.press(key)
            await settle(pilot)
        await settle(pilot, lambda: "type nano" in screen_text(app))
        box = app.screen.query_one("#word")
        assert box.has_focus
        assert box.region.bottom <= app.screen.query_one("#dialog").region.bottom <= size[1]
        await pilot.press(*["down"] * 12)
        await settle(pilot, lambda: "healthy" in screen_text(app))
        await pilot.press(*"nano")
        await settle(pilot, lambda: "nano" in screen_text(app).splitlines()[box.region.y])


@pytest.mark.parametrize("size", SMALL)
async def test_wizard_shows_step_target_plan_and_safety(size: tuple[int, int]) -> None:
    app = app_over(fleets.small_fleet(), PreparedActions())
    async with app.run_test(size=size) as pilot:
        await pilot.press("m")
        await settle(pilot, lambda: "enter runs the preflight" in screen_text(app))
        text = screen_text(app)
        assert "▶○○○○○○ plan (1 of 7)" in text
        assert "> large" in text
        assert "safety  nothing changes" in text
        assert "esc Cancel" in text.splitlines()[-1]
        assert not app.screen.show_vertical_scrollbar


@pytest.mark.parametrize("size", SMALL)
async def test_certificate_scrolls_where_its_curve_has_no_room(size: tuple[int, int]) -> None:
    app = app_over(prepared_migrations.moved_fleet(), PreparedActions(prepared_migrations.certified()))
    async with app.run_test(size=size) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        await pilot.press("3", "enter")
        await settle(pilot)
        assert "● running  finish" in screen_text(app)
        await pilot.press("G")
        await settle(pilot, lambda: "step-1204-a001" in screen_text(app))


@pytest.mark.parametrize("size", SMALL)
async def test_top_lines_name_the_screen_and_its_views(size: tuple[int, int]) -> None:
    app = app_over(prepared_migrations.moved_fleet(), PreparedActions(prepared_migrations.certified()))
    async with app.run_test(size=size) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        await pilot.press("3", "enter", "3")
        await settle(pilot)
        lines = screen_text(app).splitlines()
        assert "nano to large" in lines[0]
        views = next(line for line in lines if "Downtime" in line)
        assert [word for word in views.split() if word.isdigit()] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
async def test_no_row_is_cut_at_the_border_and_no_id_is_cut(width: int) -> None:
    app = app_over(prepared_migrations.moved_fleet(), PreparedActions(prepared_migrations.certified()))
    async with app.run_test(size=(width, 24)) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        for view in ("1", "2", "3"):
            await pilot.press(view)
            await settle(pilot)
            table = next(table for table in app.screen.query(Table) if table.display)
            widths = table._widths(width - 3)
            assert sum(widths.values()) + 2 * (len(widths) - 1) <= width - 3
        assert "-nano-3…" not in screen_text(app)
        assert (prepared_migrations.PLAN.migration in screen_text(app).splitlines()[3]) == (width >= 100)


def test_bars_of_copies_are_below_each_other() -> None:
    details = (
        {"what": "checkpoint, to other hosts", "bytes_done": 10, "bytes_total": 100, "eta_seconds": 12.0},
        {"what": "data", "bytes_done": 100, "bytes_total": 100},
    )
    lines = [line.plain for line in copy_progress(UNICODE, details, 100)]
    begins = [min(line.index(sign) for sign in "█▌░" if sign in line) for line in lines]
    ends = [max(line.rindex(sign) for sign in "█▌░" if sign in line) for line in lines]
    assert len(set(begins)) == len(set(ends)) == 1
    assert max(map(len, lines)) <= 100


async def test_count_of_the_list_in_view_stays_longest() -> None:
    app = app_over(fleets.small_fleet(), PreparedActions())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "1 Hosts 2   2 Runs 1   3 Migrations 0" in screen_text(app)
        await pilot.press("b", "b")
        await settle(pilot, lambda: "2 Runs 1, by tags" in screen_text(app))
        await pilot.resize_terminal(74, 24)
        await settle(pilot, lambda: "1 Hosts   2 Runs 1, by tags   3 Migrations" in screen_text(app))
        await pilot.resize_terminal(60, 24)
        await settle(pilot, lambda: "1 Hosts   2 Runs   3 Migrations" in screen_text(app))
