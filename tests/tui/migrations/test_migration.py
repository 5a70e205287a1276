"""The migration screen over real directories shows what the journal records."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot
from typing_extensions import override

from midstream.migrate.journal import migration_directory as directories
from midstream.migrate.journal import migration_state, phase_names
from midstream.migrate.journal.certificate import CLAIM_FAILED, VERIFIED, Certificate, Claim
from midstream.migrate.journal.event import Event
from midstream.migrate.journal.journal import Journal
from midstream.migrate.journal.migration_directory import MigrationDirectory
from midstream.migrate.journal.migration_view import MigrationView
from midstream.tui.app import MidstreamApp
from midstream.tui.screens import migration_text
from midstream.tui.screens.dialogs.confirm import ConfirmScreen
from midstream.tui.screens.fleet.fleet_screen import FleetScreen
from midstream.tui.screens.migration_screen import MigrationScreen
from midstream.tui.screens.run_screen import RunScreen
from midstream.tui.style.glyphs import UNICODE
from midstream.tui.widgets import steps
from midstream.watch.snapshot import Snapshot
from midstream_core import records
from support.tui import fleets, prepared_migrations
from support.tui.prepared_actions import PreparedActions
from support.tui.screens import app_over, screen_text, settle


class DirectoryActions(PreparedActions):
    """Actions that read migrations from their directories."""

    @override
    def migrations(self) -> tuple[MigrationView, ...]:
        return tuple(directories.list_migrations())


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MigrationDirectory:
    """Directory of a migration, with the first events of its journal."""
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path))
    made = directories.create(prepared_migrations.PLAN, "hosts: {}\n")
    write_events(made, prepared_migrations.EVENTS)
    return made


def write_events(directory: MigrationDirectory, events: tuple[Event, ...]) -> None:
    journal = Journal(directory.journal_file)
    for event in events:
        journal.write(event.event, phase=event.phase, state=event.state, message=event.message, **event.detail)
    journal.close()


async def open_migration(pilot: Pilot, app: MidstreamApp) -> None:
    await settle(pilot, lambda: bool(app.screen_state.migrations))
    await pilot.press("3", "enter")
    await settle(pilot)
    assert isinstance(app.screen, MigrationScreen)


async def test_migration_shows_phases_copy_commands_and_safety(directory: MigrationDirectory) -> None:
    app = app_over(fleets.small_fleet(), DirectoryActions())
    with directory.locked():
        async with app.run_test(size=(100, 30)) as pilot:
            await open_migration(pilot, app)
            text = screen_text(app)
            for words in (
                "✓ preflight",
                "▶ cutover",
                "● running  cutover",
                "r restarts it",
                "64%",
                "9.1 MB of 14.2 MB",
                "12s left",
                "command: save, pass ownership 2 to large",
                "the source is sealed at step 1204: no later step of it counts",
                "left    about ",
                " of about 14s",
            ):
                assert words in text


@pytest.mark.long
@pytest.mark.long
@pytest.mark.long
@pytest.mark.long
@pytest.mark.long
async def test_migration_follows_journal_up_to_certificate(
    directory: MigrationDirectory,
) -> None:
    app = app_over(prepared_migrations.moved_fleet(), DirectoryActions())
    with directory.locked():
        async with app.run_test(size=(100, 30)) as pilot:
            await open_migration(pilot, app)
            write_events(directory, prepared_migrations.LAST_EVENTS[:4])
            await settle(pilot, lambda: "▶ relaunch" in screen_text(app))
            write_events(directory, prepared_migrations.LAST_EVENTS[4:])
            records.write_json(str(directory.certificate_file), prepared_migrations.CERTIFICATE.to_json())
            records.write_json(str(directory.downtime_file), prepared_migrations.DOWNTIME_REPORT.to_json())
            await settle(pilot, lambda: "✓ certified" in screen_text(app))
            text = screen_text(app)
            for words in (
                "✓ state",
                "✓ data",
                "✓ reference losses",
                "○ continuity       not checked",
                "downtime 14s",
                "migrated at 1,204",
                "── small",
                "── large",
            ):
                assert words in text
            await pilot.press("3")
            await settle(pilot)
            text = screen_text(app)
            assert "predicted 14s   measured 14s" in text
            assert "install        estimated 1.5s     measured 1.8s" in text
            assert "healthy steps  estimated 20s      measured -" in text


async def test_migration_shows_newest_estimate_beside_plan(directory: MigrationDirectory) -> None:
    app = app_over(fleets.small_fleet(), DirectoryActions())
    with directory.locked():
        async with app.run_test(size=(100, 30)) as pilot:
            await open_migration(pilot, app)
            await pilot.press("3")
            await settle(pilot, lambda: "predicted 14s   measured after" in screen_text(app))
            updated = {**prepared_migrations.PLAN.estimate.predicted_seconds, "provision": 1.0, "compile": 0.1}
            write_events(directory, (Event("fact", fleets.NOW, detail={"predicted": updated}),))
            await settle(pilot, lambda: "predicted 5.4s from measurements (planned 14s)" in screen_text(app))


@pytest.mark.long
@pytest.mark.usefixtures("directory")
async def test_migration_without_executor_is_interrupted_and_resumes() -> None:
    actions = DirectoryActions()
    app = app_over(fleets.small_fleet(), actions)
    async with app.run_test(size=(100, 30)) as pilot:
        await open_migration(pilot, app)
        assert "its process has exited" in screen_text(app)
        await pilot.press("c")
        await settle(pilot)
        assert ("continue", prepared_migrations.PLAN.migration) in actions.calls
        await pilot.press("y")
        await settle(pilot, lambda: "Copy a command" in screen_text(app))
        await pilot.press("enter")
        await settle(pilot)
        assert app.clipboard == f"midstream --continue {prepared_migrations.PLAN.migration}"


async def test_missing_evidence_is_agreed_to(directory: MigrationDirectory) -> None:
    proof = Certificate.without_evidence(prepared_migrations.PLAN, prepared_migrations.SEALED, "no evidence")
    records.write_json(str(directory.certificate_file), proof.to_json())
    actions = DirectoryActions()
    app = app_over(fleets.small_fleet(), actions)
    async with app.run_test(size=(100, 30)) as pilot:
        await open_migration(pilot, app)
        await pilot.press("c")
        await settle(pilot, lambda: "Evidence is missing: state, data, reference losses." in screen_text(app))
        assert not [call for call in actions.calls if call[0] == "continue"]
        await pilot.press("y")
        await settle(pilot)
        assert ("continue", prepared_migrations.PLAN.migration, "agreed") in actions.calls


async def test_migration_rollback_is_headline_after_certificate() -> None:
    rollback = Event("phase", fleets.NOW - 2, phase_names.ROLLBACK, phase_names.STARTED, "requested with --rollback")
    certified = prepared_migrations.certified()
    view = replace(certified, phase=phase_names.ROLLBACK, events=(*certified.events, rollback))
    app = app_over(prepared_migrations.moved_fleet(), PreparedActions(view))
    async with app.run_test(size=(80, 24)) as pilot:
        await open_migration(pilot, app)
        await pilot.press("1")
        await settle(pilot, lambda: "returning to the source" in screen_text(app))
        assert "▶ rollback 2.0s" in screen_text(app)
        assert "✓ certified" not in screen_text(app)


async def test_migration_rollback_requires_confirmation() -> None:
    actions = PreparedActions(prepared_migrations.migration())
    app = app_over(fleets.small_fleet(), actions)
    async with app.run_test(size=(100, 30)) as pilot:
        await open_migration(pilot, app)
        await pilot.press("r")
        await settle(pilot)
        assert isinstance(app.screen, ConfirmScreen)
        await pilot.press("escape")
        await settle(pilot)
        assert actions.calls == []
        await pilot.press("r", "y")
        await settle(pilot)
        assert actions.calls == [("rollback", prepared_migrations.PLAN.migration)]


async def test_migration_rollback_losing_steps_requires_run_name() -> None:
    actions = PreparedActions(prepared_migrations.certified())
    app = app_over(prepared_migrations.moved_fleet(), actions)
    async with app.run_test(size=(100, 30)) as pilot:
        await open_migration(pilot, app)
        await pilot.press("r")
        await settle(pilot)
        assert "A rollback discards 36 steps of large." in screen_text(app)
        await pilot.press("y", "enter")
        await settle(pilot)
        assert actions.calls == []
        await pilot.press("backspace", *"nano", "enter")
        await settle(pilot)
        assert actions.calls == [("rollback", prepared_migrations.PLAN.migration, "agreed")]


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (
            replace(prepared_migrations.certified(), state=migration_state.COMPLETED, finished=True),
            "the source is retired",
        ),
        (
            prepared_migrations.migration(migration_state.ROLLED_BACK, error="a copied object is damaged"),
            "small owns the run again: a copied",
        ),
        (
            prepared_migrations.migration(migration_state.ROLLBACK_INCOMPLETE, error="small does not answer"),
            "✗ small does not answer",
        ),
    ],
    ids=["completed", "rolled back", "rollback incomplete"],
)
async def test_migration_headline_shows_outcome(view: MigrationView, words: str) -> None:
    actions = PreparedActions(view)
    app = app_over(prepared_migrations.moved_fleet(), actions)
    async with app.run_test(size=(100, 30)) as pilot:
        await open_migration(pilot, app)
        assert words in screen_text(app)


async def test_migration_has_no_rollback_after_finish() -> None:
    actions = PreparedActions(replace(prepared_migrations.certified(), state=migration_state.COMPLETED, finished=True))
    app = app_over(prepared_migrations.moved_fleet(), actions)
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await open_migration(pilot, app)
        await pilot.press("r")
        await settle(pilot)
        assert isinstance(app.screen, MigrationScreen)
        assert "small is retired" in screen_text(app)
        assert actions.calls == []


async def test_migration_headline_names_failed_claim() -> None:
    claims = (
        replace(prepared_migrations.CERTIFICATE.claims[0], verdict=CLAIM_FAILED, statement="restored another state"),
    )
    view = replace(prepared_migrations.certified(), certificate=replace(prepared_migrations.CERTIFICATE, claims=claims))
    app = app_over(prepared_migrations.moved_fleet(), PreparedActions(view))
    async with app.run_test(size=(100, 30)) as pilot:
        await open_migration(pilot, app)
        assert "✗ not certified: state: restored another state" in screen_text(app)


async def test_migration_overlays_source_losses_past_the_seal() -> None:
    steps_past = [[step, 2.0, 2.0] for step in range(1204, 1212)]
    continuity = Claim("continuity", VERIFIED, "8 losses agree", {"steps": steps_past})
    view = replace(
        prepared_migrations.certified(), certificate=replace(prepared_migrations.CERTIFICATE, claims=(continuity,))
    )
    assert migration_text.source_past_the_seal(view) == [(step, 2.0) for step in range(1204, 1212)]


@pytest.mark.parametrize("snapshot", [fleets.snapshot(), prepared_migrations.moved_fleet()], ids=["empty", "complete"])
async def test_migration_views_render_at_any_size(snapshot: Snapshot) -> None:
    app = app_over(snapshot, PreparedActions(prepared_migrations.certified()))
    async with app.run_test(size=(60, 16)) as pilot:
        await open_migration(pilot, app)
        for size in ((40, 10), (80, 24), (200, 60)):
            await pilot.resize_terminal(*size)
            for key in "1234":
                await pilot.press(key)
                await settle(pilot)
        assert "finish started" in screen_text(app)


async def test_migration_o_opens_run_and_esc_keeps_migrating() -> None:
    app = app_over(fleets.small_fleet(), PreparedActions(prepared_migrations.migration()))
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await open_migration(pilot, app)
        await pilot.press("escape")
        await settle(pilot)
        assert isinstance(app.screen, FleetScreen)
        assert "the migration continues" in screen_text(app)
        await pilot.press("enter", "o")
        await settle(pilot)
        assert isinstance(app.screen, RunScreen)


def test_migration_steps_follow_journal() -> None:
    assert steps.of_migration(prepared_migrations.migration())[phase_names.CUTOVER] == phase_names.STARTED
    ended = steps.of_migration(prepared_migrations.certified())
    assert [ended[name] for name in steps.STEPS] == [phase_names.DONE] * 6 + [phase_names.STARTED]
    broken = prepared_migrations.migration(
        events=(*prepared_migrations.EVENTS, Event("phase", 1.0, phase_names.CUTOVER, phase_names.FAILED, "no"))
    )
    assert steps.of_migration(broken)[phase_names.CUTOVER] == phase_names.FAILED


def rolled_back() -> MigrationView:
    """A migration that was certified and then rolled back on request."""
    view = prepared_migrations.certified()
    events = (
        Event("phase", fleets.NOW - 2, phase_names.ROLLBACK, phase_names.STARTED, "requested"),
        Event("phase", fleets.NOW - 1, phase_names.ROLLBACK, phase_names.DONE),
    )
    return replace(view, state=migration_state.ROLLED_BACK, phase=phase_names.ROLLBACK, events=(*view.events, *events))


def before_the_seal(view: MigrationView) -> MigrationView:
    """The same migration, whose prepare was not done yet."""
    rollback = [event for event in view.events if event.phase == phase_names.ROLLBACK]
    return replace(
        view, phase=phase_names.PREPARE, events=(*prepared_migrations.EVENTS[:2], *rollback), certificate=None
    )


async def test_rollback_by_an_older_journal_names_the_steps() -> None:
    """The target's fence shows that it trains, which the journal does not have."""
    older = before_the_seal(prepared_migrations.migration())
    app = app_over(prepared_migrations.moved_fleet(), PreparedActions(older))
    async with app.run_test(size=(80, 24)) as pilot:
        await open_migration(pilot, app)
        await pilot.press("r")
        await settle(pilot)
        assert re.search(r"A rollback discards \d+ steps? of large", screen_text(app))
        assert "stays on small" not in screen_text(app)


