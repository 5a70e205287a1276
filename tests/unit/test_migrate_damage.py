"""A migration whose files are damaged is listed with what is wrong, and goes on from the files that are left."""

from __future__ import annotations

import json
import resource
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from midstream.errors import MidstreamError
from midstream.fleet.fleet_file import load_fleet
from midstream.hosts.host_pool import Hosts
from midstream.migrate import model
from midstream.migrate.execution import migration_directory, migration_process
from midstream.migrate.execution.journal import REESTABLISHED, Journal, read
from midstream.migrate.execution.journal_recovery import reestablish
from midstream.migrate.execution.migration import Migration, MovedOn
from midstream.migrate.execution.migration_directory import MigrationDirectory
from midstream.migrate.planning import measured_rates
from midstream.watch.watcher import Watch
from midstream_engine import records
from support.command_line import Ended, midstream
from support.run_directory import RunDirectory
from unit.sample_plan import PLAN

MIGRATION = "20261121-101502-r-3fa9"
SECRET = "only-for-the-operator"
CERTIFICATE = model.Certificate(MIGRATION, "r", "a", "b", 9, "step-9-a001", "d" * 64, 2, (), 1.0)
LEDGER = model.DowntimeReport({"copy": 1.0}, {"copy": 2.0}, 1.0, 4.0)

DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "deleted": lambda file: file.unlink(),
    "list": lambda file: file.write_text("[]"),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "garbage": lambda file: file.write_bytes(bytes(range(255, 0, -1)) * 3),
    "directory": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.fixture
def fleet_text(tmp_path: Path) -> str:
    hosts = (f'  {name}: {{type: local, root: "{tmp_path}/{name}", env: {{TOKEN: {SECRET}}}}}\n' for name in ("a", "b"))
    return "hosts:\n" + "".join(hosts)


@pytest.fixture
def fleet(tmp_path: Path, fleet_text: str) -> Path:
    file = tmp_path / "fleet.yaml"
    file.write_text(fleet_text)
    return file


@pytest.fixture
def migration(fleet: Path, fleet_text: str) -> MigrationDirectory:
    """One whose operator was killed after the seal."""
    plan = replace(PLAN, migration=MIGRATION, fleet_file=str(fleet), source_target="a", created=1.0)
    made = migration_directory.create(plan, fleet_text)
    journal = Journal(made.journal_file)
    journal.write("phase", phase=model.PREPARE, state=model.STARTED)
    journal.write("phase", phase=model.PREPARE, state=model.DONE)
    journal.write("phase", phase=model.CUTOVER, state=model.STARTED)
    journal.fact(sealed={"step": 9, "checkpoint": "step-9-a001", "root_digest": "d" * 64, "attempt": 1, "bytes": 1})
    journal.close()
    records.write_json(str(made.ledger_file), LEDGER.to_json())
    records.write_json(str(made.certificate_file), CERTIFICATE.to_json())
    return made


def status(fleet: Path, *flags: str) -> Ended:
    return midstream("--fleet", fleet, "--status", *flags)


def no_traceback(ended: Ended) -> None:
    assert "Traceback" not in ended.stderr + ended.stdout


# ------------------------------------------------------------------------------------------ what is listed


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["plan.json", "fleet.yaml", "journal.jsonl", "downtime.json", "certificate.json"])
def test_a_migration_with_one_damaged_file_is_listed_with_what_is_wrong(
    name: str, damage: str, migration: MigrationDirectory, fleet: Path
):
    DAMAGES[damage](migration.path / name)
    [view] = migration_directory.list_migrations(load_fleet(fleet))
    assert (view.plan.run_id, view.plan.source, view.plan.target, view.open) == ("r", "a", "b", True)
    gone = damage == "deleted" and name in ("downtime.json", "certificate.json")  # as before they were written
    assert [line.split()[0] for line in view.damage] == ([] if gone else [name]), view.damage
    assert migration.fleet().hosts.keys() == {"a", "b"}
    assert migration.plan().epoch == 2
    measured_rates.look_back()


