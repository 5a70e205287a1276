"""The costs screen: hosts, runs, migrations, periods and errors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from midstream.errors import MidstreamError
from midstream.headless.show_costs import text as cost_text
from midstream.tui.screens.fleet.costs_screen import CostsScreen
from support.tui import fleets, prepared_actions
from support.tui.prepared_actions import PreparedActions
from support.tui.screens import app_over, check_golden, opened, screen_text, settle

REPORT = prepared_actions.COSTS


@pytest.mark.long
async def test_costs_of_hosts_runs_and_migrations() -> None:
    for name, size in (("80x24", (80, 24)), ("160x45", (160, 45))):
        actions = PreparedActions()
        actions.cost_report = REPORT
        app = app_over(fleets.small_fleet(), actions)
        async with app.run_test(size=size) as pilot:
            await settle(pilot)
            await pilot.press("5")
            await settle(pilot, lambda app=app: "1.0 h ago" in screen_text(app))
            text = screen_text(app)
            for words in (
                "480.00",
                "69.0 h",
                "705.00 in all, 268.50 of it for idle hours",
                "! gpu1: connection refused",
                "no price_per_hour in the fleet file, so not in the total: desk",
            ):
                assert words in text
            check_golden(app, f"costs-{name}")
            await pilot.press("2")
            await settle(pilot, lambda app=app: "427.5" in screen_text(app))
            await pilot.press("3")
            await settle(pilot, lambda app=app: "1.390" in screen_text(app))
            assert "20261121-" in screen_text(app)
            await pilot.press("escape")
            await settle(pilot)
            assert not isinstance(app.screen, CostsScreen)


async def test_costs_of_another_period_are_collected_again() -> None:
    actions = PreparedActions()
    actions.cost_report = REPORT
    async with opened("5", actions, size=(100, 30)) as (app, pilot):
        await settle(pilot, lambda: "large" in screen_text(app))
        await pilot.press("p")
        await settle(pilot, lambda: "last 90 d" in screen_text(app) and "large" in screen_text(app))
        await pilot.press("r")
        await settle(pilot)
        assert [seconds for what, seconds in actions.calls if what == "costs"] == [30 * 86400, 90 * 86400, 90 * 86400]


async def test_costs_error_keeps_the_last_report() -> None:
    actions = PreparedActions()
    actions.cost_report = REPORT
    async with opened("5", actions, size=(100, 30)) as (app, pilot):
        await settle(pilot, lambda: "large" in screen_text(app))
        actions.cost_report = MidstreamError("the journal cannot be read", "look at it")
        await pilot.press("r")
        await settle(pilot, lambda: "✗ the journal cannot be read" in screen_text(app))
        assert "look at it" in screen_text(app)
        assert "480.00" in screen_text(app)


async def test_costs_without_prices_show_hours_and_no_total() -> None:
    actions = PreparedActions()
    hosts = tuple(replace(host, price=None) for host in REPORT.hosts)
    actions.cost_report = replace(REPORT, hosts=hosts)
    async with opened("5", actions, size=(100, 30)) as (app, pilot):
        await settle(pilot, lambda: "31.5 h" in screen_text(app))
        assert "no price_per_hour in the fleet file, so no cost: large, small, desk" in screen_text(app)
        assert "in all" not in screen_text(app)


def test_cost_leaves_out_an_unknown_total() -> None:
    hosts = tuple(replace(host, price=None) for host in REPORT.hosts)
    known, unknown = (
        next(line for line in cost_text(report) if line.startswith("total"))
        for report in (REPORT, replace(REPORT, hosts=hosts))
    )
    assert known.split()[-3:] == ["h", "705.00", "268.50"]
    assert unknown.split()[-2:] == ["78.0", "h"]


async def test_costs_that_cannot_be_collected_say_how_to_try_again() -> None:
    actions = PreparedActions()
    actions.cost_report = MidstreamError("the journal cannot be read", "look at it")
    async with opened("5", actions, size=(100, 30)) as (app, pilot):
        await settle(pilot, lambda: "the costs could not be collected." in screen_text(app))
        assert "Press r to read the hosts again." in screen_text(app)


async def test_costs_copy_their_command_and_show_the_selection() -> None:
    actions = PreparedActions()
    actions.cost_report = REPORT
    async with opened("5", actions, size=(100, 40)) as (app, pilot):
        await settle(pilot, lambda: "large" in screen_text(app))
        await pilot.press("p")
        await settle(pilot, lambda: "last 90 d" in screen_text(app) and "large" in screen_text(app))
        await pilot.press("y")
        assert app.clipboard == "midstream --cost --since 90d"
        for keys, words in (
            (("Y",), ("cost of host large: YAML", "training_hours: 31.5", "idle_cost: 96.0")),
            (("escape", "2", "Y", "t"), ("cost of run nano: JSON", '"process_hours": 52.0')),
            (("escape", "3", "Y"), ("cost of migration 20261121", "downtime_seconds: 14.0")),
        ):
            await pilot.press(*keys)
            await settle(pilot, lambda words=words: all(word in screen_text(app) for word in words))
