"""Requests that meet the end of a migration's process. The order of events is forced."""

from __future__ import annotations

import argparse
import inspect
import io
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from midstream import run_demo
from midstream.errors import Exit, MidstreamError, UsageError
from midstream.headless import migrate_run
from midstream.hosts.host_pool import HostPool
from midstream.migrate import executor, migration_process
from midstream.migrate.journal import migration_directory, migration_state, phase_names
from midstream.migrate.journal.journal import Journal, read_events
from midstream.migrate.journal.migration_directory import MigrationDirectory
from midstream.migrate.steps.migration import Migration, NeedsOperatorError
from midstream.output import Output
from midstream.tui.actions import Actions
from midstream.tui.screens.dialogs.quit import ROLL_BACK
from support.migrations.sample_plan import PLAN
from support.run_directory import RunDirectory

TIMEOUT = 60.0  # seconds


@pytest.fixture
def migration(tmp_path: Path) -> MigrationDirectory:
    hosts = "".join(f'  {name}: {{type: local, root: "{tmp_path}/{name}"}}\n' for name in ("a", "b"))
    RunDirectory(tmp_path / "a", "r").fence(1, "a")
    return migration_directory.create(PLAN, f"hosts:\n{hosts}")


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event that is set once `migration_process` has looked whether a migration is locked."""
    event, real = threading.Event(), MigrationDirectory.is_locked

    def is_locked(directory: MigrationDirectory) -> bool:
        found = real(directory)
        if inspect.stack()[1].filename == migration_process.__file__:  # not for a view
            event.set()
        return found

    monkeypatch.setattr(MigrationDirectory, "is_locked", is_locked)
    return event


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The flags of each process that would be started."""
    found: list[tuple[str, ...]] = []
    monkeypatch.setattr(migration_process, "_spawn", lambda _directory, *flags: found.append(flags))
    return found


def write_result(migration: MigrationDirectory, outcome: str, code: Exit) -> None:
    journal = Journal(migration.journal_file)
    if outcome == migration_state.COMPLETED:
        journal.write("phase", phase=phase_names.FINISH, state=phase_names.DONE)
    journal.write("result", ok=code == Exit.DONE, exit_code=int(code), outcome=outcome, migration="m")
    journal.close()


@pytest.mark.parametrize(
    ("request_of", "flags"), [(migration_process.continue_, ()), (migration_process.rollback, ("--rollback",))]
)
def test_process_with_a_result_is_replaced_at_its_exit(
    migration: MigrationDirectory,
    looked: threading.Event,
    spawned: list[tuple[str, ...]],
    request_of: Callable[[str], None],
    flags: tuple[str, ...],
) -> None:
    with ThreadPoolExecutor() as pool:
        with migration.locked():
            write_result(migration, migration_state.INTERRUPTED, Exit.INTERRUPTED)
            requested = pool.submit(request_of, "m")
            assert looked.wait(TIMEOUT)
        requested.result(TIMEOUT)
    assert spawned == [flags]


def test_continue_leaves_a_process_that_resumes_alone(
    migration: MigrationDirectory, looked: threading.Event, spawned: list[tuple[str, ...]]
) -> None:
    write_result(migration, migration_state.INTERRUPTED, Exit.INTERRUPTED)
    with ThreadPoolExecutor() as pool, migration.locked():
        requested = pool.submit(migration_process.continue_, "m")
        assert looked.wait(TIMEOUT)
        Journal(migration.journal_file).write("note", state="resumed", message="resumed by another process")
        requested.result(TIMEOUT)
    assert spawned == []


def finishes_before(migration: MigrationDirectory, looked: threading.Event, request: Callable[[], object]) -> None:
    """Check the answer to a request for a rollback that comes as the migration completes."""
    with ThreadPoolExecutor() as pool:
        with migration.locked():
            answer = pool.submit(request)
            while not migration.rollback_requested():
                assert not answer.done()
            assert looked.wait(TIMEOUT)
            write_result(migration, migration_state.COMPLETED, Exit.DONE)
        with pytest.raises(UsageError, match="m is finished: a is retired"):
            answer.result(TIMEOUT)


def test_rollback_after_the_last_look_is_no_success(
    migration: MigrationDirectory, looked: threading.Event, spawned: list[tuple[str, ...]]
) -> None:
    data = io.StringIO()
    options = argparse.Namespace(continue_=None, rollback="m", yes=True, mode=None, verbose=False)
    finishes_before(migration, looked, lambda: migrate_run.resume(options, Output(True, data, io.StringIO())))
    assert [json.loads(line)["event"] for line in data.getvalue().splitlines()] in ([], ["phase", "result"])
    assert (spawned, migration.rollback_requested()) == ([], False)


