"""Keystrokes of the everyday tasks, from the list of runs to the last question before something changes."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from midstream.tui.app import MidstreamApp
from midstream.tui.screens.launch_screen import LaunchScreen
from midstream.tui.screens.migration_screen import MigrationScreen
from midstream.tui.screens.run_screen import RunScreen
from midstream.watch.snapshot import Snapshot
from midstream_core import records
from support.tui import fleets, prepared_migrations
from support.tui.prepared_actions import PreparedActions
from support.tui.screens import app_over, screen_text, settle

AT_MOST = {"launch elsewhere": 5, "restart": 2, "compare 4 runs": 6, "roll back": 2}


async def press(pilot: Pilot[int], keys: list[str]) -> None:
    for key in keys:
        await pilot.press(key)
        await settle(pilot)


def stopped() -> Snapshot:
    return fleets.small_fleet(fleets.run(state=records.STOPPED, running=False))


@pytest.mark.parametrize("task", AT_MOST)
async def test_keystrokes_of_a_task(task: str) -> None:
    keys, snapshot, actions = TASKS[task]
    assert len(keys) <= AT_MOST[task]
    answers = actions()
    app = app_over(snapshot, answers)
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot, lambda: app.screen_state.migrations == answers.views)
        if task == "roll back":
            await pilot.press("3", "enter")
            await settle(pilot, lambda: isinstance(app.screen, MigrationScreen))
        await press(pilot, keys)
        await settle(pilot, lambda: DONE[task](app, answers))


def compared(app: MidstreamApp, _: PreparedActions) -> bool:
    text = screen_text(app)
    return isinstance(app.screen, RunScreen) and all(f"sweep-{number}" in text for number in range(4))


def launched(app: MidstreamApp, actions: PreparedActions) -> bool:
    screen = app.front_screen
    return isinstance(screen, LaunchScreen) and screen.request.target == "large"


TASKS = {
    "launch elsewhere": (["1", "G", "L", "c", "enter"], fleets.small_fleet(fleets.run()), PreparedActions),
    "restart": (["R", "enter"], stopped(), PreparedActions),
    "compare 4 runs": (
        ["A", "enter"],
        fleets.small_fleet(*(fleets.run(f"sweep-{number}") for number in range(4))),
        PreparedActions,
    ),
    "roll back": (  # where no step is lost; a step is given up by the name of the run alone
        ["r", "y"],
        fleets.small_fleet(fleets.run()),
        lambda: PreparedActions(prepared_migrations.migration()),
    ),
}
DONE = {
    "launch elsewhere": launched,
    "restart": lambda app, _: isinstance(app.front_screen, LaunchScreen),
    "compare 4 runs": compared,
    "roll back": lambda _, actions: any(call[0] == "rollback" for call in actions.calls),
}
