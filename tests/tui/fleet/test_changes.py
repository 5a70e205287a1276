"""Changes from the fleet screen: runs are stopped, hosts added; nothing in read-only mode."""

from __future__ import annotations

from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.screens.migration_screen import MigrationScreen
from support.tui import fleets, prepared_migrations
from support.tui.prepared_actions import PreparedActions
from support.tui.screens import app_over, opened, screen_text, settle


async def test_fleet_adds_hosts_from_ssh_configuration() -> None:
    actions = PreparedActions()
    app = app_over(fleets.snapshot(), actions)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("a")
        await settle(pilot)
        assert "gpu1" in screen_text(app)
        await pilot.press("space", "j", "space", "enter")
        await pilot.pause()
    assert actions.calls == [("add", ("  gpu1: {type: ssh, address: gpu1}", "  login: {type: ssh, address: login}"))]
    assert app.return_code == 75, "the command restarts with the changed fleet file"


async def test_stop_run_requires_the_run_name() -> None:
    actions = PreparedActions()
    async with opened("S", actions) as (app, pilot):
        assert isinstance(app.screen, ConfirmScreen)
        await pilot.press(*"nan", "enter")
        await settle(pilot)
        assert isinstance(app.screen, ConfirmScreen)
        assert actions.calls == []
        await pilot.press("o", "enter")
        await settle(pilot)
        assert actions.calls == [("stop", ("small", "nano"))]


async def test_stop_names_migrations_that_start_the_run_again() -> None:
    """As `--stop` does; the outcome is shown in the same words."""
    actions = PreparedActions(prepared_migrations.migration())
    app = app_over(fleets.small_fleet(), actions)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        await pilot.press("S")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "it starts nano on large" in " ".join(screen_text(app).split())
        await pilot.press(*"nano", "enter")
        await settle(pilot, lambda: "checkpoint step-1-a001" in screen_text(app))


async def test_stop_run_esc_leaves_run_running() -> None:
    actions = PreparedActions()
    app = app_over(fleets.small_fleet(), actions)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("S", "escape")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)
        assert actions.calls == []


async def test_stop_run_refuses_a_run_that_has_exited() -> None:
    actions = PreparedActions()
    app = app_over(fleets.small_fleet(fleets.run(running=False)), actions)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("S")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)
        assert "is not running" in screen_text(app)


async def test_read_only_refuses_changes() -> None:
    actions = PreparedActions(prepared_migrations.migration())
    app = app_over(fleets.small_fleet(), actions, readonly=True)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        assert "read-only" in screen_text(app)
        await pilot.press("m", "S")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)
        assert "--readonly" in screen_text(app)
        await pilot.press("3", "enter", "r", "c")
        await settle(pilot)
        assert isinstance(app.screen, MigrationScreen)
        assert actions.calls == []
