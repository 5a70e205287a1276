"""A migration's directory: the journal survives kills, one process at a time carries it out."""

from __future__ import annotations

import os
import resource
import threading

import pytest

from midstream.errors import MidstreamError, UsageError
from midstream.migrate import model
from midstream.migrate.execution import migration_directory, migration_process
from midstream.migrate.execution.journal import Journal, JournalError, follow_events, outcome, read_events
from midstream.migrate.execution.migration_directory import MigrationDirectory
from midstream_engine import records
from unit.sample_plan import PLAN


@pytest.fixture
def migration() -> MigrationDirectory:
    return migration_directory.create(PLAN, "hosts: {}\n")


def test_facts_are_known_to_the_process_that_continues(migration: MigrationDirectory):
    journal = Journal(migration.journal_file)
    journal.fact(sealed={"step": 10})
    journal.close()
    assert Journal(migration.journal_file).known("sealed") == {"step": 10}


def test_a_torn_last_line_is_left_out_and_does_not_swallow_the_next(migration: MigrationDirectory):
    journal = Journal(migration.journal_file)
    journal.fact(one=1)
    journal.close()
    with migration.journal_file.open("ab") as file:
        file.write(b'{"event": "fact", "ti')
    again = Journal(migration.journal_file)
    assert again.known("one") == 1
    again.fact(two=2)
    assert Journal(migration.journal_file).known("two") == 2
    assert [event.detail for event in read_events(migration.journal_file)] == [{"one": 1}, {"two": 2}]


def test_a_line_for_which_there_is_no_room_does_not_swallow_the_next(migration: MigrationDirectory):
    journal = Journal(migration.journal_file)
    journal.fact(one=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (migration.journal_file.stat().st_size + 5, hard))
    try:
        with pytest.raises(JournalError, match=r"journal.jsonl cannot be written: File too large \(make room there"):
            journal.fact(lost=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.fact(two=2)
    journal.close()
    assert [event.detail for event in read_events(migration.journal_file)] == [{"one": 1}, {"two": 2}]


def test_a_follower_sees_every_line_once_and_ends_with_the_writer(migration: MigrationDirectory):
    journal, ended, seen = Journal(migration.journal_file), threading.Event(), []
    follower = threading.Thread(
        target=lambda: seen.extend(follow_events(migration.journal_file, until=ended, poll=0.01))
    )
    follower.start()
    for number in range(50):
        journal.write("note", message=str(number))
    ended.set()
    follower.join(10)
    assert [event.message for event in seen] == [str(number) for number in range(50)]


def test_one_process_at_a_time_holds_a_migration(migration: MigrationDirectory):
    assert not migration.is_locked()
    with migration.locked():
        assert migration.is_locked()
        with pytest.raises(MidstreamError, match="another process"), migration.locked():
            pass
    assert not migration.is_locked()


def test_a_migration_whose_process_is_gone_shows_as_interrupted(migration: MigrationDirectory):
    journal = Journal(migration.journal_file)
    journal.write("phase", phase=model.CUTOVER, state=model.STARTED)
    view = migration.view()
    assert (view.state, view.phase, view.open) == (model.INTERRUPTED, model.CUTOVER, True)
    with migration.locked():
        assert migration.view().state == model.RUNNING
    journal.write("result", ok=True, exit_code=0, outcome=model.COMPLETED)
    assert migration.view().state == model.COMPLETED
    assert not migration.view().open


def test_a_finished_migration_is_not_rolled_back(migration: MigrationDirectory):
    journal = Journal(migration.journal_file)
    journal.write("phase", phase=model.FINISH, state=model.DONE)
    journal.write("result", ok=True, exit_code=0, outcome=model.COMPLETED)
    with pytest.raises(UsageError, match="is retired"):
        migration_process.rollback(migration.migration)
    with pytest.raises(UsageError, match="nothing to continue"):
        migration_process.continue_(migration.migration)


def test_what_has_not_changed_is_not_read_again(migration: MigrationDirectory):
    journal = Journal(migration.journal_file)
    journal.write("phase", phase=model.CUTOVER, state=model.STARTED)
    before = migration.view()
    assert migration.view() is before
    assert migration_directory.list_migrations()[0] is before
    journal.write("phase", phase=model.CUTOVER, state=model.DONE)
    after = migration.view()
    assert [event.state for event in after.events] == [model.STARTED, model.DONE]
    assert after.events[0] is before.events[0], "only what is new was read"
    with migration.locked():
        assert migration.view().state == model.RUNNING
    records.write_json(str(migration.ledger_file), model.DowntimeReport({}, {}, 1.0, 2.5).to_json())
    seen = migration.view().downtime
    assert seen is not None
    assert seen.total == 1.5


def test_looking_whether_a_migration_is_held_never_keeps_it_from_its_process(migration: MigrationDirectory):
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


def test_a_follower_may_begin_in_the_middle(migration: MigrationDirectory):
    journal, ended = Journal(migration.journal_file), threading.Event()
    journal.write("note", message="before")
    seen = migration.journal_size()
    journal.write("note", message="after")
    ended.set()
    events = follow_events(migration.journal_file, until=ended, offset=seen)
    assert [event.message for event in events] == ["after"]


def test_an_ended_migration_stays_ended_for_a_process_that_came_too_late(migration: MigrationDirectory):
    journal = Journal(migration.journal_file)
    journal.write("phase", phase=model.ROLLBACK, state=model.STARTED)
    journal.write("result", ok=False, exit_code=5, outcome=model.ROLLED_BACK, message="not certified")
    journal.write("note", state="resumed")
    found = outcome(read_events(migration.journal_file))
    assert found.ended
    assert (found.outcome, found.exit_code, found.error) == (model.ROLLED_BACK, 5, "not certified")


def test_migrations_are_found_by_a_part_of_their_id(migration: MigrationDirectory):
    assert migration_directory.MigrationDirectory.find("m").migration == "m"
    with pytest.raises(UsageError, match="no migration 'x'"):
        migration_directory.MigrationDirectory.find("x")
    assert [view.migration for view in migration_directory.list_migrations()] == ["m"]


def test_events_survive_their_json():
    event = model.Event("phase", 1.5, model.CUTOVER, model.PROGRESS, detail={"bytes_done": 3, "what": "data"})
    assert model.Event.from_json(event.to_json()) == event


def test_ids_sort_by_time_and_differ():
    ids = {migration_directory.new_id("run") for _ in range(50)}
    assert len(ids) > 40
    assert all("-run-" in name and os.sep not in name for name in ids)
