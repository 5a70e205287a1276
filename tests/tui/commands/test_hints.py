"""The bottom line, help and the command line show what applies to what has the focus."""

from __future__ import annotations

import pytest

from midstream.tui import commands
from midstream.tui.app import MidstreamApp
from support.tui import fleets, prepared_migrations
from support.tui.prepared_actions import PreparedActions
from support.tui.screens import app_over, screen_text, settle


def footer(app: MidstreamApp) -> str:
    return screen_text(app).rstrip().splitlines()[-1]


@pytest.mark.long
@pytest.mark.long
async def test_footer_shows_keys_of_the_view_and_pane_with_the_focus() -> None:
    app = app_over(fleets.small_fleet(fleets.moved_run()), PreparedActions(prepared_migrations.migration()))
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        assert "m Migrate" in footer(app)
        await pilot.press("1")
        await settle(pilot)
        assert "m Migrate" not in footer(app), "a host is not migrated"
        await pilot.press("2", "enter")
        await settle(pilot)
        for words in ("] Next metric", "z Zoom", "m Migrate"):
            assert words in footer(app)
        await pilot.press("2")
        await settle(pilot)
        for words in ("A Start of log", "f Follow", "/ Search", "i Level", "esc Back", "? Help", "q Quit"):
            assert words in footer(app)
        assert "Next metric" not in footer(app)
        await pilot.press("slash")
        await settle(pilot)
        assert footer(app).split() == ["enter", "Apply", "esc", "Cancel"], "keys go to the input"
        await pilot.press("escape", "3")
        await settle(pilot)
        assert "V Verify" in footer(app)
        assert "d Diff" in footer(app)
        await pilot.press("4")
        await settle(pilot)
        assert "V Verify" not in footer(app)
        assert "d Diff" in footer(app)


async def test_help_shows_keys_of_the_view_and_pane_with_the_focus() -> None:
    app = app_over(fleets.small_fleet(fleets.moved_run()))
    async with app.run_test(size=(100, 70)) as pilot:
        await pilot.press("enter", "question_mark")
        await settle(pilot)
        text = screen_text(app)
        assert "Small multiples" in text
        assert commands.SCOPES[commands.CURVE] in text
        assert commands.SCOPES[commands.LOG] not in text
        await pilot.press("escape", "2", "question_mark")
        await settle(pilot)
        text = screen_text(app)
        assert commands.SCOPES[commands.LOG] in text
        assert "Small multiples" not in text
        assert commands.SCOPES[commands.CURVE] not in text


async def test_read_only_hides_what_it_refuses() -> None:
    actions = PreparedActions(prepared_migrations.migration())
    app = app_over(fleets.small_fleet(fleets.moved_run()), actions, readonly=True)
    async with app.run_test(size=(120, 60)) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        for keys in ((), ("enter",), ("escape", "3", "enter")):
            await pilot.press(*keys)
            await settle(pilot)
            shown = footer(app)
            await pilot.press("question_mark")
            await settle(pilot)
            shown += screen_text(app).split("Help")[1]
            await pilot.press("escape")
            for command in commands.COMMANDS:
                if command.changes:
                    assert f"{command.name}  " not in shown, command
            assert "without keys that change something" in shown
        await pilot.press("escape", "ctrl+p", *"migrate the run")
        await settle(pilot, lambda: "No matches" in screen_text(app))


@pytest.mark.parametrize("scope", commands.ABOUT)
def test_views_of_commands_exist(scope: str) -> None:
    views = {each.action[6:-2] for each in commands.of(scope) if each.action.startswith("view(")}
    actions = {each.action for each in commands.of(scope)}
    for action, about in commands.ABOUT[scope].items():
        assert action in actions
        assert set(about) <= views
