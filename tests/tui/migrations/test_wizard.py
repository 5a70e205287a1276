"""The wizard changes nothing before the run's name is typed; a failed check blocks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from typing_extensions import override

from midstream.check.check_result import PASS, Check
from midstream.errors import MidstreamError, UsageError
from midstream.migrate.journal.plan import Plan
from midstream.migrate.journal.request import Request
from midstream.migrate.modes.registry import COLD, WARM
from midstream.operations.create_target import CreatableTarget
from midstream.tui.app import MidstreamApp
from midstream.tui.base_app import RELOAD_EXIT_CODE
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.screens.migration_screen import MigrationScreen
from midstream.tui.screens.wizard import WizardScreen
from midstream.tui.target_choice import TargetChoice, TargetMissingError
from midstream.watch.snapshot import Snapshot
from midstream_core import records
from support.tui import fleets, prepared_migrations
from support.tui.fleets import NOW
from support.tui.prepared_actions import PreparedActions, PreparedSnapshots
from support.tui.screens import app_over, opened, screen_text, settle


def calls_of(actions: PreparedActions, name: str) -> list[Any]:
    return [call[1] for call in actions.calls if call[0] == name]


async def test_wizard_plan_shows_changed_numbers_and_command() -> None:
    async with opened("m", size=(80, 45)) as (app, pilot):
        await settle(pilot, lambda: "downtime" in screen_text(app))
        text = screen_text(app)
        for words in (
            "▶ plan",
            "small  2×cpu",
            "large  4 devices",
            "ownership 1 → 2",
            "2 → 4",
            "16 → 8",
            "unchanged    batch 32",
            "14.2 MB of state",
            "relayed through this machine",
            "about 14s",
            "midstream --migrate nano --to large --mode warm",
        ):
            assert words in text


async def test_wizard_excludes_source_from_targets() -> None:
    async with opened("m") as (app, _):
        targets = [row.key for row in app.screen.query_one("#targets").rows]  # type: ignore[attr-defined]
        assert targets == ["large", "gpu2"]


async def test_wizard_offers_other_allocations_of_login_node() -> None:
    actions = PreparedActions()
    names = ("nano-job", "wide")
    actions.targets = lambda: tuple(TargetChoice(name, ("small",), allocation=True) for name in names)  # type: ignore[method-assign]
    run = replace(fleets.run("nano", "small"), fence=records.Fence(1, "nano-job"))
    app = app_over(fleets.small_fleet(run), actions)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("m")
        await settle(pilot, lambda: isinstance(app.screen, WizardScreen))
        assert [row.key for row in app.screen.query_one("#targets").rows] == ["wide"]  # type: ignore[attr-defined]


@pytest.mark.long
@pytest.mark.long
@pytest.mark.long
@pytest.mark.long
@pytest.mark.long
async def test_wizard_replans_for_other_target_or_checkpoint() -> None:
    actions = PreparedActions()
    async with opened("m", actions) as (app, pilot):
        await pilot.press("j")
        await settle(pilot)
        await pilot.press("c", "j", "enter")
        await settle(pilot)
        await pilot.press("o", "j", "enter")
        await settle(pilot)
        await pilot.press("c", "G", "enter")
        await settle(pilot)
        requests = calls_of(actions, "plan")
        assert [(request.target, request.checkpoint, request.mode) for request in requests] == [
            ("large", "now", "warm"),
            ("gpu2", "now", "warm"),
            ("gpu2", "latest", "warm"),
            ("gpu2", "latest", "cold"),
            ("gpu2", "1000", "cold"),
        ]
        assert all(request.source == "small" for request in requests)
        assert "--to gpu2" in screen_text(app)


async def test_wizard_shows_lost_steps_and_warnings() -> None:
    actions = PreparedActions()
    actions.plan = replace(
        prepared_migrations.PLAN,
        identity=replace(prepared_migrations.PLAN.identity, checkpoint="step-1200-a001", checkpoint_step=1200),
        estimate=replace(prepared_migrations.PLAN.estimate, steps_lost=4),
        policy=replace(prepared_migrations.PLAN.policy, warnings=("4 steps after the chosen checkpoint are lost",)),
    )
    async with opened("m", actions) as (app, pilot):
        await settle(pilot, lambda: "step-1200-a001  4 steps are discarded" in screen_text(app))
        assert "! 4 steps after the chosen checkpoint are lost" in screen_text(app)


async def test_wizard_impossible_plan_shows_reason_and_blocks() -> None:
    actions = PreparedActions()
    actions.plan = UsageError("target large has 2 hosts", "the modes are cold, warm, live")
    async with opened("m", actions) as (app, pilot):
        await settle(pilot, lambda: "target large has 2 hosts" in screen_text(app))
        assert "the modes are cold, warm, live" in screen_text(app)
        await pilot.press("enter")
        await settle(pilot)
        assert calls_of(actions, "preflight") == []


async def test_wizard_drops_plan_of_earlier_target() -> None:
    """The plan of the first target arrives after the second one is selected."""
    release = threading.Event()

    class Slow(PreparedActions):
        @override
        def make_plan(self, snapshot: Snapshot, request: Request) -> Plan:
            plan = super().make_plan(snapshot, request)
            if request.target == "large":
                assert release.wait(60)
            return plan

    app = app_over(fleets.small_fleet(), Slow())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await pilot.press("j")
        await settle(pilot, lambda: "--to gpu2" in screen_text(app), working=True)
        release.set()
        await settle(pilot)
        assert "--to gpu2" in screen_text(app)
        assert "--to large" not in screen_text(app)


async def test_wizard_enter_before_the_plan_says_that_it_is_computed() -> None:
    planned = threading.Event()

    class Waiting(PreparedActions):
        @override
        def make_plan(self, snapshot: Snapshot, request: Request) -> Plan:
            assert planned.wait(30)
            return super().make_plan(snapshot, request)

    actions = Waiting()
    app = app_over(fleets.small_fleet(), actions)
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await pilot.press("m")
        while not isinstance(app.screen, WizardScreen):
            await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        words = "the plan is being computed; press enter when it is shown"
        assert screen_text(app).count(words[:24]) == 2, "below the plan, and as the answer to the key"
        planned.set()
        await settle(pilot, lambda: "enter runs the preflight" in screen_text(app))
        assert calls_of(actions, "preflight") == [], "the early key starts nothing"


async def test_wizard_checks_show_hints_and_warnings_do_not_block() -> None:
    async with opened("m") as (app, pilot):
        await pilot.press("enter")
        await settle(pilot, lambda: "Ready." in screen_text(app))
        text = screen_text(app)
        assert "✓ source answers" in text
        assert "! disk" in text
        assert "hint: free some space on large" in text


async def test_wizard_verdict_is_visible_with_many_checks() -> None:
    actions = PreparedActions()
    actions.checks = tuple(Check(f"check {number}", PASS, "fine") for number in range(40))
    async with opened("m", actions) as (app, pilot):
        assert "  risk  " in screen_text(app)
        await pilot.press("enter")
        await settle(pilot, lambda: "Ready." in screen_text(app))
        assert "safety  checks change nothing" in screen_text(app)


async def test_wizard_lists_failed_checks_first() -> None:
    actions = PreparedActions()
    actions.checks = (*prepared_migrations.CHECKS * 5, prepared_migrations.REFUSAL)
    async with opened("m", actions) as (app, pilot):
        await pilot.press("enter")
        await settle(pilot, lambda: "kill 811" in screen_text(app))


async def test_wizard_shows_cost_of_downtime() -> None:
    actions = PreparedActions()
    actions.plan = replace(
        prepared_migrations.PLAN, estimate=replace(prepared_migrations.PLAN.estimate, cost_per_hour=(12.0, 24.0))
    )
    async with opened("m", actions, size=(100, 30)) as (app, pilot):
        await settle(pilot, lambda: "12.00 → 24.00" in screen_text(app))
        assert "costs about 0.14" in screen_text(app)


async def test_wizard_shows_checks_while_later_ones_run() -> None:
    release = threading.Event()

    class Slow(PreparedActions):
        @override
        def preflight(self, plan: Plan) -> Iterator[Check]:
            yield prepared_migrations.CHECKS[0]
            assert release.wait(60)
            yield prepared_migrations.CHECKS[1]

    app = app_over(fleets.small_fleet(), Slow())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("m")
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot, lambda: "source answers" in screen_text(app), working=True)
        await pilot.press("enter")
        await pilot.pause()
        assert not isinstance(app.screen, ConfirmScreen), "blocked until all checks are done"
        release.set()
        await settle(pilot, lambda: "Ready." in screen_text(app))


async def test_wizard_failed_check_blocks_and_r_repeats_checks() -> None:
    actions = PreparedActions()
    actions.checks = (*prepared_migrations.CHECKS, prepared_migrations.REFUSAL)
    async with opened("m", actions) as (app, pilot):
        await pilot.press("enter")
        await settle(pilot, lambda: "Cannot migrate: devices free: pid 811 uses device 0." in screen_text(app))
        assert "stop it on large: kill 811" in screen_text(app)
        await pilot.press("enter")
        await settle(pilot)
        assert isinstance(app.screen, WizardScreen)
        actions.checks = prepared_migrations.CHECKS
        await pilot.press("r")
        await settle(pilot, lambda: "Ready." in screen_text(app))


async def test_wizard_b_returns_to_plan() -> None:
    actions = PreparedActions()
    async with opened("m", actions) as (app, pilot):
        await pilot.press("enter")
        await settle(pilot)
        await pilot.press("b")
        await settle(pilot, lambda: "▶ plan" in screen_text(app))
        assert "TARGET" in screen_text(app)
        assert calls_of(actions, "start") == []


async def test_wizard_starts_only_on_the_typed_run_name() -> None:
    actions = PreparedActions()
    async with opened("m", actions) as (app, pilot):
        await pilot.press("enter")
        await settle(pilot, lambda: "Ready." in screen_text(app))
        await pilot.press("enter")
        await settle(pilot)
        assert isinstance(app.screen, ConfirmScreen)
        assert "nothing is deleted" in screen_text(app)
        await pilot.press(*"yes", "enter")
        await settle(pilot)
        assert calls_of(actions, "start") == []
        await pilot.press(*["backspace"] * 3, *"nano", "enter")
        await settle(pilot, lambda: isinstance(app.screen, MigrationScreen))
        assert calls_of(actions, "start") == [prepared_migrations.PLAN.migration]
        await settle(pilot, lambda: "▶ cutover" in screen_text(app))
        await pilot.press("escape")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)


@pytest.mark.parametrize("keys", [("escape",), ("enter", "escape"), ("enter", "enter", "escape", "escape")])
async def test_wizard_esc_at_any_step_changes_nothing(keys: tuple[str, ...]) -> None:
    actions = PreparedActions()
    async with opened("m", actions) as (app, pilot):
        for key in keys:
            await pilot.press(key)
            await settle(pilot)
        assert isinstance(app.screen, FleetScreen)
        assert calls_of(actions, "start") == []


async def test_wizard_failed_start_shows_reason_and_stays() -> None:
    class Failing(PreparedActions):
        @override
        def start(self, plan: Plan) -> str:
            raise MidstreamError("the migration's process ended at once", "see process.log")

    app = app_over(fleets.small_fleet(), Failing())
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


async def test_wizard_y_copies_command_line() -> None:
    async with opened("m") as (app, pilot):
        await pilot.press("y")
        await settle(pilot)
        assert (
            app.clipboard
            == replace(
                prepared_migrations.PLAN, identity=replace(prepared_migrations.PLAN.identity, mode=WARM)
            ).command()
        )


async def test_wizard_creates_missing_slice_after_price_and_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actions = PreparedActions()
    price = "v3-8, spot: cheaper, and preempted whenever the provider needs it; 8 an hour"
    actions.plan = TargetMissingError(CreatableTarget("large", "p/z/large", "v3-8", "spot", price))
    app = app_over(fleets.small_fleet(), actions)
    monkeypatch.setattr(app, "suspend", contextlib.nullcontext)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("m")
        await settle(pilot, lambda: "it would be created as p/z/large: v3-8, spot: cheaper" in screen_text(app))
        await pilot.press("o", "j", "enter")
        await settle(pilot, lambda: "mode cold" in screen_text(app))
        await pilot.press("enter")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "v3-8, spot: cheaper" in screen_text(app)
        await pilot.press("escape")
        await settle(pilot, lambda: isinstance(app.screen, WizardScreen))
        assert not calls_of(actions, "create"), "esc costs nothing"
        await pilot.press("enter", *"large", "enter")
        await settle(pilot, lambda: bool(calls_of(actions, "create")))
    assert [missing.target for missing in calls_of(actions, "create")] == ["large"]
    assert app.return_value == RELOAD_EXIT_CODE, "restarts with the slice's workers as hosts"
    assert app.request is not None, "and with the earlier choices"
    assert (app.request.run_id, app.request.target, app.request.mode) == ("nano", "large", "cold")


async def test_wizard_resumes_with_choices_once_target_answers() -> None:
    request = Request("nano", "gpu2", mode=COLD, checkpoint="latest", source="small")
    actions = PreparedActions()
    hosts = fleets.small_fleet().hosts
    app = MidstreamApp(PreparedSnapshots(fleets.snapshot(hosts)), actions, request=request, clock=lambda: NOW)
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen), "run and target have not answered yet"
        assert isinstance(app.source, PreparedSnapshots)
        app.source.set(fleets.snapshot([*hosts, fleets.host("gpu2")], [fleets.run()], version=2))
        await settle(pilot, lambda: isinstance(app.screen, WizardScreen) and "--to gpu2" in screen_text(app))
        (planned,) = {(each.target, each.mode, each.checkpoint) for each in calls_of(actions, "plan")}
        assert planned == ("gpu2", "cold", "latest")
        await pilot.press("escape")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen), "the wizard opens only once"
