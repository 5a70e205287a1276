"""Plans, rollbacks, stops and starts: the user confirms what was shown, while the fleet changes."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from textual.pilot import Pilot
from typing_extensions import override

from midstream.errors import MidstreamError, UsageError
from midstream.hosts.prompter import PassphrasePrompt
from midstream.install.reporter import Reporter
from midstream.launch.launch_request import LaunchRequest
from midstream.migrate.journal import migration_state
from midstream.migrate.journal.migration_view import MigrationView
from midstream.migrate.journal.plan import Plan
from midstream.migrate.journal.request import Request
from midstream.tui.app import MidstreamApp
from midstream.tui.screens.dialogs.confirm import REFRESH, ConfirmScreen
from midstream.tui.screens.dialogs.dialog_prompter import DialogPrompter
from midstream.tui.screens.dialogs.prompts import PassphraseScreen
from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.screens.migration_screen import MigrationScreen
from midstream.tui.screens.run_screen import RunScreen
from midstream.watch.snapshot import RunView, Snapshot
from support.tui import fleets, prepared_migrations
from support.tui.prepared_actions import PreparedActions, PreparedSnapshots
from support.tui.screens import app_over, screen_text, settle

TIMEOUT = 60.0  # seconds


def report(app: MidstreamApp, *runs: RunView) -> None:
    """Let the hosts report other runs."""
    before = app.source.snapshot()
    assert isinstance(app.source, PreparedSnapshots)
    app.source.set(fleets.snapshot(before.hosts, runs, version=before.version + 1))


class SlowFirstPlan(PreparedActions):
    """The first plan for ``large`` is slow, and is an error in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()
        self._first = True

    @override
    def make_plan(self, snapshot: Snapshot, request: Request) -> Plan:
        first, self._first = self._first, False
        plan = super().make_plan(snapshot, request)
        if first:
            assert self.release.wait(TIMEOUT)
            raise UsageError("large did not answer")
        return plan


async def confirm_plan(pilot: Pilot[int], app: MidstreamApp) -> None:
    await pilot.press("enter")
    await settle(pilot, lambda: "Ready." in screen_text(app), working=True)
    await pilot.press("enter")
    await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen), working=True)


@pytest.mark.parametrize("keys", [("r",), ("j", "k")], ids=["planned again", "target chosen again"])
async def test_late_plan_of_same_target_changes_nothing(keys: tuple[str, ...]) -> None:
    actions = SlowFirstPlan()
    app = app_over(fleets.small_fleet(), actions)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("m", *keys)
        await settle(pilot, lambda: "enter runs the preflight" in screen_text(app), working=True)
        await pilot.press("enter")
        await settle(pilot, lambda: "Ready." in screen_text(app), working=True)
        actions.release.set()
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        assert "Migrate nano from small to large" in screen_text(app)


async def rolled_back(before: Snapshot, now: RunView, view: MigrationView) -> list[str]:
    """Ask for a rollback, confirm it after the target has reported ``now``, and return the questions."""
    actions = PreparedActions(view)
    app, texts = app_over(before, actions), list[str]()
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        await pilot.press("3", "enter")
        await settle(pilot, lambda: isinstance(app.screen, MigrationScreen))
        await pilot.press("r")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        texts.append(screen_text(app))
        assert actions.held == {view.migration}, "it could finish while the question is open"
        report(app, now, *(run for run in before.runs if run.host != now.host))
        await settle(pilot, lambda: app.screen_state.run(now.host, now.run_id) == now)
        await pilot.pause(1.5 * REFRESH)
        texts.append(screen_text(app))
        await pilot.press(*("y" if "y yes" in texts[0] else "nano"), "enter")
        await settle(pilot)
        texts += [screen_text(app), repr(actions.calls)]
    return texts


def target_at(step: int) -> tuple[Snapshot, RunView]:
    """Return the fleet after the seal at step 1204, and the target at a step."""
    before = prepared_migrations.moved_fleet()
    run = next(run for run in before.runs if run.host == "large")
    assert run.status is not None
    return before, replace(run, status=replace(run.status, step=step))


@pytest.mark.long
async def test_rollback_without_loss_asks_again_once_steps_are_lost() -> None:
    before, sealed = target_at(1204)
    source = next(run for run in before.runs if run.host == "small")
    before = fleets.snapshot(before.hosts, [sealed, source])
    shown, live, again, calls = await rolled_back(before, target_at(1700)[1], prepared_migrations.certified())
    assert "discards" not in shown
    assert "A rollback discards 496 steps of large." in live
    assert "A rollback discards 496 steps of large." in again
    assert "type nano" in again
    assert calls == "[]", "nothing is discarded that the user has not read"


async def test_question_about_a_rollback_counts_on_and_comes_once() -> None:
    """It came again, with an empty field, where the steps had doubled; the migration finished behind it."""
    before, _ = target_at(1240)
    shown, live, _, calls = await rolled_back(before, target_at(1700)[1], prepared_migrations.certified())
    assert "A rollback discards 36 steps of large." in shown
    assert "A rollback discards 496 steps of large." in live
    assert "rollback" in calls


