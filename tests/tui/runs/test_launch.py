"""Launch a run, start one again, stop several, clean leftovers, verify all: forms, preflights, confirmations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from textual import events
from textual.widgets import Input
from typing_extensions import override

from midstream.check.check_result import OWNERSHIP, PASS, WARN, Check
from midstream.errors import MidstreamError
from midstream.launch.launch_request import LaunchRequest
from midstream.migrate.journal.request import Request
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.screens.dialogs.form import FormScreen
from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.screens.fleet.leftovers_screen import LeftoversScreen
from midstream.tui.screens.fleet.verifications import CheckpointVerifications, question
from midstream.tui.screens.launch_screen import LaunchScreen
from midstream.tui.screens.run_screen import RunScreen
from midstream.tui.screens.wizard import WizardScreen
from midstream.tui.screens.wizard_settings import BATCH, PER_DEVICE, WizardSettings
from midstream_core import records
from support.tui import fleets, prepared_actions, prepared_migrations
from support.tui.prepared_actions import PreparedActions
from support.tui.prepared_migrations import REFUSAL
from support.tui.scenes import fill
from support.tui.screens import app_over, opened, screen_text, settle


async def test_launch_asks_checks_confirms_and_opens_the_run() -> None:
    actions = PreparedActions()
    async with opened("L", actions, size=(100, 30)) as (app, pilot):
        await settle(pilot, lambda: isinstance(app.screen, FormScreen))
        await pilot.press("enter")
        await settle(pilot)
        assert "name a config" in screen_text(app)
        await pilot.press("ctrl+o")
        await settle(pilot)
        assert "configs/gpt2_small.yaml" in screen_text(app)
        await pilot.press("j", "enter")
        await settle(pilot, lambda: isinstance(app.screen, FormScreen))
        fill(app, target="nowhere", flags="--trainer.seed 3")
        await pilot.press("enter")
        await settle(pilot)
        assert "no target 'nowhere': small, large, gpu2" in screen_text(app)
        fill(app, target="large")
        await pilot.press("enter")
        await settle(pilot, lambda: isinstance(app.screen, LaunchScreen) and "step 0" in screen_text(app))
        request = LaunchRequest("large", "configs/gpt2_nano.yaml", None, ("--trainer.seed", "3"))
        assert actions.calls == [("launch_checks", request)]
        text = screen_text(app)
        for words in ("divisibility", "3.1 GB free", "nano-3fa9 starts at step 0", "Ready. enter starts the run"):
            assert words in text
        assert "midstream --launch configs/gpt2_nano.yaml --on large -- --trainer.seed 3" in text
        await pilot.press("enter")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "Start nano-3fa9 on large" in screen_text(app)
        await pilot.press("y")
        await settle(pilot, lambda: isinstance(app.screen, RunScreen))
        assert actions.calls[-1] == ("launch", replace(request, run_id="nano-3fa9")), "the id that was confirmed"
        await pilot.press("escape")
        await settle(pilot, lambda: isinstance(app.screen, FleetScreen))


async def test_launch_that_needs_consent_asks_for_the_name() -> None:
    actions = PreparedActions()
    reason = "gpu1 does not answer, and may own nano-3fa9"
    actions.checks = (*actions.checks, Check(OWNERSHIP, WARN, reason))
    async with opened("L", actions, size=(120, 40)) as (app, pilot):
        await settle(pilot, lambda: isinstance(app.screen, FormScreen))
        fill(app, config="configs/gpt2_nano.yaml", target="large")
        await pilot.press("enter")
        await settle(pilot, lambda: "Ready. enter starts the run" in screen_text(app))
        await pilot.press("enter")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert f"{reason}." in screen_text(app)
        await pilot.press("y", "enter")
        await settle(pilot)
        assert actions.calls[-1][0] == "launch_checks", "y alone is no consent"
        await pilot.press("backspace", *"nano-3fa9", "enter")
        await settle(pilot, lambda: actions.calls[-1][0] == "launch")
    assert actions.calls[-1][1].agreed


@pytest.mark.long
@pytest.mark.long
async def test_launch_form_refuses_flags_of_another_run() -> None:
    async with opened("L", size=(120, 30)) as (app, pilot):
        await settle(pilot, lambda: isinstance(app.screen, FormScreen))
        fill(app, config="configs/gpt2_nano.yaml", target="large", run_id="mine", flags="--trainer.id other")
        await pilot.press("enter")
        await settle(pilot, lambda: "--run-id mine and --trainer.id other name different runs" in screen_text(app))
        fill(app, run_id="")
        await pilot.press("enter")
        await settle(pilot, lambda: isinstance(app.screen, LaunchScreen))


async def test_launch_form_gives_keys_typed_fast_to_the_next_field() -> None:
    async with opened("L", size=(100, 30)) as (app, pilot):
        await settle(pilot, lambda: isinstance(app.screen, FormScreen))
        for key in ("a", "down", "b", "tab", "c", "down", "d"):  # without waiting for any
            app.post_message(events.Key(key, key if len(key) == 1 else None))
        await settle(pilot, lambda: app.screen.query_one("#field-flags", Input).value == "d")
        assert [field.value for field in app.screen.query(Input)] == ["a", "b", "c", "d"]


async def test_launch_that_fails_says_why_and_checks_again() -> None:
    actions = PreparedActions()
    actions.started = MidstreamError("gpu1: pip cannot reach pypi.org", "wheels: of the host in the fleet file")
    async with opened("L", actions, size=(100, 30)) as (app, pilot):
        await settle(pilot, lambda: isinstance(app.screen, FormScreen))
        fill(app, config="mine.yaml", target="large", run_id="r1")
        await pilot.press("enter")
        await settle(pilot, lambda: "Ready" in screen_text(app))
        await pilot.press("enter", "y")
        await settle(pilot, lambda: "pip cannot reach pypi.org" in screen_text(app))
        assert "large: /usr/bin/python3 (present)" in screen_text(app)
        assert "wheels: of the host in the fleet file" in screen_text(app)
        await pilot.press("r")
        await settle(pilot, lambda: "Ready" in screen_text(app))
        await pilot.press("b")
        await settle(pilot, lambda: isinstance(app.screen, FormScreen))
        assert app.screen.query_one("#field-run_id", Input).value == "r1"


async def test_launch_with_a_failed_check_is_refused() -> None:
    actions = PreparedActions()
    actions.checks = (Check("answers", PASS, "large"), REFUSAL)
    run = fleets.run(state=records.STOPPED, running=False)
    app = app_over(fleets.small_fleet(run), actions)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("R")
        await settle(pilot, lambda: isinstance(app.screen, FormScreen))
        assert "Start nano again on small" in screen_text(app)
        await pilot.press("enter")
        await settle(pilot, lambda: "Cannot start: devices free" in screen_text(app))
        assert actions.calls == [("launch_checks", LaunchRequest("small", None, "nano"))]
        await pilot.press("enter")
        await settle(pilot)
        assert isinstance(app.screen, LaunchScreen)
        assert not any(call[0] == "launch" for call in actions.calls)


async def test_internal_error_of_a_launch_check_ends_the_preflight() -> None:
    class FaultyActions(PreparedActions):
        @override
        def launch_checks(self, request: LaunchRequest) -> Iterator[Check]:
            yield Check("answers", PASS, request.target)
            raise ZeroDivisionError("devices")

    app = app_over(fleets.small_fleet(), FaultyActions())
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("L")
        await settle(pilot, lambda: isinstance(app.screen, FormScreen))
        fill(app, config="mine.yaml", target="large", run_id="r1")
        await pilot.press("enter")
        await settle(pilot, lambda: "Cannot start: preflight: internal error" in screen_text(app))
        assert "Fix it, then press r" in screen_text(app)


@pytest.mark.parametrize("trained", [False, True])
async def test_start_again_names_the_attempt_whose_flags_do_not_count(trained: bool) -> None:
    run = fleets.run(state=records.FAILED, running=False, attempt=3)
    attempts = [(number, "small", 2, 0) for number in ((1, 3) if trained else (1,))]
    app = app_over(fleets.small_fleet(replace(run, lineage=fleets.lineage("nano", *attempts))))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("R")
        await settle(pilot, lambda: isinstance(app.screen, FormScreen))
        expected = "nano continues with its own config" if trained else "its own config, not the flags of attempt 3"
        assert f"none: {expected}" in screen_text(app)


async def test_start_again_of_a_running_run_is_refused() -> None:
    app = app_over(fleets.small_fleet())
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await pilot.press("R")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)
        assert "nano is running on small" in screen_text(app)


async def test_stop_of_marked_runs_is_confirmed_once() -> None:
    actions = PreparedActions()
    ended = fleets.run("baseline", state=records.FINISHED, running=False)
    app = app_over(fleets.small_fleet(fleets.run("a"), fleets.run("b", "large"), fleets.run("c"), ended), actions)
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        for name in ("a", "b", "baseline"):
            app.screen.query_one("#runs").select(name)  # type: ignore[attr-defined]
            await pilot.press("space")
        await pilot.press("S")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        text = screen_text(app)
        for words in ("Stop 2 runs", "a on small, step 1,204", "b on large, step 1,204", "Not running: baseline."):
            assert words in text
        await pilot.press(*"stop", "space", "2", "enter")
        await settle(pilot, lambda: len(actions.calls) == 2)
        assert sorted(actions.calls) == [("stop", ("large", "b")), ("stop", ("small", "a"))]


async def test_clean_lists_leftovers_and_removes_after_confirmation() -> None:
    actions = PreparedActions()
    async with opened("C", actions, size=(120, 30)) as (app, pilot):
        await settle(pilot, lambda: isinstance(app.screen, LeftoversScreen))
        await settle(pilot, lambda: "enter removes 1" in screen_text(app))
        for words in ("checkpoints/step-1300-a001", "kept: it changed 3 s ago", "gpu1 is skipped: gpu1: connection"):
            assert words in screen_text(app)
        await pilot.press("enter")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press(*"remove", "enter")
        await settle(pilot, lambda: "nothing can be removed" in screen_text(app))
        assert actions.calls == [("leftovers", False), ("leftovers", True)]


async def test_clean_lists_slices_and_deletes_those_that_have_ended() -> None:
    actions = PreparedActions()
    actions.left = prepared_actions.SLICE_LEFTOVERS
    async with opened("C", actions, size=(160, 30)) as (app, pilot):
        await settle(pilot, lambda: "enter removes 1 leftover, after confirmation" in screen_text(app))
        text = screen_text(app)
        for words in ("kept: it is READY, and may be in use", "costs money or quota", "permission tpu.nodes.list"):
            assert words in text
        await pilot.press("enter")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "1 slice that is preempted or failed is deleted: lab/us-central2-b/lost." in screen_text(app)
        await pilot.press(*"remove", "enter")
        await settle(pilot, lambda: "nothing can be removed" in screen_text(app))
        assert "deleted; PREEMPTED" in screen_text(app)
        assert actions.calls == [("leftovers", False), ("leftovers", True)]


async def test_verify_all_hashes_checkpoints_and_rechecks_certificates() -> None:
    actions = PreparedActions(prepared_migrations.certified())
    actions.problems = ("params/c/0: another SHA-256",)
    app = app_over(fleets.small_fleet(fleets.run("a"), fleets.run("b")), actions)
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        await pilot.press("space", "V")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await settle(pilot, lambda: "2 of 2 done, 2 damaged" in screen_text(app))
        assert "a: step-1000-a001 on small" in screen_text(app)
        assert "\n  params/c/0: another SHA-256\n" in screen_text(app), "the selected result in full"
        await pilot.press("escape", "3", "V")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "28.4 MB are read and hashed on 2 hosts: small, large." in screen_text(app), "both copies"
        await pilot.press("y")
        await settle(pilot, lambda: "1 of 1 done, 0 damaged" in screen_text(app))
        assert "4 of 5 claims; not checked: disk" in screen_text(app)
        assert actions.calls[-1] == ("recheck", prepared_migrations.PLAN.migration)


async def test_verify_all_reads_nothing_before_the_answer() -> None:
    actions = PreparedActions()
    bucket = replace(fleets.run("b", "large"), store="gs://lab/runs/b")
    app = app_over(fleets.small_fleet(fleets.run("a"), bucket), actions)
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot)
        await pilot.press("V")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        text = " ".join(screen_text(app).split())  # the dialog folds its lines
        assert "Verify 4 checkpoints" in text
        assert "28.4 MB are read and hashed on 1 host: small." in text
        assert "28.4 MB are downloaded from 1 bucket to this machine and hashed: gs://lab." in text
        await pilot.press("escape")
        await settle(pilot, lambda: isinstance(app.screen, FleetScreen))
        assert actions.calls == []


def test_question_counts_all_hosts_and_unknown_sizes() -> None:
    runs = [fleets.run(f"run{number}", f"gpu{number}") for number in range(8)]
    unknown = replace(runs[0].checkpoints[0], size=0)
    runs[0] = replace(runs[0], checkpoints=(unknown, replace(unknown, complete=False)))
    title, lines = question(CheckpointVerifications(PreparedActions(), runs))
    assert title == "Verify 15 checkpoints", "one of them is not complete"
    assert lines[0] == ("199 MB are read and hashed on 8 hosts: gpu0, gpu1, gpu2, gpu3, gpu4, gpu5 and 2 more.")
    assert lines[1] == "The size of 1 copy is unknown and not included."


@pytest.mark.parametrize("key", ["L", "R", "S"])
async def test_read_only_refuses_launch_start_and_stop(key: str) -> None:
    actions = PreparedActions()
    run = fleets.run(state=records.STOPPED, running=key == "S")
    app = app_over(fleets.small_fleet(run), actions, readonly=True)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press(key)
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)
        assert actions.calls == []


async def test_read_only_lists_leftovers_and_removes_none() -> None:
    actions = PreparedActions()
    app = app_over(fleets.small_fleet(), actions, readonly=True)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("C")
        await settle(pilot, lambda: bool(actions.calls))
        await pilot.press("enter")
        await settle(pilot)
        assert isinstance(app.screen, LeftoversScreen)
        assert actions.calls == [("leftovers", False)]


async def test_wizard_settings_are_planned_with() -> None:
    actions = PreparedActions()
    async with opened("m", actions, size=(100, 30)) as (app, pilot):
        await settle(pilot, lambda: isinstance(app.screen, WizardScreen))
        await pilot.press("s")
        await settle(pilot, lambda: isinstance(app.screen, FormScreen))
        fill(app, batch="0")
        await pilot.press("enter")
        await settle(pilot)
        assert "global batch: '0' is not a number of 1 or more" in screen_text(app)
        fill(app, batch="64", per_device="8", healthy_steps="20", certify_steps="", flags="--a 'x y'")
        await pilot.press("enter")
        await settle(pilot, lambda: isinstance(app.screen, WizardScreen))
        request = actions.calls[-1][1]
        assert request.overrides == (BATCH, "64", PER_DEVICE, "8", "--a", "x y")
        assert (request.healthy_steps, request.certify_steps) == (20, 16)
        assert "batch 64, per device 8, 20 healthy steps" in screen_text(app)


def test_wizard_settings_of_a_request_are_its_flags() -> None:
    request = Request("r", "t", healthy_steps=5, overrides=("--x", "1", BATCH, "64", PER_DEVICE))
    settings = WizardSettings.of(request)
    assert settings == WizardSettings("64", "", 5, 16, ("--x", "1", PER_DEVICE))
    assert WizardSettings.of(replace(request, overrides=settings.overrides)) == settings