def test_the_status_names_what_is_wrong_and_a_line_that_goes_on(migration: MigrationDirectory, fleet: Path):
    migration.plan_file.write_text("[]")
    migration.fleet_file.unlink()
    done = status(fleet)
    assert done.code == 0, done.stderr
    no_traceback(done)
    words = "plan.json expected an object, found a list; fleet.yaml is missing"
    assert f"{MIGRATION}: {words} (midstream --continue {MIGRATION} restores what it needs)" in done.stdout
    [event] = status(fleet, "--json").of("migration")
    assert event["damage"] == words.split("; ")
    assert event["state"] == model.INTERRUPTED


@pytest.mark.parametrize("plan", DAMAGES)
@pytest.mark.parametrize("journal", ["deleted", "empty", "garbage", "directory"])
def test_without_plan_and_journal_it_is_listed_and_refused_in_one_line(
    journal: str, plan: str, migration: MigrationDirectory, fleet: Path
):
    DAMAGES[journal](migration.journal_file)
    DAMAGES[plan](migration.plan_file)
    [view] = migration_directory.list_migrations(load_fleet(fleet))
    assert (view.state, view.plan.run_id, view.plan.source) == (model.DAMAGED, "r", model.UNKNOWN)
    with pytest.raises(MidstreamError) as raised:
        migration.fleet()
    assert raised.value.code == 3
    assert f"restore {migration.plan_file} or {migration.journal_file} from a backup" in raised.value.hint
    assert "\n" not in str(raised.value)


def test_a_refusal_says_what_the_hosts_hold(migration: MigrationDirectory, fleet: Path, tmp_path: Path):
    sealed(tmp_path / "a")
    migration.journal_file.unlink()
    migration.plan_file.write_bytes(b"")
    for flag in ("--continue", "--rollback"):
        done = midstream(flag, MIGRATION)
        assert done.code == 3
        no_traceback(done)
        assert done.stderr.count("\n") == 1
        assert "plan.json is empty" in done.stderr
        assert "a holds run r for it: epoch 2, holder b, sealed at step 9" in done.stderr
    assert not migration.request_file.exists(), "a rollback that was refused is not left behind as a request"


@pytest.mark.parametrize("field", ["epoch", "changes", "predicted_seconds", "cost"])
@pytest.mark.parametrize("value", [None, "7", -1, [1, None], {"a": []}, True])
def test_a_plan_of_another_shape_is_damaged_and_names_the_field(field: str, value: object):
    changed = {**json.loads(json.dumps(PLAN.to_json())), field: value}
    if value is None and field == "cost":
        return
    with pytest.raises(records.RecordError, match=f"plan.json: {field}"):
        model.Plan.from_json(changed, "plan.json")


@pytest.mark.parametrize("lock", ["deleted", "directory", "garbage"])
def test_an_odd_lock_does_not_hide_a_migration(lock: str, migration: MigrationDirectory):
    with migration.locked():
        pass
    DAMAGES[lock](migration.path / ".lock")
    assert not migration.is_locked()
    [view] = migration_directory.list_migrations()
    assert view.state == model.INTERRUPTED
    if lock == "directory":
        with pytest.raises(MidstreamError, match=r"\.lock cannot be opened: Is a directory \(move it away"):
            migration.locked().__enter__()


# ------------------------------------------------------------------------------------------ what is restored


@pytest.mark.parametrize("damage", DAMAGES)
def test_plan_and_fleet_file_are_restored_from_the_journal_byte_for_byte(damage: str, migration: MigrationDirectory):
    before = [file.read_bytes() for file in (migration.plan_file, migration.fleet_file)]
    DAMAGES[damage](migration.plan_file)
    DAMAGES[damage](migration.fleet_file)
    said = migration.restore(Journal(migration.journal_file))
    assert [line.split()[0] for line in said] == ["plan.json", "fleet.yaml"]
    assert all("restored from the journal" in line for line in said)
    assert [file.read_bytes() for file in (migration.plan_file, migration.fleet_file)] == before
    assert migration.view().damage == ()
    assert migration.restore(Journal(migration.journal_file)) == []


