"""The fleet screen: hosts, runs, migrations, their age, and the way to other screens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.screens.migration_screen import MigrationScreen
from midstream.tui.screens.run_screen import RunScreen
from midstream.tui.screens.wizard import WizardScreen
from midstream.watch.snapshot import CONNECTING, DOWN, Snapshot
from support.tui import fleets, prepared_migrations
from support.tui.prepared_actions import PreparedActions, PreparedSnapshots
from support.tui.screens import app_over, line_with, opened, screen_text, settle


async def test_fleet_opens_on_runs_with_their_numbers() -> None:
    app = app_over(fleets.small_fleet(fleets.moved_run()))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        line = line_with(screen_text(app), "nano")
        for word in ("large", "● training", "1,204/2,000", "2.0798", "12.3k", "4×cpu"):
            assert word in line


async def test_fleet_marks_runs_on_unreachable_host_with_age() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "3m !" in line_with(screen_text(app), "gpt2-medium")
        assert "!" not in line_with(screen_text(app), "baseline")


async def test_log_of_the_selected_run_opens_from_the_list() -> None:
    app = app_over(fleets.small_fleet(fleets.run(log=("step 1", "step 2"))))
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await settle(pilot)
        await pilot.press("l")
        await settle(pilot, lambda: isinstance(app.screen, RunScreen))
        assert "step 2" in screen_text(app)
        await pilot.press("escape", "1", "l")
        await settle(pilot, lambda: "press 2 and select the run" in screen_text(app))


async def test_fleet_marks_lost_and_failed_runs() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert "✗ lost" in line_with(screen_text(app), "overnight")
        assert "✗ failed" in line_with(screen_text(app), "ablate")


async def test_fleet_hosts_show_links_and_errors() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(160, 45)) as pilot:
        await pilot.press("1")
        await settle(pilot)
        text = screen_text(app)
        assert "connection refused: is sshd running on gpu1?" in line_with(text, "gpu1", "✗ down")
        assert "3m !" in line_with(text, "◐ stale", "8×A100", "93%")
        await pilot.press("j", "j")
        await settle(pilot)
        assert "61.0 GB of 80.0 GB" in screen_text(app)


async def test_fleet_selection_survives_updates_that_move_it() -> None:
    first, second = fleets.run("alpha"), fleets.run("beta")
    snapshots = PreparedSnapshots(fleets.small_fleet(first, second))
    app = app_over(fleets.small_fleet(first, second))
    app.source = snapshots
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("j")
        await settle(pilot)
        assert line_with(screen_text(app), "beta", "training").startswith(" > ")
        snapshots.set(fleets.small_fleet(fleets.run("aardvark"), first, second))
        await settle(pilot, lambda: "aardvark" in screen_text(app))
        assert line_with(screen_text(app), "beta", "training").startswith(" > ")


async def test_fleet_updates_at_most_four_times_a_second() -> None:
    app = app_over(fleets.small_fleet())
    assert isinstance(app.source, PreparedSnapshots)
    snapshots = app.source
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        published: list[int] = []
        publish = app.publish
        app.publish = lambda: (published.append(app.source.snapshot().version), publish())[1]
        for version in range(2, 202):
            snapshots.set(replace(fleets.small_fleet(), version=version))
        await settle(pilot, lambda: app.screen_state.snapshot.version == 201)
        assert len(published) <= 2, "200 changes in a row are one repaint"


async def test_fleet_overlays_marked_runs_on_the_opened_one() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("j", "space", "j")
        await settle(pilot)
        assert "■  nano" in screen_text(app)
        await pilot.press("enter")
        await settle(pilot)
        title = screen_text(app).splitlines()[2]
        assert "── baseline" in title
        assert "── nano" in title


@pytest.mark.long
@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        (fleets.snapshot(), ("midstream --init", "midstream --demo")),
        (fleets.snapshot([fleets.host("small")]), ("midstream --launch CONFIG --on small",)),
        (fleets.snapshot([fleets.host("small", CONNECTING, machine=None, last_seen=None)]), ("connecting to small",)),
    ],
    ids=["no hosts", "no runs", "not connected yet"],
)
async def test_fleet_empty_list_shows_next_action(snapshot: Snapshot, words: tuple[str, ...]) -> None:
    app = app_over(snapshot)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        for word in words:
            assert word in screen_text(app)
        await pilot.press("enter", "m", "S", "3")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)


async def test_fleet_enter_opens_run_and_esc_returns() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("j", "enter")
        await settle(pilot)
        assert isinstance(app.screen, RunScreen)
        assert app.screen.run_id == "nano"
        await pilot.press("escape")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)


async def test_fleet_migrations_open_their_screen() -> None:
    app = app_over(prepared_migrations.moved_fleet(), PreparedActions(prepared_migrations.certified()))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        await pilot.press("3")
        await settle(pilot)
        assert "certified" in line_with(screen_text(app), "nano", "small", "large")
        await pilot.press("enter")
        await settle(pilot)
        assert isinstance(app.screen, MigrationScreen)


async def test_fleet_m_opens_wizard_or_running_migration() -> None:
    actions = PreparedActions()
    async with opened("m", actions) as (app, pilot):
        assert isinstance(app.screen, WizardScreen)
        await pilot.press("escape")
        actions.views = (prepared_migrations.migration(),)
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        await pilot.press("m")
        await settle(pilot)
        assert isinstance(app.screen, MigrationScreen)


async def test_fleet_q_exits_zero_and_unsubscribes() -> None:
    app = app_over(fleets.small_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        assert isinstance(app.source, PreparedSnapshots)
        assert app.source.subscribers == 1
        await pilot.press("q")
    assert app.return_code == 0
    assert app.source.subscribers == 0


async def test_fleet_click_on_a_view_opens_it() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.click(offset=(4, 1))
        await settle(pilot)
        assert "connection refused" in screen_text(app)


async def test_fleet_full_host_error_is_readable_at_small_size() -> None:
    error = (
        "gpu1: host key of [127.0.0.1]:53507 is not known (ssh-ed25519 "
        "SHA256:Zdeb9xDyjIB0Ds/ysoJfrze0ne/8lZnp6bDEZy17odQ) "
        "(compare the fingerprint, then: ssh-keyscan -p 53507 127.0.0.1 >> /home/me/.ssh/known_hosts)"
    )
    app = app_over(fleets.snapshot([fleets.host("gpu1", DOWN, error=error), fleets.host("here")]))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("1")
        await settle(pilot)
        shown = screen_text(app).split("─ gpu1 ")[1]
        assert error.removeprefix("gpu1: ") in " ".join(shown.split())


async def test_fleet_launch_hint_names_reachable_host() -> None:
    connecting = fleets.host("gpu1", CONNECTING, machine=None, last_seen=None)
    app = app_over(fleets.snapshot([connecting, fleets.host("here")]))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        text = screen_text(app)
        assert "midstream --launch CONFIG --on here" in text
        assert "connecting to gpu1 ..." in text