async def test_rollback_names_a_target_that_does_not_answer() -> None:
    """A host without an answer is no evidence that its run has made no step."""
    moved = prepared_migrations.moved_fleet()
    hosts = [
        replace(host, link="down", error="connection refused") if host.name == "large" else host for host in moved.hosts
    ]
    view = prepared_migrations.certified()
    began = Event("fact", 0.0, detail={"relaunching": True})
    actions = PreparedActions(replace(view, events=(*view.events, began)))
    app = app_over(fleets.snapshot(hosts, [run for run in moved.runs if run.host != "large"]), actions)
    async with app.run_test(size=(120, 30)) as pilot:
        await open_migration(pilot, app)
        await pilot.press("r")
        await settle(pilot)
        words = " ".join(screen_text(app).split())
        assert "A rollback discards the steps of large, which is unreachable: connection" in words
        await pilot.press("y", "enter")
        await settle(pilot)
    assert actions.calls == [], "its loss needs the run's name"


@pytest.mark.long
async def test_rollback_names_an_attempt_that_the_target_has_lost() -> None:
    """The target's copy is older than the attempt that was started there: that may train."""
    view = prepared_migrations.certified()
    started = Event("fact", 0.0, detail={"target_attempt": 3})
    actions = PreparedActions(replace(view, events=(*view.events, started)))
    app = app_over(prepared_migrations.moved_fleet(), actions)
    async with app.run_test(size=(120, 30)) as pilot:
        await open_migration(pilot, app)
        await pilot.press("r")
        await settle(pilot)
        assert "large shows no attempt 3 of nano, which was started there" in screen_text(app)
        await pilot.press(*"nano", "enter")
        await settle(pilot)
    assert actions.calls == [("rollback", prepared_migrations.PLAN.migration, "agreed")]


