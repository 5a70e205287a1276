"""Report of a run and export of a checkpoint, by keys and by the command line."""

from __future__ import annotations

import dataclasses

import pytest
from textual.widgets import Input

from midstream.tui.app import MidstreamApp
from support.tui import fleets
from support.tui.prepared_actions import PreparedActions
from support.tui.screens import app_over, screen_text, settle


def notes(app: MidstreamApp) -> list[str]:
    return [note.message for note in app._notifications]


@pytest.mark.parametrize("keys", [("D",), ("escape", "colon", *"report nano", "enter")])
async def test_report_prompts_for_a_file_and_writes_it(keys: tuple[str, ...]) -> None:
    actions = PreparedActions()
    app = app_over(fleets.small_fleet(fleets.moved_run()), actions, start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press(*keys)
        await settle(pilot, lambda: "Report" in screen_text(app))
        entry = app.screen.query_one("#word", Input)
        assert entry.value == "nano.html"
        entry.value = "nano.txt"
        await pilot.press("enter")
        await settle(pilot, lambda: "a report is a .html file" in screen_text(app))
        assert actions.calls == []
        entry.value = "r/nano.html"
        await pilot.press("enter")
        await settle(pilot, lambda: bool(actions.calls))
    assert actions.calls == [("report", "nano", "r/nano.html")]


async def test_export_of_the_selected_checkpoint() -> None:
    actions = PreparedActions()
    app = app_over(fleets.small_fleet(fleets.moved_run()), actions, start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("E")
        await settle(pilot, lambda: "select the checkpoint to export, then press E" in notes(app))
        await pilot.press("E")
        await settle(pilot, lambda: "a checkpoint of transformers' Trainer" in screen_text(app))
        await pilot.press("down", "enter")
        await settle(pilot, lambda: "HOST:PATH of a new directory" in screen_text(app))
        entry = app.screen.query_one("#word", Input)
        assert entry.value == "large:~/nano-step-1200-a001-huggingface-trainer"
        entry.value = "small:/data/nano"
        await pilot.press("enter")
        await settle(pilot, lambda: "no host 'small'" in screen_text(app))
        entry.value = "large:/data/nano"
        await pilot.press("enter")
        await settle(pilot, lambda: bool(actions.calls))
    assert actions.calls == [("export", "step-1200-a001", "huggingface-trainer", "large:/data/nano")]


@pytest.mark.parametrize(("key", "verb"), [("E", "export"), ("V", "verify")])
async def test_run_without_checkpoints_says_so(key: str, verb: str) -> None:
    fleet = fleets.small_fleet(dataclasses.replace(fleets.moved_run(), checkpoints=[]))
    app = app_over(fleet, PreparedActions(), start_run="nano")
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press(key)
        await settle(pilot, lambda: notes(app) == [f"nano has no checkpoint to {verb}"])


async def test_export_is_refused_in_a_readonly_ui() -> None:
    actions = PreparedActions()
    app = app_over(fleets.small_fleet(fleets.moved_run()), actions, start_run="nano", readonly=True)
    async with app.run_test(size=(80, 24)) as pilot:
        await settle(pilot)
        await pilot.press("3", "E")
        await settle(pilot, lambda: bool(notes(app)))
        assert "--readonly" in notes(app)[0]
        assert actions.calls == []