@pytest.mark.parametrize("damage", ["deleted", "empty", "garbage", "list"])
def test_a_journal_gets_its_first_lines_again(damage: str, migration: MigrationDirectory):
    DAMAGES[damage](migration.journal_file)
    migration.restore(Journal(migration.journal_file))
    migration.plan_file.unlink()
    migration.fleet_file.unlink()
    assert migration.plan().epoch == 2
    assert migration.fleet().hosts.keys() == {"a", "b"}


def test_nobody_else_reads_what_a_fleet_file_holds(migration: MigrationDirectory):
    assert stat.S_IMODE(migration.path.stat().st_mode) == 0o700
    held = [file for file in migration.path.iterdir() if SECRET in file.read_text()]
    assert {file.name for file in held} == {"fleet.yaml", "journal.jsonl"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in held} == {0o600}
    migration.journal_file.chmod(0o644)  # an older version's
    Journal(migration.journal_file).close()
    assert stat.S_IMODE(migration.journal_file.stat().st_mode) == 0o600


def test_no_reader_of_the_journal_prints_the_fleet_file(migration: MigrationDirectory):
    with migration.locked():
        pass
    assert SECRET not in "".join(
        event.line() for event in [*migration_process.follow(MIGRATION), *migration.view().events]
    )


def test_a_migration_for_which_there_is_no_room_leaves_nothing_behind():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(MidstreamError, match="cannot be written: File too large"):
            migration_directory.create(PLAN, "hosts: {}\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(migration_directory.migrations_directory().iterdir()) == []


# ------------------------------------------------------------------------------------------ the journal's lines


def damage_line(file: Path, holding: bytes, by: bytes) -> None:
    lines = file.read_bytes().splitlines()
    assert any(holding in line for line in lines)
    file.write_bytes(b"".join((by if holding in line else line) + b"\n" for line in lines))


@pytest.mark.parametrize("by", [b"", b"[]", b"\x00" * 40, b'{"event": "fact", "sealed"', b'{"event": 7, "time": 1}'])
def test_damaged_lines_in_the_middle_are_counted_and_no_fact_is_taken_from_them(
    by: bytes, migration: MigrationDirectory
):
    damage_line(migration.journal_file, b'"sealed"', by)
    assert migration.view().damage == ("journal.jsonl has 1 line that cannot be read",)
    journal = Journal(migration.journal_file)
    assert journal.known("sealed") is None
    assert journal.damaged == 1
    journal.fact(**{REESTABLISHED: 1.0})
    assert migration.view().damage == ()
    assert Journal(migration.journal_file).damaged == 0


@pytest.mark.parametrize("value", [b'"x"', b"[]", b'{"step": "9"}', b'{"step": -1}', b"{}"])
def test_a_fact_of_another_shape_is_a_damaged_line(value: bytes, migration: MigrationDirectory):
    damage_line(migration.journal_file, b'"sealed"', b'{"event": "fact", "time": 1.0, "sealed": ' + value + b"}")
    assert migration.view().sealed_step is None or migration.view().certificate is not None
    assert read(migration.journal_file).damaged == 1


# ------------------------------------------------------------------------------------------ from the hosts


def sealed(root: Path) -> RunDirectory:
    """The source's records once the migration has sealed it."""
    run = RunDirectory(root, "r")
    records.Fence(1, "a").sealed(2, "b", 9).write(run.paths.fence)
    records.MigrationLock(MIGRATION, 2, "b", 1.0).write(run.paths.migration_lock)
    return run


@pytest.fixture
def move(migration: MigrationDirectory, fleet: Path) -> Iterator[Migration]:
    journal, loaded = Journal(migration.journal_file), load_fleet(fleet)
    hosts = Hosts(loaded)
    yield Migration(migration.plan(), migration, journal, loaded, hosts, Watch(loaded, hosts))
    hosts.close()


def without_journal(move: Migration) -> Migration:
    """The same migration after its journal was lost."""
    move.journal.close()
    move.journal.path.unlink()
    journal = Journal(move.journal.path)
    journal.lost()
    return replace(move, journal=journal)


def test_a_lost_journal_is_established_again_from_the_hosts(move: Migration, tmp_path: Path):
    run, there = sealed(tmp_path / "a"), RunDirectory(tmp_path / "b", "r")
    run.status(1, records.STOPPED, 9)
    run.checkpoint(9, 1)
    records.Command(records.STOP, 2, owner="b", migration=MIGRATION, sequence=4).write(
        run.paths.attempt(1).command_file
    )
    records.Fence(1, "a").sealed(2, "b", 9).write(there.paths.fence)
    records.Status(
        records.TRAINING, 11, 0, heartbeat=1.0, run_id="r", attempt=2, epoch=2, **records.this_process().to_json()
    ).write(there.attempt(2).status())
    records.Command(records.RESTORE, 2, "step-9-a001", migration=MIGRATION).write(there.paths.attempt(2).command_file)
    move = without_journal(move)
    reestablish(move, rollback=False)
    known = move.journal.known
    assert known("sealed")["checkpoint"] == "step-9-a001"
    assert (known("source_was_alive"), known("sealing_attempt"), known("seal_serial")) == (True, 1, 4)
    assert (known("holder_before"), known("relaunching"), known("target_attempt")) == ("a", True, 2)
    done = {event.phase for event in move.directory.view().events if event.state == model.DONE}
    assert done == {model.PREPARE, model.CUTOVER}
    assert "journal.jsonl" not in str(move.directory.view().damage)


def test_before_the_seal_nothing_is_claimed(move: Migration, tmp_path: Path):
    RunDirectory(tmp_path / "a", "r").fence(1, "a")
    move = without_journal(move)
    reestablish(move, rollback=False)
    for name in ("sealed", "source_was_alive", "sealing_attempt", "relaunching", "target_attempt"):
        assert move.journal.known(name) is None, name


def test_a_rollback_that_was_under_way_goes_on_as_one(move: Migration, tmp_path: Path):
    run = sealed(tmp_path / "a")
    records.Fence.read(run.paths.fence).rolled_back("a", 9).write(run.paths.fence)
    records.MigrationLock(MIGRATION, 3, "a", 1.0).write(run.paths.migration_lock)
    move = without_journal(move)
    reestablish(move, rollback=False)
    assert any(event.phase == model.ROLLBACK for event in move.directory.view().events)


def test_a_run_that_another_migration_has_is_left_alone(move: Migration, tmp_path: Path):
    run = sealed(tmp_path / "a")
    records.MigrationLock("another", 2, "b", 1.0).write(run.paths.migration_lock)
    with pytest.raises(MovedOn, match="this migration does not have it"):
        reestablish(without_journal(move), rollback=False)


# ------------------------------------------------------------------------------------------ which fleet it belongs to


def test_a_migration_is_shown_in_its_own_fleet_alone(migration: MigrationDirectory, fleet: Path, tmp_path: Path):
    copy, other = tmp_path / "copy.yaml", tmp_path / "other.yaml"
    shutil.copy(fleet, copy)
    other.write_text(fleet.read_text().replace(f"{tmp_path}/a", f"{tmp_path}/elsewhere"))
    empty = tmp_path / "empty.yaml"
    empty.write_text("hosts:\n  c: {type: local}\n")
    shown = {file: len(migration_directory.list_migrations(load_fleet(file))) for file in (fleet, copy, other, empty)}
    assert shown == {fleet: 1, copy: 1, other: 0, empty: 0}
    assert MIGRATION not in status(other).stdout
    assert MIGRATION in status(copy).stdout
