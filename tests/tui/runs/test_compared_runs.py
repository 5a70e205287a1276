"""Several runs in one view: legend, colours and dashes, mean and band, configurations, and marks in the list."""

from __future__ import annotations

import re

import pytest

from midstream.tui.screens import compared_runs
from midstream.tui.screens.compared_runs import mean_and_band
from midstream.tui.screens.config_table import differences
from midstream.tui.screens.dialogs.choose import ChooseScreen
from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.screens.run_screen import RunScreen
from midstream.tui.state.series import Series
from midstream.tui.style import palette
from midstream.tui.widgets.canvas import Canvas
from midstream.tui.widgets.plot import Drawn, Scale, draw
from midstream.watch.snapshot import RunView
from support.tui import fleets
from support.tui.prepared_actions import PreparedActions
from support.tui.screens import app_over, line_with, screen_text, settle

NAMES = [f"sweep-{number:02}" for number in range(10)]


class Configs(PreparedActions):
    """A configuration for each run, which differs in its learning rate."""

    def config(self, run: RunView, attempt: int) -> str:
        return f"optimizer: {{learning_rate: 1.0e-{run.run_id[-1]}, type: adam}}\nseed: 1\n"


def sweep(count: int) -> list[RunView]:
    return [
        fleets.run(name, curve=fleets.rows(100 + 10 * number, seed=number)) for number, name in enumerate(NAMES[:count])
    ]


def series(*points: tuple[float, float]) -> Series:
    found = Series()
    for x, y in points:
        found.append(x, y)
    return found


async def test_legend_lists_every_run_with_its_value() -> None:
    app = app_over(fleets.small_fleet(*sweep(4)))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("A", "enter")
        await settle(pilot, lambda: isinstance(app.screen, RunScreen))
        await settle(pilot)
        text = screen_text(app)
        for run in sweep(4):
            assert f"{run.curve[-1]['train/loss']:.4f}" in line_with(text, "━━", run.run_id)
        await pilot.press("right")  # the crosshair is at the first step
        await settle(pilot)
        line = line_with(screen_text(app), "━━", "sweep-02")
        assert f"{sweep(4)[2].curve[0]['train/loss']:.4f}" in line


@pytest.mark.long
async def test_marks_of_all_shown_runs_end_with_the_action() -> None:
    app = app_over(fleets.small_fleet(*sweep(5)))
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await settle(pilot)
        await pilot.press("slash", *"step>=0 !sweep-04", "enter", "A")
        await settle(pilot)
        assert len(re.findall("^■", screen_text(app), re.MULTILINE)) == 4
        await pilot.press("A")
        await settle(pilot)
        assert "■" not in screen_text(app), "a second press removes them"
        await pilot.press("A", "enter")
        await settle(pilot, lambda: isinstance(app.screen, RunScreen))
        await pilot.press("escape")
        await settle(pilot, lambda: isinstance(app.screen, FleetScreen))
        await settle(pilot)
        assert "■" not in screen_text(app)
        await pilot.press("1", "A")
        await settle(pilot, lambda: "only runs can be marked" in screen_text(app))


@pytest.mark.parametrize("name", palette.PALETTES)
def test_ten_runs_differ_in_colour_or_dash(name: str) -> None:
    palette.use(name)
    try:
        drawn = compared_runs.lines([(run, Series()) for run in NAMES])
        assert len({(each.colour, each.dash) for each in drawn}) == len(NAMES)
        assert all(each.dash == 0 for each in drawn[: len(palette.PALETTES[name].SERIES)])
    finally:
        palette.use(palette.DEFAULT)


def test_dashed_line_leaves_columns_out() -> None:
    def columns(dash: int) -> int:
        envelope, line = Canvas(40, 4), Canvas(40, 4)
        straight = series(*((float(x), 0.5) for x in range(80)))
        draw(Drawn(straight, "a", "#ffffff", smooth=False, dash=dash), (0, 79), Scale(0, 1), envelope, line, 0)
        return sum(bool(bits) for y in range(4) for bits in envelope.row(y)[0])

    assert columns(0) == 40
    assert 15 < columns(1) < 36
    assert columns(2) != columns(1)


def test_mean_counts_each_run_once_and_the_band_has_the_ends() -> None:
    often = series(*((x / 10, 3.0) for x in range(1001)))
    seldom = series(*((float(x), 1.0) for x in range(0, 101)))
    mean, band = mean_and_band([often, seldom])
    at = mean.nearest(50)
    assert at is not None
    assert mean.values.value(at) == pytest.approx(2.0)
    assert band.values.extent(*band.window(50, 51)) == (1.0, 3.0)


def test_mean_of_runs_that_end_earlier_is_of_the_others() -> None:
    mean, _ = mean_and_band([series((0, 1), (10, 1)), series((0, 3), (100, 3))])
    assert mean.last == 3.0
    assert mean_and_band([Series()])[0].last != mean_and_band([Series()])[0].last  # NaN: nothing is known


@pytest.mark.long
async def test_mean_and_band_of_the_groups_of_the_list() -> None:
    runs = [
        fleets.labelled(run, 1.0, "wide" if number < 3 else "deep") for number, run in enumerate(sweep(5))
    ]  # fmt: skip
    app = app_over(fleets.small_fleet(*runs))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("A", "enter")
        await settle(pilot, lambda: isinstance(app.screen, RunScreen))
        await pilot.press("b")
        await settle(pilot)
        assert "all runs (5)" in screen_text(app)
        await pilot.press("escape", "b", "A", "enter")  # grouped by project
        await settle(pilot, lambda: isinstance(app.screen, RunScreen))
        await pilot.press("b")
        await settle(pilot)
        text = screen_text(app)
        assert "project wide (3)" in text
        assert "project deep (2)" in text
        await pilot.press("b")
        await settle(pilot)
        assert "sweep-03" in screen_text(app)


async def test_values_in_which_configurations_differ_are_a_table() -> None:
    app = app_over(fleets.small_fleet(*sweep(3)), Configs())
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        await pilot.press("A", "enter")
        await settle(pilot, lambda: isinstance(app.screen, RunScreen))
        await pilot.press("d")
        await settle(pilot, lambda: isinstance(app.screen, ChooseScreen))
        await settle(pilot)
        text = screen_text(app)
        assert "1 values differ" in text
        line = line_with(text, "optimizer.learning_rate")
        assert all(value in line for value in ("1.0", "0.1", "0.01"))
        assert "optimizer.type" not in text


def test_difference_names_what_one_configuration_lacks() -> None:
    assert differences({"a": {"x": 1, "y": 2}, "b": {"x": 1}}) == {"y": ["2", "-"]}
