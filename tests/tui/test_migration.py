"""The migration screen over real directories: what the journal says is what is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from midstream.migrate import model
from midstream.migrate.execution import migration_directory as directories
from midstream.migrate.execution.journal import Journal
from midstream.migrate.execution.migration_directory import MigrationDirectory
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.screens.migration import migration_text
from midstream.tui.screens.migration.migration_screen import MigrationScreen
from midstream.tui.screens.run.run_screen import RunScreen
from midstream.tui.widgets import steps
from midstream.watch.snapshot import Snapshot
from midstream_engine import records
from tui import worlds
from tui.looking import app_over, screen_text, settle
from tui.worlds import Answers


class FromDisk(Answers):
    """Migrations as their directories tell them."""

    def migrations(self) -> tuple[model.MigrationView, ...]:
        return tuple(directories.list_migrations())


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MigrationDirectory:
    """A migration's directory in which the beginning of its story is written down."""
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path))
    made = directories.create(worlds.PLAN, "hosts: {}\n")
    tell(made, worlds.STORY)
    return made


def tell(directory: MigrationDirectory, events: tuple[model.Event, ...]) -> None:
    journal = Journal(directory.journal_file)
    for event in events:
        journal.write(event.event, phase=event.phase, state=event.state, message=event.message, **event.detail)
    journal.close()


async def open_migration(pilot, app) -> None:
    await settle(pilot, lambda: bool(app.world.migrations))
    await pilot.press("3", "enter")
    await settle(pilot)
    assert isinstance(app.screen, MigrationScreen)


async def test_a_move_under_way_shows_phases_copy_commands_and_what_is_safe(directory: MigrationDirectory) -> None:
    app = app_over(worlds.small_fleet(), FromDisk())
    with directory.locked():
        async with app.run_test(size=(100, 30)) as pilot:
            await open_migration(pilot, app)
            text = screen_text(app)
            for words in (
                "✓ Preflight",
                "▶ Copy",
                "● running  cutover",
                "r starts it again",
                "64%",
                "9.1 MB of 14.2 MB",
                "12s left",
                "order: save, seal epoch 2 for large",
                "the source is sealed at step 1204",
            ):
                assert words in text


async def test_new_lines_of_the_journal_appear_and_the_certificate_turns_the_page(
    directory: MigrationDirectory,
) -> None:
    app = app_over(worlds.moved_fleet(), FromDisk())
    with directory.locked():
        async with app.run_test(size=(100, 30)) as pilot:
            await open_migration(pilot, app)
            tell(directory, worlds.ENDING[:3])
            await settle(pilot, lambda: "▶ Relaunch" in screen_text(app))
            tell(directory, worlds.ENDING[3:])
            records.write_json(str(directory.certificate_file), worlds.CERTIFICATE.to_json())
            records.write_json(str(directory.ledger_file), worlds.LEDGER.to_json())
            await settle(pilot, lambda: "✓ certified" in screen_text(app))
            text = screen_text(app)
            for words in (
                "✓ state",
                "✓ data",
                "✓ reference losses",
                "○ continuity       not checked",
                "down for 14s",
                "sealed at 1,204",
                "── small",
                "── large",
            ):
                assert words in text
            await pilot.press("3")
            await settle(pilot)
            assert "predicted 14s   measured 14s" in screen_text(app)


async def test_the_newest_prediction_is_shown_beside_the_plans(directory: MigrationDirectory) -> None:
    app = app_over(worlds.small_fleet(), FromDisk())
    with directory.locked():
        async with app.run_test(size=(100, 30)) as pilot:
            await open_migration(pilot, app)
            await pilot.press("3")
            await settle(pilot, lambda: "predicted 14s   measured once" in screen_text(app))
            again = {**worlds.PLAN.predicted_seconds, "provision": 1.0, "compile": 0.1}
            tell(directory, (model.Event("fact", worlds.NOW, detail={"predicted": again}),))
            await settle(
                pilot, lambda: "predicted 5.4s by what the move has measured (planned 14s)" in screen_text(app)
            )


async def test_a_move_that_nobody_carries_out_is_interrupted_and_c_goes_on(directory: MigrationDirectory) -> None:
    answers = FromDisk()
    app = app_over(worlds.small_fleet(), answers)
    async with app.run_test(size=(100, 30)) as pilot:
        await open_migration(pilot, app)
        assert "no process carries it out" in screen_text(app)
        await pilot.press("c")
        await settle(pilot)
        assert ("continue", worlds.PLAN.migration) in answers.asked
        await pilot.press("y")
        assert app.clipboard == f"midstream --continue {worlds.PLAN.migration}"


async def test_a_rollback_under_way_is_the_headline_even_after_the_certificate() -> None:
    begun = model.Event("phase", worlds.NOW - 2, model.ROLLBACK, model.STARTED, "a person asked for it")
    certified = worlds.certified()
    view = replace(certified, phase=model.ROLLBACK, events=(*certified.events, begun))
    app = app_over(worlds.moved_fleet(), Answers(view))
    async with app.run_test(size=(80, 24)) as pilot:
        await open_migration(pilot, app)
        await pilot.press("1")
        await settle(pilot, lambda: "going back to the source" in screen_text(app))
        assert "▶ rollback 2.0s" in screen_text(app)
        assert "✓ certified" not in screen_text(app)


