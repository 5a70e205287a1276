"""Failed runs: their reason in the list, their last words in its pane, and their place in the log."""

from __future__ import annotations

from dataclasses import replace

from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.screens.run_screen import RunScreen
from midstream.tui.widgets.log_view import LogView
from midstream.watch.snapshot import RunView
from midstream_core import records
from support.tui import fleets
from support.tui.screens import app_over, screen_text, settle

LOG = (
    *(f"step {number}" for number in range(200)),
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "ValueError: 3 tokens are missing",
    *(f"closing {number}" for number in range(100)),
)


def failed_run() -> RunView:
    run = fleets.run("ablate", running=False, step=77)
    return replace(
        run,
        log=LOG,
        exit=records.ProcessExit(
            0, 1, fleets.NOW - 180, state=records.TRAINING, step=77, message="exit code 1: closing 99"
        ),
    )


async def test_runs_list_shows_the_reason_and_its_pane_the_last_words() -> None:
    app = app_over(fleets.small_fleet(failed_run(), fleets.run()))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("j")
        await settle(pilot)
        text = screen_text(app)
        assert "REASON" in text
        assert any("ablate" in line and "exit code 1: Va" in line for line in text.splitlines()), text
        for words in (
            "exit code 1: ValueError: 3 tokens are missing",
            "process 0 on small  ·  exit code 1, training at step 77  ·  3m ago",
            "lines before",
            "closing 99",
            "enter opens its log",
        ):
            assert words in text
        await pilot.press("slash", *"reason:tokens", "enter")
        await settle(pilot)
        assert "Runs 1 of 2" in screen_text(app)


async def test_runs_list_without_failures_has_no_reason_column() -> None:
    app = app_over(fleets.small_fleet())
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        assert "REASON" not in screen_text(app)


async def test_enter_on_a_failed_run_leads_to_the_place_in_its_log() -> None:
    app = app_over(fleets.small_fleet(failed_run(), fleets.run()))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("j", "enter")
        await settle(pilot, lambda: isinstance(app.screen, RunScreen))
        view = app.screen.query_one(LogView)
        await settle(pilot, lambda: not view.following)
        assert ">ValueError: 3 tokens are missing" in screen_text(app)
        await pilot.press("4")
        await settle(pilot)
        assert 'File "train.py", line 3' in screen_text(app), "the info has the last words too"
        await pilot.press("escape")
        await settle(pilot, lambda: isinstance(app.screen, FleetScreen))
        await pilot.press("k", "enter")
        await settle(pilot, lambda: isinstance(app.screen, RunScreen))
        assert "train/loss" in screen_text(app), "a run that runs opens with its curves"