def answer_of_screen(migration: MigrationDirectory) -> None:
    fleet = migration.fleet()
    Actions(fleet, HostPool(fleet)).rollback("m", agreed=False)


def answer_of_demo(migration: MigrationDirectory) -> None:
    talk = io.StringIO()
    run_demo._end_migrations(migration.fleet(), ROLL_BACK, Output(False, io.StringIO(), talk))
    raise UsageError(talk.getvalue())


@pytest.mark.parametrize("answer_of", [answer_of_screen, answer_of_demo])
def test_late_rollback_is_answered_on_a_screen(
    migration: MigrationDirectory,
    looked: threading.Event,
    spawned: list[tuple[str, ...]],
    answer_of: Callable[[MigrationDirectory], None],
) -> None:
    finishes_before(migration, looked, lambda: answer_of(migration))
    assert (spawned, migration.rollback_requested()) == ([], False)


class GivesUp:
    """A phase that needs the operator, after a call of ``first``."""

    name = phase_names.PREPARE

    def __init__(self, first: Callable[[], None] = lambda: None) -> None:
        self._first = first

    def run(self, _migration: Migration) -> None:
        self._first()
        raise NeedsOperatorError("the host does not answer", "midstream --continue m")


def test_rollback_requested_as_a_phase_gives_up_is_done(
    migration: MigrationDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    def notified(_fleet: object, event: dict[str, str]) -> None:
        sent.append(f"{event['kind']}: {event['outcome']}, {'locked' if migration.is_locked() else 'unlocked'}")

    monkeypatch.setattr(executor, "phases", lambda: (GivesUp(migration.request_rollback),))
    monkeypatch.setattr(migration_process.notify, "notify_all", notified)
    assert migration_process.main(["m"]) == Exit.DONE
    assert migration.view().state == migration_state.ROLLED_BACK
    results = [event.detail["outcome"] for event in read_events(migration.journal_file) if event.event == "result"]
    assert results == [migration_state.INTERRUPTED, migration_state.ROLLED_BACK]
    assert sent == ["finished: rolled back, locked"]
    followed = list(migration_process.follow("m"))
    assert [event.detail["outcome"] for event in followed if event.event == "result"] == [migration_state.ROLLED_BACK]
    assert followed[-1].event == "result"


@pytest.mark.parametrize(("resumed", "last"), [(False, "result"), (True, "note")])
def test_result_of_an_open_migration_is_the_last_event(migration: MigrationDirectory, resumed: bool, last: str) -> None:
    """A note of another thread may come after it; a process that resumes and is killed writes none."""
    write_result(migration, migration_state.INTERRUPTED, Exit.INTERRUPTED)
    journal = Journal(migration.journal_file)
    journal.write("note", state="resumed" if resumed else "", message="a note")
    journal.close()
    found = [event.event for event in migration_process.follow("m")]
    assert (found[-1], found.count("result")) == (last, int(not resumed))


def test_user_who_is_needed_can_continue_at_once(
    migration: MigrationDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, bool]] = []

    def notified(_fleet: object, event: dict[str, str]) -> None:
        sent.append((event["kind"], migration.is_locked()))

    monkeypatch.setattr(executor, "phases", lambda: (GivesUp(),))
    monkeypatch.setattr(migration_process.notify, "notify_all", notified)
    assert migration_process.main(["m"]) == Exit.INTERRUPTED
    assert sent == [("needs you", False)]


def test_process_that_never_exits_is_reported(
    migration: MigrationDirectory, spawned: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration_process, "EXIT_TIMEOUT", 0.0)
    with migration.locked():
        write_result(migration, migration_state.INTERRUPTED, Exit.INTERRUPTED)
        with pytest.raises(MidstreamError, match="has its result and does not exit"):
            migration_process.continue_("m")
    assert spawned == []


def test_slow_start_of_the_process_is_no_failure(
    migration: MigrationDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration_process, "START_TIMEOUT", 0.0)
    monkeypatch.setattr(migration_process.sys, "executable", "true")
    with pytest.raises(MidstreamError, match=r"may still begin \(midstream --continue m follows it") as found:
        migration_process.continue_(migration.migration)
    assert found.value.code == Exit.INTERRUPTED