async def test_rollback_is_asked_about_first() -> None:
    answers = Answers(worlds.migration())
    app = app_over(worlds.small_fleet(), answers)
    async with app.run_test(size=(100, 30)) as pilot:
        await open_migration(pilot, app)
        await pilot.press("r")
        await settle(pilot)
        assert isinstance(app.screen, ConfirmScreen)
        await pilot.press("escape")
        await settle(pilot)
        assert answers.asked == []
        await pilot.press("r", "y")
        await settle(pilot)
        assert answers.asked == [("rollback", worlds.PLAN.migration)]


async def test_a_rollback_that_gives_up_steps_names_them_and_asks_for_the_runs_name() -> None:
    answers = Answers(worlds.certified())
    app = app_over(worlds.moved_fleet(), answers)
    async with app.run_test(size=(100, 30)) as pilot:
        await open_migration(pilot, app)
        await pilot.press("r")
        await settle(pilot)
        assert "36 steps that large has done since are given up" in screen_text(app)
        await pilot.press("y", "enter")
        await settle(pilot)
        assert answers.asked == []
        await pilot.press("backspace", *"nano", "enter")
        await settle(pilot)
        assert answers.asked == [("rollback", worlds.PLAN.migration)]


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (replace(worlds.certified(), state=model.COMPLETED, finished=True), "the source is retired"),
        (worlds.migration(model.ROLLED_BACK, error="a copied object is damaged"), "small has the run again: a copied"),
        (worlds.migration(model.ROLLBACK_INCOMPLETE, error="small does not answer"), "✗ small does not answer"),
    ],
    ids=["completed", "rolled back", "rollback incomplete"],
)
async def test_how_it_ended_is_said(view: model.MigrationView, words: str) -> None:
    answers = Answers(view)
    app = app_over(worlds.moved_fleet(), answers)
    async with app.run_test(size=(100, 30)) as pilot:
        await open_migration(pilot, app)
        assert words in screen_text(app)


async def test_there_is_no_rollback_after_finish() -> None:
    answers = Answers(replace(worlds.certified(), state=model.COMPLETED, finished=True))
    app = app_over(worlds.moved_fleet(), answers)
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await open_migration(pilot, app)
        await pilot.press("r")
        await settle(pilot)
        assert isinstance(app.screen, MigrationScreen)
        assert "small is retired" in screen_text(app)
        assert answers.asked == []


async def test_a_refuted_claim_is_the_headline() -> None:
    claims = (replace(worlds.CERTIFICATE.claims[0], verdict=model.CLAIM_FAILED, statement="restored another state"),)
    view = replace(worlds.certified(), certificate=replace(worlds.CERTIFICATE, claims=claims))
    app = app_over(worlds.moved_fleet(), Answers(view))
    async with app.run_test(size=(100, 30)) as pilot:
        await open_migration(pilot, app)
        assert "✗ not certified: state: restored another state" in screen_text(app)


async def test_losses_of_the_source_past_the_seal_are_laid_over_the_targets() -> None:
    steps_past = [[step, 2.0, 2.0] for step in range(1204, 1212)]
    trajectory = model.Claim("continuity", model.VERIFIED, "8 losses agree", {"steps": steps_past})
    view = replace(worlds.certified(), certificate=replace(worlds.CERTIFICATE, claims=(trajectory,)))
    assert migration_text.source_past_the_seal(view) == [(step, 2.0) for step in range(1204, 1212)]


@pytest.mark.parametrize("snapshot", [worlds.snapshot(), worlds.moved_fleet()], ids=["nothing known", "all known"])
async def test_every_view_stands_at_any_size(snapshot: Snapshot) -> None:
    app = app_over(snapshot, Answers(worlds.certified()))
    async with app.run_test(size=(60, 16)) as pilot:
        await open_migration(pilot, app)
        for size in ((40, 10), (80, 24), (200, 60)):
            await pilot.resize_terminal(*size)
            for key in "1234":
                await pilot.press(key)
                await settle(pilot)
        assert "finish started" in screen_text(app)


async def test_o_opens_the_run_and_esc_says_that_the_move_goes_on() -> None:
    app = app_over(worlds.small_fleet(), Answers(worlds.migration()))
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await open_migration(pilot, app)
        await pilot.press("escape")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)
        assert "the migration goes on" in screen_text(app)
        await pilot.press("enter", "o")
        await settle(pilot)
        assert isinstance(app.screen, RunScreen)


def test_steps_follow_the_journal() -> None:
    assert steps.of_migration(worlds.migration())[steps.COPY] == model.STARTED
    ended = steps.of_migration(worlds.certified())
    assert [ended[name] for name in steps.STEPS] == [model.DONE] * 5
    broken = worlds.migration(events=(*worlds.STORY, model.Event("phase", 1.0, model.CUTOVER, model.FAILED, "no")))
    assert steps.of_migration(broken)[steps.COPY] == model.FAILED


def test_the_journal_shows_of_a_copys_progress_the_newest_line_alone() -> None:
    progress = worlds.STORY[-1]
    shown = migration_text.journal(worlds.migration(events=(progress,) * 50))
    assert len(shown) == 1
    assert "9.1 MB of 14.2 MB" in shown[0]
