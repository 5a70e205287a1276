"""Keystrokes of the everyday tasks, as the guide lists them: from the list of runs to the last question."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import pytest
from textual.pilot import Pilot

from midstream.tui.app import MidstreamApp
from midstream.tui.screens.launch_screen import LaunchScreen
from midstream.tui.screens.migration_screen import MigrationScreen
from midstream.tui.screens.run_screen import RunScreen
from midstream.tui.screens.wizard import WizardScreen
from midstream.tui.widgets.log_view import LogView
from midstream.watch.snapshot import Snapshot
from midstream_core import records
from support.paths import REPOSITORY
from support.tui import fleets, prepared_migrations
from support.tui.prepared_actions import PreparedActions
from support.tui.screens import app_over, screen_text, settle

PAGE = (REPOSITORY / "docs/how-to/tui.md").read_text().partition("<!-- keystrokes")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| ([a-z].*?) \| (`.*?`) \| (\d+) \|$", PAGE, re.MULTILINE)


class Task(NamedTuple):
    """A task of the guide.

    Attributes:
        at_most: Keystrokes that it may take.
        fleet: What the list shows.
        done: Whether the task is done, or its last question is shown.
        actions: The operations.
    """

    at_most: int
    fleet: Snapshot
    done: Callable[[MidstreamApp, PreparedActions], bool]
    actions: Callable[[], PreparedActions] = PreparedActions


def compared(app: MidstreamApp, _: PreparedActions) -> bool:
    text = screen_text(app)
    return isinstance(app.screen, RunScreen) and all(f"sweep-{number}" in text for number in range(4))


def launched(app: MidstreamApp, _: PreparedActions) -> bool:
    screen = app.front_screen
    return isinstance(screen, LaunchScreen) and screen.request.target == "large"


def planned(app: MidstreamApp, _: PreparedActions) -> bool:
    return isinstance(app.screen, WizardScreen) and "Ready." in screen_text(app)


def errors_shown(app: MidstreamApp, _: PreparedActions) -> bool:
    return isinstance(app.screen, RunScreen) and bool(app.screen.query_one(LogView).level)


TASKS = {
    "launch elsewhere": Task(5, fleets.small_fleet(fleets.run()), launched),
    "start a stopped run": Task(
        2,
        fleets.small_fleet(fleets.run(state=records.STOPPED, running=False)),
        lambda app, _: isinstance(app.front_screen, LaunchScreen),
    ),
    "compare the 4 runs": Task(
        6, fleets.small_fleet(*(fleets.run(f"sweep-{number}") for number in range(4))), compared
    ),
    "migrate a run": Task(3, fleets.small_fleet(fleets.run()), planned),
    "read the warnings and errors": Task(3, fleets.small_fleet(fleets.run()), errors_shown),
    "roll back": Task(  # where no step is lost; a step is given up by the name of the run alone
        2,
        fleets.small_fleet(fleets.run()),
        lambda _, actions: any(call[0] == "rollback" for call in actions.calls),
        lambda: PreparedActions(prepared_migrations.migration()),
    ),
}


def test_guide_has_a_row_of_each_task() -> None:
    assert len(ROWS) == len(TASKS)
    for name, task in TASKS.items():
        [(_, keys, number)] = [row for row in ROWS if row[0].startswith(name)]
        assert len(keys.split()) == int(number) <= task.at_most, name


@pytest.mark.parametrize("name", TASKS)
async def test_keystrokes_of_a_task(name: str) -> None:
    """The keys of the guide, and no others, do the task."""
    task = TASKS[name]
    [keys] = [row[1] for row in ROWS if row[0].startswith(name)]
    actions = task.actions()
    app = app_over(task.fleet, actions)
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot, lambda: app.screen_state.migrations == actions.views)
        if name == "roll back":
            await pilot.press("3", "enter")
            await settle(pilot, lambda: isinstance(app.screen, MigrationScreen))
        await press(pilot, keys.replace("`", "").split())
        await settle(pilot, lambda: task.done(app, actions))


async def press(pilot: Pilot[int], keys: list[str]) -> None:
    for key in keys:
        await pilot.press(key)
        await settle(pilot)
