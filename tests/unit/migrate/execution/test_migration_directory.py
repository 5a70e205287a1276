"""The directory of a migration: journal, lock, state."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import pytest

from midstream.errors import MidstreamError, UsageError
from midstream.migrate import migration_process
from midstream.migrate.journal import migration_directory, migration_state, phase_names
from midstream.migrate.journal.downtime_report import DowntimeReport
from midstream.migrate.journal.event import Event
from midstream.migrate.journal.facts import Facts
from midstream.migrate.journal.journal import Journal, JournalError, follow_events, outcome, read_events
from midstream.migrate.journal.migration_directory import MigrationDirectory
from midstream_core import records
from support.migrations.sample_plan import PLAN, SEALED


@pytest.fixture
def migration() -> MigrationDirectory:
    return migration_directory.create(PLAN, "hosts: {}\n")


def test_facts_are_read_by_the_continuing_process(migration: MigrationDirectory) -> None:
    journal = Journal(migration.journal_file)
    journal.record(Facts(sealed=SEALED))
    journal.close()
    assert Journal(migration.journal_file).facts.sealed == SEALED


def test_partial_last_line_is_ignored_and_terminated(migration: MigrationDirectory) -> None:
    journal = Journal(migration.journal_file)
    journal.record(Facts(standby_attempt=1))
    journal.close()
    with migration.journal_file.open("ab") as file:
        file.write(b'{"event": "fact", "ti')
    again = Journal(migration.journal_file)
    assert again.facts.standby_attempt == 1
    again.record(Facts(target_attempt=2))
    assert Journal(migration.journal_file).facts.target_attempt == 2
    assert [event.detail for event in read_events(migration.journal_file)] == [
        {"standby_attempt": 1},
        {"target_attempt": 2},
    ]


def test_line_cut_by_full_disk_is_ignored_and_terminated(migration: MigrationDirectory) -> None:
    journal = Journal(migration.journal_file)
    journal.record(Facts(standby_attempt=1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (migration.journal_file.stat().st_size + 5, hard))
    try:
        with pytest.raises(JournalError, match=r"journal.jsonl cannot be written: File too large \(make room there"):
            journal.record(Facts(takeover_step=1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.record(Facts(target_attempt=2))
    journal.close()
    assert [event.detail for event in read_events(migration.journal_file)] == [
        {"standby_attempt": 1},
        {"target_attempt": 2},
    ]


def test_closed_journal_writes_to_no_other_file(migration: MigrationDirectory, tmp_path: Path) -> None:
    journal = Journal(migration.journal_file)
    journal.close()
    with (tmp_path / "other").open("wb") as other:  # it gets the number that the journal's descriptor had
        with pytest.raises(JournalError):
            journal.write("note", message="late")
        other.flush()
    assert (tmp_path / "other").read_bytes() == b""


def test_follow_events_yields_each_line_once(migration: MigrationDirectory) -> None:
    journal, ended, seen = Journal(migration.journal_file), threading.Event(), []
    follower = threading.Thread(target=lambda: seen.extend(follow_events(migration.journal_file, until=ended)))
    follower.start()
    for number in range(50):
        journal.write("note", message=str(number))
    ended.set()
    follower.join(10)
    assert [event.message for event in seen] == [str(number) for number in range(50)]


def test_one_process_at_a_time_locks_a_migration(migration: MigrationDirectory) -> None:
    assert not migration.is_locked()
    with migration.locked():
        assert migration.is_locked()
        with pytest.raises(MidstreamError, match="another process"), migration.locked():
            pass
    assert not migration.is_locked()


def test_migration_without_process_is_interrupted(migration: MigrationDirectory) -> None:
    journal = Journal(migration.journal_file)
    journal.write("phase", phase=phase_names.CUTOVER, state=phase_names.STARTED)
    view = migration.view()
    assert (view.state, view.phase, view.open) == (migration_state.INTERRUPTED, phase_names.CUTOVER, True)
    with migration.locked():
        assert migration.view().state == migration_state.RUNNING
    journal.write("result", ok=True, exit_code=0, outcome=migration_state.COMPLETED)
    assert migration.view().state == migration_state.COMPLETED
    assert not migration.view().open


def test_finished_migration_is_not_rolled_back(migration: MigrationDirectory) -> None:
    journal = Journal(migration.journal_file)
    journal.write("phase", phase=phase_names.FINISH, state=phase_names.DONE)
    journal.write("result", ok=True, exit_code=0, outcome=migration_state.COMPLETED)
    with pytest.raises(UsageError, match="is retired"):
        migration_process.rollback(migration.migration)
    with pytest.raises(UsageError, match="nothing to continue"):
        migration_process.continue_(migration.migration)


def test_unchanged_view_is_not_read_again(migration: MigrationDirectory) -> None:
    journal = Journal(migration.journal_file)
    journal.write("phase", phase=phase_names.CUTOVER, state=phase_names.STARTED)
    before = migration.view()
    assert migration.view() is before
    assert migration_directory.list_migrations()[0] is before
    journal.write("phase", phase=phase_names.CUTOVER, state=phase_names.DONE)
    after = migration.view()
    assert [event.state for event in after.events] == [phase_names.STARTED, phase_names.DONE]
    assert after.events[0] is before.events[0], "only new lines were read"
    with migration.locked():
        assert migration.view().state == migration_state.RUNNING
    records.write_json(str(migration.downtime_file), DowntimeReport({}, {}, 1.0, 2.5).to_json())
    seen = migration.view().downtime
    assert seen is not None
    assert seen.total == 1.5


@pytest.mark.long
def test_is_locked_never_prevents_locking(migration: MigrationDirectory) -> None:
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            migration.is_locked()

    lookers = [threading.Thread(target=look) for _ in range(3)]
    for looker in lookers:
        looker.start()
    try:
        for _ in range(200):
            with migration.locked():
                pass
    finally:
        stop.set()
        for looker in lookers:
            looker.join()


def test_lock_ends_though_a_child_has_its_descriptor(migration: MigrationDirectory) -> None:
    """A child has it from its fork until it executes its program."""
    with migration.locked():
        assert migration.is_locked()
        files = {int(path.name): os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
        [descriptor] = [number for number, file in files.items() if file == str(migration.path / ".lock")]
        copy = os.dup(descriptor)
    try:
        assert not migration.is_locked()
    finally:
        os.close(copy)


def test_follow_events_starts_at_an_offset(migration: MigrationDirectory) -> None:
    journal, ended = Journal(migration.journal_file), threading.Event()
    journal.write("note", message="before")
    seen = migration.journal_size()
    journal.write("note", message="after")
    ended.set()
    events = follow_events(migration.journal_file, until=ended, offset=seen)
    assert [event.message for event in events] == ["after"]


def test_outcome_stays_ended_after_late_events(migration: MigrationDirectory) -> None:
    journal = Journal(migration.journal_file)
    journal.write("phase", phase=phase_names.ROLLBACK, state=phase_names.STARTED)
    journal.write("result", ok=False, exit_code=5, outcome=migration_state.ROLLED_BACK, message="not certified")
    journal.write("note", state="resumed")
    found = outcome(read_events(migration.journal_file))
    assert found.ended
    assert (found.outcome, found.exit_code, found.error) == (migration_state.ROLLED_BACK, 5, "not certified")


@pytest.mark.usefixtures("migration")
def test_find_matches_part_of_the_id() -> None:
    assert migration_directory.MigrationDirectory.find("m").migration == "m"
    with pytest.raises(UsageError, match="no migration 'x'"):
        migration_directory.MigrationDirectory.find("x")
    assert [view.migration for view in migration_directory.list_migrations()] == ["m"]


def test_event_round_trips_json() -> None:
    event = Event("phase", 1.5, phase_names.CUTOVER, phase_names.PROGRESS, detail={"bytes_done": 3, "what": "data"})
    assert Event.from_json(event.to_json()) == event


def test_new_ids_differ() -> None:
    ids = {migration_directory.new_id("run") for _ in range(50)}
    assert len(ids) > 40
    assert all("-run-" in name and os.sep not in name for name in ids)