@pytest.mark.long
async def test_rollback_before_the_seal_says_that_the_run_stays() -> None:
    running = before_the_seal(prepared_migrations.migration())
    app = app_over(fleets.small_fleet(), PreparedActions(running))
    async with app.run_test(size=(80, 24)) as pilot:
        await open_migration(pilot, app)
        await pilot.press("r")
        await settle(pilot)
        assert "nano stays on small. What was started for it on large is ended." in screen_text(app)
    ended = replace(before_the_seal(rolled_back()), phase=phase_names.ROLLBACK)
    app = app_over(prepared_migrations.moved_fleet(), PreparedActions(ended))
    async with app.run_test(size=(80, 24)) as pilot:
        await open_migration(pilot, app)
        text = screen_text(app)
        assert "small still owns the run" in text
        assert "▶" not in text
        assert re.search(r"✓ plan [ ─]*✓ preflight [ ─]*↶ prepare [ ─]*✓ rollback\s*$", text, re.MULTILINE), text


def test_rolled_back_phases_are_not_ticked() -> None:
    states = steps.of_migration(rolled_back())
    assert states[phase_names.PLAN] == states[phase_names.ROLLBACK] == phase_names.DONE
    assert {states[name] for name in steps.STEPS[2:]} == {steps.UNDONE}
    broken = replace(
        rolled_back(),
        events=(*prepared_migrations.EVENTS, Event("phase", 1.0, phase_names.CUTOVER, phase_names.FAILED, "no")),
    )
    assert steps.of_migration(broken)[phase_names.CUTOVER] == phase_names.FAILED, "what failed stays visible"
    moved_on = replace(rolled_back(), state=migration_state.MOVED_ON)
    assert moved_on.verdict == "certified", "a later migration has the run: this one was not undone"


