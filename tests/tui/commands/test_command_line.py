"""The command line: jumps, completion and errors."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from midstream.migrate.repair import RepairProposal
from midstream.operations.repair import Repair
from midstream.tui import commands
from midstream.tui.command_line import complete, read
from midstream.tui.screens.dialogs.command_input import CommandInputScreen
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.screens.dialogs.document import DocumentScreen
from midstream.tui.screens.dialogs.help import HelpScreen
from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.screens.migration_screen import MigrationScreen
from midstream.tui.screens.run_screen import RunScreen
from midstream.tui.screens.slices_screen import SlicesScreen
from midstream.tui.screens.wizard import WizardScreen
from midstream.tui.widgets.table import Table
from support.tui import fleets, prepared_migrations
from support.tui.prepared_actions import PreparedActions
from support.tui.screens import app_over, screen_text, settle


@pytest.mark.drawn
@pytest.mark.long
@pytest.mark.long
async def test_command_line_jumps_from_any_screen() -> None:
    app = app_over(fleets.big_fleet(), PreparedActions(prepared_migrations.certified()))
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))

        async def type_line(text: str) -> None:
            await pilot.press("colon", *text, "enter")
            await settle(pilot)

        await pilot.press("enter")
        await type_line("hosts")
        assert isinstance(app.screen, FleetScreen)
        assert "connection refused" in screen_text(app)
        await type_line("runs state:failed OR state:lost")
        assert "2 of 5" in screen_text(app)
        assert "state:failed OR state:lost" in screen_text(app)
        await type_line("migrations")
        assert "certified" in screen_text(app)
        await type_line("migration 2026")
        assert isinstance(app.screen, MigrationScreen)
        await type_line("log nano")
        assert isinstance(app.screen, RunScreen)
        assert app.screen.run_id == "nano"
        assert app.focused is not None
        assert "step 1203 loss" in screen_text(app)
        assert len(app.screen_stack) == 2, "the fleet screen and the run's"
        await type_line("host gpu2")
        assert app.screen.query_one("#hosts", Table).selected == "gpu2"
        await type_line("run ablate")
        assert isinstance(app.screen, RunScreen)
        assert app.screen.run_id == "ablate-lr-3e-3"
        await type_line("theme paper")
        assert app.theme == "paper"
        await type_line("help")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("escape")
        await type_line("migrate baseline")
        assert isinstance(app.screen, WizardScreen)
        await type_line("slices")
        assert isinstance(app.screen, SlicesScreen)
        await pilot.press("escape")
        await type_line("quit")
    assert app.return_code == 0


async def test_command_line_completes_and_shows_errors() -> None:
    app = app_over(fleets.big_fleet())
    async with app.run_test(size=(60, 14)) as pilot:
        await pilot.press("colon")
        await settle(pilot)
        assert isinstance(app.screen, CommandInputScreen)
        assert "and 15 more" in screen_text(app)
        await pilot.press(*"mi", "tab")
        await settle(pilot)
        text = screen_text(app)
        assert "migrat" in text.splitlines()[-1]
        for word in ("migrations [FILTER]  list the", "migration MIGRATION  show a migration", "migrate RUN"):
            assert f" {word}" in text
        await pilot.press(*["backspace"] * 6, *"run b", "tab", "enter")
        await settle(pilot)
        assert isinstance(app.screen, RunScreen)
        assert app.screen.run_id == "baseline"
        for line, words in (
            ("rnus", "no such command 'rnus' (did you mean runs"),
            ("run nope", "no such run 'nope'"),
            ("run", "run needs a run"),
            ("runs loss<abc", "column 6: abc is not a number"),
            ("slices x", "slices has no argument"),
        ):
            await pilot.press("colon", *line, "enter")
            await settle(pilot)
            assert words in " ".join(screen_text(app).split()), line
            await pilot.press("escape")
        assert isinstance(app.screen, RunScreen), "an error and esc leave the screen as it was"


async def test_every_word_of_the_table_has_an_action() -> None:
    app = app_over(fleets.big_fleet(), PreparedActions(prepared_migrations.certified()))
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        for word in commands.WORDS:
            completions = complete(app, f"{word.name} ") if word.argument else [word.name]
            assert completions, word
            text = completions[0] if word.argument != "[FILTER]" else word.name
            assert callable(read(app, text))


@pytest.mark.long
@pytest.mark.parametrize("readonly", [False, True])
async def test_read_only_command_line_lacks_what_it_refuses(readonly: bool) -> None:
    app = app_over(fleets.big_fleet(), readonly=readonly)
    async with app.run_test(size=(80, 24)):
        assert ("migrate " in complete(app, "")) is not readonly


async def typed(pilot: Pilot[int], line: str) -> None:
    await pilot.press("colon", *("space" if char == " " else char for char in line), "enter")
    await settle(pilot)


async def test_command_line_checks_a_target() -> None:
    actions = PreparedActions()
    app = app_over(fleets.big_fleet(), actions)
    async with app.run_test(size=(100, 30)) as pilot:
        await typed(pilot, "check large")
        await settle(pilot, lambda: isinstance(app.screen, DocumentScreen))
        assert "checks large: YAML" in screen_text(app)
        assert f"name: {actions.checks[0].name}" in screen_text(app)
    assert actions.calls == [("check", "large")]


@pytest.mark.parametrize(("answer", "written"), [("nano", True), ("nono", False)])
async def test_command_line_repairs_what_was_shown(answer: str, written: bool) -> None:
    actions = PreparedActions()
    determined = RepairProposal("large", "nano", "fence.json", "it is empty", {"epoch": 2}, ["the journal has it"])
    unknown = RepairProposal("small", "nano", "run.json", "it is empty", missing="the host gpu1")
    actions.repairs = (Repair(determined), Repair(unknown))
    app = app_over(fleets.big_fleet(), actions)
    async with app.run_test(size=(100, 30)) as pilot:
        await typed(pilot, "repair nano")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        shown = screen_text(app)
        for words in (
            "large: nano/fence.json: it is empty",
            'would write: {"epoch": 2}',
            "not determined: the host gpu1",
        ):
            assert words in shown
        await pilot.press(*answer, "enter")
        await settle(pilot)
    assert actions.calls == [("find damage", "nano"), *([("repair", determined)] if written else [])]


@pytest.mark.parametrize(
    ("line", "keys", "call"),
    [
        ("adopt large:/runs/a", ("y",), ("adopt", "large:/runs/a")),
        ("delete large", (*"large", "enter"), ("delete", "large")),
    ],
)
async def test_command_line_asks_before_it_acts(line: str, keys: tuple[str, ...], call: tuple[str, str]) -> None:
    actions = PreparedActions()
    app = app_over(fleets.small_fleet(), actions)
    async with app.run_test(size=(100, 30)) as pilot:
        await typed(pilot, line)
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert actions.calls == []
        await pilot.press(*keys)
        await settle(pilot, lambda: bool(actions.calls))
    assert actions.calls == [call]