async def test_stop_does_not_count_for_a_later_attempt() -> None:
    actions = PreparedActions()
    app = app_over(fleets.small_fleet(), actions)
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await pilot.press("S")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        moved = fleets.moved_run()
        report(app, moved, fleets.run(state="stopped", running=False))
        await settle(pilot, lambda: app.screen_state.snapshot.copies("nano")[0].host == "large")
        await pilot.press(*"nano", "enter")
        await settle(pilot, lambda: isinstance(app.screen, FleetScreen))
        assert "nano is on large now, attempt 2: press S again" in screen_text(app)
        assert not [call for call in actions.calls if call[0] == "stop"]


async def test_stop_of_several_leaves_out_what_has_moved() -> None:
    actions = PreparedActions()
    runs = [fleets.run(name) for name in ("a", "b", "nano")]
    app = app_over(fleets.small_fleet(*runs), actions)
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("space", "space", "space", "S")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        report(app, *runs[:2], fleets.moved_run())
        await settle(pilot, lambda: app.screen_state.snapshot.copies("nano")[0].host == "large")
        await pilot.press(*"stop", "space", "3", "enter")
        await settle(pilot, lambda: len(actions.calls) == 2)
        assert sorted(actions.calls) == [("stop", ("small", "a")), ("stop", ("small", "b"))]


class Slow(PreparedActions):
    """Starts end when they are released, with an error if there is one."""

    def __init__(self, error: MidstreamError | None = None) -> None:
        super().__init__()
        self.begun, self.release, self._error = threading.Event(), threading.Event(), error

    def _wait(self) -> None:
        self.begun.set()
        assert self.release.wait(TIMEOUT)
        if self._error is not None:
            raise self._error

    @override
    def launch(self, request: LaunchRequest, report: Reporter) -> str:
        self._wait()
        return super().launch(request, report)

    @override
    def start(self, plan: Plan) -> str:
        self._wait()
        return super().start(plan)


async def begin(pilot: Pilot[int], app: MidstreamApp, what: str) -> None:
    """Confirm a start of a run that has stopped, or a migration."""
    if what == "launch":
        await pilot.press("R")
        await settle(pilot)
        await pilot.press("enter")
        await settle(pilot, lambda: "Ready." in screen_text(app))
        await pilot.press("enter", "y")
    else:
        await pilot.press("m")
        await settle(pilot, lambda: "enter runs the preflight" in screen_text(app))
        await confirm_plan(pilot, app)
        await pilot.press(*"nano", "enter")
    actions = app.actions
    assert isinstance(actions, Slow)
    await settle(pilot, actions.begun.is_set, working=True)


def fleet_for(what: str) -> Snapshot:
    return fleets.small_fleet(*([fleets.run(state="stopped", running=False)] if what == "launch" else []))


@pytest.mark.long
@pytest.mark.parametrize(("what", "screen"), [("launch", RunScreen), ("migration", MigrationScreen)])
async def test_start_leaves_a_question_of_a_connection_open(what: str, screen: type) -> None:
    actions, answers = Slow(), list[str | None]()
    app = app_over(fleet_for(what), actions)
    prompter = DialogPrompter(app)
    wanted = PassphrasePrompt("gpu1", "/home/me/.ssh/id_ed25519")
    question = threading.Thread(target=lambda: answers.append(prompter.passphrase(wanted)), daemon=True)
    async with app.run_test(size=(100, 30)) as pilot:
        await settle(pilot)
        await begin(pilot, app, what)
        question.start()
        await settle(pilot, lambda: isinstance(app.screen, PassphraseScreen), working=True)
        actions.release.set()
        await settle(pilot)
        await pilot.press(*"sesame", "enter")
        await settle(pilot, lambda: not question.is_alive())
        await settle(pilot, lambda: isinstance(app.screen, screen))
        prompter.close()
    assert answers == ["sesame"], "the connection has its answer"


@pytest.mark.parametrize("what", ["launch", "migration"])
async def test_failed_start_is_shown_after_its_screen_was_left(what: str) -> None:
    actions = Slow(MidstreamError("gpu1: pip cannot reach pypi.org", "wheels: of the host"))
    app = app_over(fleet_for(what), actions)
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await settle(pilot)
        await begin(pilot, app, what)
        await pilot.press("escape")
        await settle(pilot, lambda: isinstance(app.screen, FleetScreen), working=True)
        actions.release.set()
        await settle(pilot, lambda: "wheels: of the host" in screen_text(app))
        assert "gpu1: pip" in " ".join(screen_text(app).split())


async def test_rollback_of_a_finished_migration_says_so() -> None:
    before, _ = target_at(1240)
    view = prepared_migrations.certified()
    actions = PreparedActions(view)
    app = app_over(before, actions)
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await settle(pilot, lambda: bool(app.screen_state.migrations))
        await pilot.press("3", "enter", "r")
        await settle(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        actions.views = (replace(view, state=migration_state.COMPLETED, finished=True),)
        await settle(pilot, lambda: app.screen_state.migrations[0].finished)
        await pilot.press(*"nano", "enter")
        await settle(pilot, lambda: isinstance(app.screen, MigrationScreen))
        assert "small is retired" in screen_text(app)
        assert actions.calls == []
        assert not actions.held