@pytest.mark.parametrize("width", [160, 100, 80, 60, 40])
def test_steps_fit_every_width(width: int) -> None:
    for view in (prepared_migrations.migration(), rolled_back()):
        line = steps.line(UNICODE, steps.of_migration(view), width)
        assert line.cell_len <= width
        assert ("rollback" if view.rolled_back else "cutover") in line.plain


async def test_rolled_back_migration_says_so_everywhere() -> None:
    view = rolled_back()
    app = app_over(prepared_migrations.moved_fleet(), PreparedActions(view))
    async with app.run_test(size=(120, 30)) as pilot:
        await settle(pilot, lambda: app.screen_state.migrations == (view,))
        await pilot.press("3")
        await settle(pilot)
        assert "void" in screen_text(app)
        assert "certified" not in screen_text(app).lower().replace("certificate", "")
        await pilot.press("enter")
        await settle(pilot)
        text = screen_text(app)
        assert "void: rolled back. nano is on small; the claims were about large." in text
        assert "small owns the run again" in text
        assert "✓ rollback" in text
        assert "✓ cutover" not in text
        await pilot.press("1")
        await settle(pilot)
        assert "✓ relaunch" not in screen_text(app)


def test_migration_journal_view_shows_last_copy_progress() -> None:
    progress = prepared_migrations.EVENTS[-1]
    shown = migration_text.journal(prepared_migrations.migration(events=(progress,) * 50))
    assert len(shown) == 1
    assert "9.1 MB of 14.2 MB" in shown[0]


async def test_command_log_has_lines_to_paste_and_y_copies_one() -> None:
    app = app_over(prepared_migrations.moved_fleet(), PreparedActions(prepared_migrations.migration()))
    async with app.run_test(size=(100, 30)) as pilot:
        await open_migration(pilot, app)
        text = screen_text(app)
        line = "ssh small 'cat /root/.midstream/runs/nano/attempts/001/command.json'"
        assert f"  to see the result: {line}\n" in text
        await pilot.press("y")
        await settle(pilot, lambda: "Copy a command" in screen_text(app))
        await pilot.press("j", "enter")
        await settle(pilot)
        assert app.clipboard == line
