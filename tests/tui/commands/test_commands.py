"""The table of commands is consistent with actions, keys and docs."""

from __future__ import annotations

from itertools import combinations

import pytest

from midstream.tui import commands
from midstream.tui.app import MidstreamApp
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.compare_screen import CompareScreen
from midstream.tui.screens.fleet.costs_screen import CostsScreen
from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.screens.fleet.host_screen import HostScreen
from midstream.tui.screens.fleet.leftovers_screen import LeftoversScreen
from midstream.tui.screens.fleet.verify_screen import VerifyScreen
from midstream.tui.screens.launch_screen import LaunchScreen
from midstream.tui.screens.migration_screen import MigrationScreen
from midstream.tui.screens.run_screen import RunScreen
from midstream.tui.screens.slices_screen import SlicesScreen
from midstream.tui.screens.wizard import WizardScreen
from midstream.tui.widgets.curve import CurveView
from midstream.tui.widgets.log_view import LogView
from midstream.tui.widgets.pane import Pane
from midstream.tui.widgets.table import Table
from support.paths import REPOSITORY

OWNERS: dict[str, tuple[type, ...]] = {
    commands.FLEET: (FleetScreen,),
    commands.COSTS: (CostsScreen,),
    commands.RUN: (RunScreen,),
    commands.HOST: (HostScreen,),
    commands.WIZARD: (WizardScreen,),
    commands.LAUNCH: (LaunchScreen,),
    commands.LEFTOVERS: (LeftoversScreen,),
    commands.VERIFY: (VerifyScreen,),
    commands.MIGRATION: (MigrationScreen,),
    commands.COMPARE: (CompareScreen,),
    commands.SLICES: (SlicesScreen,),
    commands.LIST: (Table,),
    commands.PANE: (Pane, LogView),
    commands.LOG: (LogView,),
    commands.CURVE: (CurveView,),
    commands.EVERYWHERE: (MidstreamScreen,),
}
TAKEN_BY_TERMINALS = {"ctrl+a", "ctrl+b", "ctrl+s", "ctrl+q"}  # ctrl+z suspends the app as well


@pytest.mark.long
@pytest.mark.parametrize("command", commands.COMMANDS, ids=lambda command: f"{command.scopes[0]}-{command.action}")
def test_command_has_a_handler(command: commands.Command) -> None:
    name = command.action.split("(")[0]
    for scope in command.scopes:
        for owner in OWNERS[scope]:
            target = MidstreamApp if name.startswith("app.") else owner
            assert hasattr(target, f"action_{name.removeprefix('app.')}"), f"{target.__name__} lacks {name}"


@pytest.mark.parametrize("scope", commands.SCOPES)
def test_keys_are_unique_in_a_scope(scope: str) -> None:
    for one, other in combinations(commands.of(scope), 2):
        assert not set(one.keys) & set(other.keys), f"{one.action} and {other.action} in {scope}"


@pytest.mark.parametrize("scope", [commands.FLEET, commands.RUN, commands.HOST, commands.WIZARD, commands.MIGRATION])
def test_screen_keys_do_not_collide_with_global_keys(scope: str) -> None:
    own = {key for command in commands.of(scope) for key in command.keys}
    everywhere = {key for command in commands.of(commands.EVERYWHERE) for key in command.keys}
    parts = {key for part in commands.PARTS[scope] for command in commands.of(part) for key in command.keys}
    assert not own & everywhere
    assert not own & parts
    assert not parts & everywhere


def test_keys_avoid_those_reserved_by_terminals() -> None:
    keys = {key for command in commands.COMMANDS for key in command.keys}
    assert not keys & TAKEN_BY_TERMINALS
    assert not any(key.startswith("alt+") for key in keys)


def test_command_descriptions_fit_help_at_80_columns() -> None:
    assert {command.description for command in commands.COMMANDS if len(command.description) > 46} == set()


def test_keys_page_of_docs_is_current() -> None:
    page = REPOSITORY / "docs" / "reference" / "keys.md"
    assert page.read_text() == commands.document(), "python -m midstream.tui.commands > docs/reference/keys.md"
