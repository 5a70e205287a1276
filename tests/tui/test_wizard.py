"""The wizard: nothing is touched before the run's name is typed, and a failed check is the end of the road."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from midstream.errors import MidstreamError, UsageError
from midstream.migrate import model
from midstream.tui.actions import NotMade
from midstream.tui.app import MidstreamApp
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.screens.fleet.add_hosts import RELOAD
from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.screens.migration.migration_screen import MigrationScreen
from midstream.tui.screens.migration.wizard import WizardScreen
from midstream.watch.snapshot import Snapshot
from tui import worlds
from tui.looking import app_over, screen_text, settle
from tui.worlds import NOW, Answers, Values


def asked(answers: Answers, what: str) -> list:
    return [entry[1] for entry in answers.asked if entry[0] == what]


async def test_the_plan_shows_every_number_that_changes_and_the_command_line() -> None:
    app = app_over(worlds.small_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await settle(pilot, lambda: "downtime" in screen_text(app))
        text = screen_text(app)
        for words in (
            "▶ Plan",
            "small  2×cpu",
            "large  4 devices",
            "epoch 1 → 2",
            "2 → 4",
            "16 → 8",
            "kept         batch 32",
            "14.2 MB of state",
            "relayed through this machine",
            "about 14s",
            "midstream --migrate nano --to large --mode warm",
        ):
            assert words in text


async def test_the_source_is_no_target() -> None:
    app = app_over(worlds.small_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await settle(pilot)
        targets = [row.key for row in app.screen.query_one("#targets").rows]  # type: ignore[attr-defined]
        assert targets == ["large", "gpu2"]


async def test_another_target_or_checkpoint_is_another_plan() -> None:
    answers = Answers()
    app = app_over(worlds.small_fleet(), answers)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await settle(pilot)
        await pilot.press("j")
        await settle(pilot)
        await pilot.press("c", "j", "enter")
        await settle(pilot)
        await pilot.press("o", "j", "enter")
        await settle(pilot)
        await pilot.press("c", "G", "enter")
        await settle(pilot)
        requests = asked(answers, "plan")
        assert [(request.target, request.checkpoint, request.mode) for request in requests] == [
            ("large", "now", "warm"),
            ("gpu2", "now", "warm"),
            ("gpu2", "latest", "warm"),
            ("gpu2", "latest", "cold"),
            ("gpu2", "1000", "cold"),
        ]
        assert all(request.source == "small" for request in requests)
        assert "--to gpu2" in screen_text(app)


async def test_steps_that_would_be_lost_and_warnings_are_said() -> None:
    answers = Answers()
    answers.plan = replace(
        worlds.PLAN,
        checkpoint="step-1200-a001",
        checkpoint_step=1200,
        steps_lost=4,
        warnings=("4 steps after the chosen checkpoint are given up",),
    )
    app = app_over(worlds.small_fleet(), answers)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await settle(pilot, lambda: "step-1200-a001  4 steps are given up" in screen_text(app))
        assert "! 4 steps after the chosen checkpoint are given up" in screen_text(app)


async def test_an_impossible_plan_gives_its_reason_and_blocks() -> None:
    answers = Answers()
    answers.plan = UsageError("target large has 2 hosts", "this version moves runs to targets of one host")
    app = app_over(worlds.small_fleet(), answers)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await settle(pilot, lambda: "target large has 2 hosts" in screen_text(app))
        assert "this version moves runs to targets of one host" in screen_text(app)
        await pilot.press("enter")
        await settle(pilot)
        assert asked(answers, "preflight") == []


async def test_an_answer_to_an_older_question_is_dropped() -> None:
    """The plan for the first target comes after a person has selected the second one."""
    held = threading.Event()

    class Slow(Answers):
        def make_plan(self, snapshot: Snapshot, request: model.Request) -> model.Plan:
            plan = super().make_plan(snapshot, request)
            if request.target == "large":
                assert held.wait(10)
            return plan

    app = app_over(worlds.small_fleet(), Slow())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await pilot.press("j")
        await pilot.pause()
        for _ in range(200):
            if "--to gpu2" in screen_text(app):
                break
            await pilot.pause(0.01)
        held.set()
        await settle(pilot)
        assert "--to gpu2" in screen_text(app)
        assert "--to large" not in screen_text(app)


async def test_checks_are_listed_with_their_fixes_and_a_warning_does_not_block() -> None:
    app = app_over(worlds.small_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot, lambda: "Ready." in screen_text(app))
        text = screen_text(app)
        assert "✓ source answers" in text
        assert "! disk" in text
        assert "mend it: free some space on large" in text


async def test_the_verdict_is_in_sight_however_many_checks_there_are() -> None:
    answers = Answers()
    answers.checks = tuple(model.Check(f"check {number}", model.PASS, "fine") for number in range(40))
    app = app_over(worlds.small_fleet(), answers)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await settle(pilot)
        assert "can go wrong" in screen_text(app)
        await pilot.press("enter")
        await settle(pilot, lambda: "Ready." in screen_text(app))
        assert "safe          everything" in screen_text(app)


async def test_what_failed_comes_first_once_all_is_checked() -> None:
    answers = Answers()
    answers.checks = (*worlds.CHECKS * 5, worlds.REFUSAL)
    app = app_over(worlds.small_fleet(), answers)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot, lambda: "kill 811" in screen_text(app))


async def test_the_price_of_standing_still_is_said() -> None:
    answers = Answers()
    answers.plan = replace(worlds.PLAN, cost_per_hour=(12.0, 24.0))
    app = app_over(worlds.small_fleet(), answers)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("m")
        await settle(pilot, lambda: "12.00 → 24.00" in screen_text(app))
        assert "costs about 0.14" in screen_text(app)


async def test_checks_appear_while_later_ones_still_run() -> None:
    held = threading.Event()

    class Slow(Answers):
        def preflight(self, plan: model.Plan) -> Iterator[model.Check]:
            yield worlds.CHECKS[0]
            assert held.wait(10)
            yield worlds.CHECKS[1]

    app = app_over(worlds.small_fleet(), Slow())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await settle(pilot)
        await pilot.press("enter")
        for _ in range(200):
            if "source answers" in screen_text(app):
                break
            await pilot.pause(0.01)
        assert "source answers" in screen_text(app)
        await pilot.press("enter")
        await pilot.pause()
        assert not isinstance(app.screen, ConfirmScreen), "not before all checks are done"
        held.set()
        await settle(pilot, lambda: "Ready." in screen_text(app))


async def test_a_failed_check_blocks_with_its_reason_and_r_checks_again() -> None:
    answers = Answers()
    answers.checks = (*worlds.CHECKS, worlds.REFUSAL)
    app = app_over(worlds.small_fleet(), answers)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot, lambda: "It cannot be moved: devices free: pid 811 uses device 0." in screen_text(app))
        assert "stop it on large: kill 811" in screen_text(app)
        await pilot.press("enter")
        await settle(pilot)
        assert isinstance(app.screen, WizardScreen)
        answers.checks = worlds.CHECKS
        await pilot.press("r")
        await settle(pilot, lambda: "Ready." in screen_text(app))


async def test_b_goes_back_to_the_plan() -> None:
    answers = Answers()
    app = app_over(worlds.small_fleet(), answers)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot)
        await pilot.press("b")
        await settle(pilot, lambda: "▶ Plan" in screen_text(app))
        assert "WHERE TO" in screen_text(app)
        assert asked(answers, "start") == []


async def test_only_the_runs_own_name_starts_the_move_and_its_progress_is_shown() -> None:
    answers = Answers()
    app = app_over(worlds.small_fleet(), answers)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot, lambda: "Ready." in screen_text(app))
        await pilot.press("enter")
        await settle(pilot)
        assert isinstance(app.screen, ConfirmScreen)
        assert "nothing is deleted" in screen_text(app)
        await pilot.press(*"yes", "enter")
        await settle(pilot)
        assert asked(answers, "start") == []
        await pilot.press(*["backspace"] * 3, *"nano", "enter")
        await settle(pilot, lambda: isinstance(app.screen, MigrationScreen))
        assert asked(answers, "start") == [worlds.PLAN.migration]
        await settle(pilot, lambda: "▶ Copy" in screen_text(app))
        await pilot.press("escape")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)


@pytest.mark.parametrize("keys", [("escape",), ("enter", "escape"), ("enter", "enter", "escape", "escape")])
async def test_leaving_at_any_step_changes_nothing(keys: tuple[str, ...]) -> None:
    answers = Answers()
    app = app_over(worlds.small_fleet(), answers)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await settle(pilot)
        for key in keys:
            await pilot.press(key)
            await settle(pilot)
        assert isinstance(app.screen, FleetScreen)
        assert asked(answers, "start") == []


async def test_a_start_that_fails_says_why_and_stays() -> None:
    class Failing(Answers):
        def start(self, plan: model.Plan) -> str:
            raise MidstreamError("the migration's process ended at once", "see process.log")

    app = app_over(worlds.small_fleet(), Failing())
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await pilot.press("m")
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot, lambda: "Ready." in screen_text(app))
        await pilot.press("enter")
        await settle(pilot)
        await pilot.press(*"nano", "enter")
        await settle(pilot, lambda: "process ended at once" in screen_text(app))
        assert isinstance(app.screen, WizardScreen)


async def test_y_copies_the_command_line() -> None:
    app = app_over(worlds.small_fleet())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await settle(pilot)
        await pilot.press("y")
        await settle(pilot)
        assert app.clipboard == replace(worlds.PLAN, mode=model.WARM).command()


async def test_a_slice_that_is_not_there_is_asked_for_with_its_price_and_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = Answers()
    price = "v3-8, spot: cheaper, and taken back whenever the provider needs it; 8 an hour"
    answers.plan = NotMade("large: p/z/large is not there", price)
    app = app_over(worlds.small_fleet(), answers)
    monkeypatch.setattr(app, "suspend", contextlib.nullcontext)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("m")
        await settle(pilot, lambda: "is not there, and can be made: v3-8, spot: cheaper" in screen_text(app))
        await pilot.press("o", "j", "enter")
        await settle(pilot, lambda: "mode cold" in screen_text(app))
        await pilot.press("enter")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "v3-8, spot: cheaper" in screen_text(app)
        await pilot.press("escape")
        await settle(pilot, lambda: isinstance(app.screen, WizardScreen))
        assert not asked(answers, "create"), "esc costs nothing"
        await pilot.press("enter", *"large", "enter")
        await settle(pilot, lambda: bool(asked(answers, "create")))
    assert asked(answers, "create") == ["large"]
    assert app.return_value == RELOAD, "with its workers among the hosts"
    assert app.move is not None, "and with what was chosen"
    assert (app.move.run_id, app.move.target, app.move.mode) == ("nano", "large", "cold")


async def test_the_wizard_goes_on_with_what_was_chosen_once_the_target_answers() -> None:
    move = model.Request("nano", "gpu2", mode=model.COLD, checkpoint="latest", source="small")
    answers = Answers()
    hosts = worlds.small_fleet().hosts
    app = MidstreamApp(Values(worlds.snapshot(hosts)), answers, move=move, clock=lambda: NOW)
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen), "run and target have not answered yet"
        assert isinstance(app.source, Values)
        app.source.set(worlds.snapshot([*hosts, worlds.host("gpu2")], [worlds.run()], version=2))
        await settle(pilot, lambda: isinstance(app.screen, WizardScreen) and "--to gpu2" in screen_text(app))
        (request,) = {(each.target, each.mode, each.checkpoint) for each in asked(answers, "plan")}
        assert request == ("gpu2", "cold", "latest")
        await pilot.press("escape")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen), "once"
