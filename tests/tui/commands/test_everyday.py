"""Small things of every day: esc goes back, tabs answer, themes are shown, scales have two numbers, mice work."""

from __future__ import annotations

import pytest

from midstream.tui.screens.fleet.costs_screen import CostsScreen
from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.screens.migration_screen import MigrationScreen
from midstream.tui.screens.run_screen import RunScreen
from midstream.tui.screens.slices_screen import SlicesScreen
from midstream.tui.style import palette
from midstream.tui.style.terminal_background import is_light, light_of
from midstream.tui.widgets.curve import CurveView
from midstream.tui.widgets.plot import Scale
from midstream.tui.widgets.table import Table
from midstream_core import records
from support.tui import fleets, prepared_migrations
from support.tui.prepared_actions import PreparedActions
from support.tui.screens import app_over, screen_text, settle


@pytest.mark.long
@pytest.mark.long
async def test_esc_after_start_again_leads_to_the_list() -> None:
    run = fleets.run(state=records.STOPPED, running=False)
    app = app_over(fleets.small_fleet(run))
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot, lambda: isinstance(app.screen, RunScreen))
        await pilot.press("R", "enter")
        await settle(pilot, lambda: "enter Start" in screen_text(app))
        await settle(pilot, lambda: "starts at step" in screen_text(app))
        await pilot.press("enter")
        await settle(pilot)
        await pilot.press("y", "enter")
        await settle(pilot, lambda: isinstance(app.screen, RunScreen))
        assert sum(isinstance(screen, RunScreen) for screen in app.screen_stack) == 1
        await pilot.press("escape")
        await settle(pilot, lambda: isinstance(app.screen, FleetScreen))


@pytest.mark.long
@pytest.mark.long
async def test_esc_after_the_run_of_a_migration_leads_to_the_list() -> None:
    app = app_over(prepared_migrations.moved_fleet(), PreparedActions(prepared_migrations.migration()))
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        await pilot.press("enter", "m")  # the run is being migrated: m shows that
        await settle(pilot, lambda: isinstance(app.screen, MigrationScreen))
        await pilot.press("o")
        await settle(pilot, lambda: isinstance(app.screen, RunScreen))
        assert sum(isinstance(screen, RunScreen) for screen in app.screen_stack) == 1
        await pilot.press("escape")
        await settle(pilot, lambda: isinstance(app.screen, FleetScreen))


@pytest.mark.parametrize("key", ["1", "2", "3", "5"])
async def test_list_of_slices_lets_the_other_tabs_answer(key: str) -> None:
    app = app_over(fleets.small_fleet(fleets.run()))
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await pilot.press("4")
        await settle(pilot, lambda: isinstance(app.screen, SlicesScreen))
        await pilot.press(key)
        await settle(pilot, lambda: isinstance(app.screen, CostsScreen if key == "5" else FleetScreen))
        if key != "5":
            shown = next(table.id for table in app.screen.query(Table) if table.display)
            assert shown == {"1": "hosts", "2": "runs", "3": "migrations"}[key]


async def test_theme_is_shown_while_it_is_chosen_and_esc_returns() -> None:
    app = app_over(fleets.small_fleet(fleets.run()))
    try:
        async with app.run_test(size=(100, 30)) as pilot:
            await settle(pilot)
            app.action_theme()
            await settle(pilot, lambda: "GOOD" in screen_text(app))
            await pilot.press("j")
            await settle(pilot, lambda: app.theme == "paper")
            await pilot.press("escape")
            await settle(pilot, lambda: app.theme == palette.DEFAULT)
            assert app.saved_layout.theme == palette.DEFAULT
    finally:
        palette.use(palette.DEFAULT)


@pytest.mark.parametrize(("low", "high"), [(2.45, 5.62), (0.93, 1.18), (1.9, 2.1), (0.0, 97.0), (3.1e-4, 3.3e-4)])
def test_short_y_axis_has_two_numbers(low: float, high: float) -> None:
    assert len(Scale(low, high).ticks(3)) >= 2


@pytest.mark.parametrize(
    ("answer", "light"),
    [
        (b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b[?62;c", True),
        (b"\x1b]11;rgb:fb/fa/f6\x07", True),
        (b"\x1b]11;rgb:1010/1515/1c1c\x1b\\", False),
        (b"\x1b]11;rgba:0000/2b2b/3636/ffff\x07", False),
        (b"\x1b[?62;c", None),
        (b"", None),
    ],
)
def test_background_is_read_from_the_answer(answer: bytes, light: bool | None) -> None:
    assert light_of(answer) is light


@pytest.mark.parametrize(("value", "light"), [("0;15", True), ("12;7", True), ("15;0", False), ("", False)])
def test_background_without_an_answer_is_that_of_the_environment(value: str, light: bool) -> None:
    assert is_light({"COLORFGBG": value}) is light


@pytest.mark.long
async def test_mouse_selects_sorts_and_opens_in_lists() -> None:
    app = app_over(fleets.small_fleet(fleets.run("alpha", step=900), fleets.run("beta", step=1800)))
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        table = app.screen.query_one("#runs", Table)
        await pilot.click("#runs", offset=(5, 2))
        await settle(pilot, lambda: table.selected == "beta")
        step = screen_text(app).splitlines()[2].index("STEP")
        await pilot.click("#runs", offset=(step, 0))
        await settle(pilot, lambda: "STEP↑" in screen_text(app))
        await pilot.click("#runs", offset=(step, 0))
        await settle(pilot, lambda: "STEP↓" in screen_text(app))
        await pilot.click("#runs", offset=(5, 1), times=2)
        await settle(pilot, lambda: isinstance(app.screen, RunScreen))
        curve = app.screen.query_one("#main-curve", CurveView)
        await pilot.hover("#main-curve", offset=(40, 5))
        await settle(pilot, lambda: curve.cursor is not None)
