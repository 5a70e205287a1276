"""A migration with damaged files is listed, and continues from the others."""

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
from midstream.hosts.host_pool import HostPool
from midstream.migrate import migration_process
from midstream.migrate.journal import migration_directory, migration_state, phase_names
from midstream.migrate.journal.certificate import Certificate
from midstream.migrate.journal.downtime_report import DowntimeReport
from midstream.migrate.journal.facts import Facts, Sealed
from midstream.migrate.journal.journal import Journal, read
from midstream.migrate.journal.migration_directory import MigrationDirectory
from midstream.migrate.journal.plan import FORMAT, UNKNOWN, Plan
from midstream.migrate.journal_recovery import reestablish
from midstream.migrate.planning import measured_rates
from midstream.migrate.steps import observation
from midstream.migrate.steps.migration import Migration, MovedOnError, NeedsOperatorError, replayed
from midstream.state_directory import migrations_directory
from midstream.watch.watcher import Watcher
from midstream_core import records
from support.command_line import Ended, midstream
from support.migrations.sample_plan import PLAN, changed
from support.run_directory import RunDirectory

pytestmark = pytest.mark.drawn

SEALED = Sealed(9, "step-9-a001", "d" * 64, 1, records.Fence(1, "a").sealed(2, "b", 9), bytes=1)
MIGRATION = "20261121-101502-r-3fa9"
SECRET = "only-for-the-operator"
CERTIFICATE = Certificate(MIGRATION, "r", "a", "b", 9, "step-9-a001", "d" * 64, 2, (), 1.0)
DOWNTIME = DowntimeReport({"copy": 1.0}, {"copy": 2.0}, 1.0, 4.0)

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
def directory(fleet: Path, fleet_text: str) -> MigrationDirectory:
    """Create a migration whose operator was killed after the seal."""
    plan = changed(PLAN, migration=MIGRATION, fleet_file=str(fleet), source_target="a", created=1.0)
    made = migration_directory.create(plan, fleet_text)
    journal = Journal(made.journal_file)
    journal.write("phase", phase=phase_names.PREPARE, state=phase_names.STARTED)
    journal.write("phase", phase=phase_names.PREPARE, state=phase_names.DONE)
    journal.write("phase", phase=phase_names.CUTOVER, state=phase_names.STARTED)
    journal.record(Facts(sealed=SEALED))
    journal.close()
    records.write_json(str(made.downtime_file), DOWNTIME.to_json())
    records.write_json(str(made.certificate_file), CERTIFICATE.to_json())
    return made


def status(fleet: Path, *flags: str) -> Ended:
    return midstream("--fleet", fleet, "--status", *flags)


def no_traceback(ended: Ended) -> None:
    assert "Traceback" not in ended.stderr + ended.stdout


# ------------------------------------------------------------------------------------------ what is listed


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["plan.json", "fleet.yaml", "journal.jsonl", "downtime.json", "certificate.json"])
def test_migration_with_damaged_file_is_listed_with_damage(
    name: str, damage: str, directory: MigrationDirectory, fleet: Path
) -> None:
    DAMAGES[damage](directory.path / name)
    [view] = migration_directory.list_migrations(load_fleet(fleet))
    assert (view.plan.run_id, view.plan.source, view.plan.target, view.open) == ("r", "a", "b", True)
    not_written = damage == "deleted" and name in ("downtime.json", "certificate.json")  # as before they were written
    assert [line.split()[0] for line in view.damage] == ([] if not_written else [name]), view.damage
    assert directory.fleet().hosts.keys() == {"a", "b"}
    assert directory.plan().epoch == 2
    measured_rates.past_migrations()


def test_status_shows_damage_and_the_continue_command(directory: MigrationDirectory, fleet: Path) -> None:
    directory.plan_file.write_text("[]")
    directory.fleet_file.unlink()
    done = status(fleet)
    assert done.code == 0, done.stderr
    no_traceback(done)
    damage = "plan.json expected an object, found a list; fleet.yaml is missing"
    assert f"{MIGRATION}: {damage} (midstream --continue {MIGRATION} restores what it needs)" in done.stdout
    [event] = status(fleet, "--json").of("migration")
    assert event["damage"] == damage.split("; ")
    assert event["state"] == migration_state.INTERRUPTED


@pytest.mark.parametrize("plan", DAMAGES)
@pytest.mark.parametrize("journal", ["deleted", "empty", "garbage", "directory"])
def test_lost_plan_and_journal_is_refused_in_one_line(
    journal: str, plan: str, directory: MigrationDirectory, fleet: Path
) -> None:
    DAMAGES[journal](directory.journal_file)
    DAMAGES[plan](directory.plan_file)
    [view] = migration_directory.list_migrations(load_fleet(fleet))
    assert (view.state, view.plan.run_id, view.plan.source) == (migration_state.DAMAGED, "r", UNKNOWN)
    with pytest.raises(MidstreamError) as raised:
        directory.fleet()
    assert raised.value.code == 3
    assert f"restore {directory.plan_file} or {directory.journal_file} from a backup" in raised.value.hint
    assert "\n" not in str(raised.value)


def test_refusal_shows_the_records_of_the_hosts(directory: MigrationDirectory, tmp_path: Path) -> None:
    sealed(tmp_path / "a")
    directory.journal_file.unlink()
    directory.plan_file.write_bytes(b"")
    for flag in ("--continue", "--rollback"):
        done = midstream(flag, MIGRATION)
        assert done.code == 3
        no_traceback(done)
        assert done.stderr.count("\n") == 1
        assert "plan.json is empty" in done.stderr
        assert "a has run r locked for it: ownership 2, owner b, sealed at step 9" in done.stderr
    assert not directory.request_file.exists(), "a refused rollback leaves no request"


@pytest.mark.parametrize("field", ["identity.epoch", "shape.changes", "estimate.predicted_seconds", "estimate.cost"])
@pytest.mark.parametrize("value", [None, "7", -1, [1, None], {"a": []}, True])
def test_malformed_plan_error_names_the_field(field: str, value: object) -> None:
    wrong, (part, name) = json.loads(json.dumps(PLAN.to_json())), field.split(".")
    wrong[part][name] = value
    if value is None and name == "cost":
        return
    with pytest.raises(records.RecordError, match=f"plan.json: {field}"):
        Plan.from_json(wrong, "plan.json")


def test_plan_of_newer_format_is_refused_in_one_line(directory: MigrationDirectory, fleet: Path) -> None:
    newer = records.canonical_json({**PLAN.to_json(), "format": FORMAT + 1})
    with pytest.raises(records.RecordError, match=f"plan.json: format {FORMAT + 1} is another midstream's"):
        Plan.from_json(json.loads(newer), "plan.json")
    directory.plan_file.write_bytes(newer)
    lines = directory.journal_file.read_bytes().splitlines(keepends=True)
    directory.journal_file.write_bytes(b"".join(line for line in lines if b'"event": "plan"' not in line))
    refused = midstream("--fleet", fleet, "--continue", MIGRATION)
    assert refused.code == 3
    assert f"format {FORMAT + 1} is another midstream's; this one reads format {FORMAT}" in refused.stderr


def test_journal_of_newer_format_is_refused_and_untouched(directory: MigrationDirectory, fleet: Path) -> None:
    begun = directory.journal_file.read_bytes()
    assert b'"format": 1' in begun.splitlines()[0]
    newer = begun.replace(b'"format": 1', b'"format": 2', 1)[:-1]  # its last line is being written
    directory.journal_file.write_bytes(newer)
    before = sorted(path.name for path in directory.path.iterdir())
    damage = "journal.jsonl format 2 is newer than this midstream reads (1): update midstream"
    [view] = migration_directory.list_migrations(load_fleet(fleet))
    assert (view.state, view.damage, view.plan.run_id) == (migration_state.DAMAGED, (damage,), "r")
    assert status(fleet).stdout.count(f"{MIGRATION}: {damage}\n") == 1
    for command in (("--continue", MIGRATION), ("--rollback", MIGRATION, "--yes")):
        refused = midstream("--fleet", fleet, *command)
        assert (refused.code, refused.stderr) == (
            3,
            f"midstream: migration {MIGRATION}: {damage.replace('jsonl', 'jsonl:')}\n",
        )
    with pytest.raises(MidstreamError, match="update midstream"):
        Journal(directory.journal_file)
    assert directory.journal_file.read_bytes() == newer
    assert sorted(path.name for path in directory.path.iterdir()) == before


@pytest.mark.parametrize("lock", ["deleted", "directory", "garbage"])
def test_damaged_lock_does_not_hide_a_migration(lock: str, directory: MigrationDirectory) -> None:
    with directory.locked():
        pass
    DAMAGES[lock](directory.path / ".lock")
    assert not directory.is_locked()
    [view] = migration_directory.list_migrations()
    assert view.state == migration_state.INTERRUPTED
    if lock == "directory":
        with pytest.raises(MidstreamError, match=r"\.lock cannot be opened: Is a directory \(move it away"):
            directory.locked().__enter__()


# ------------------------------------------------------------------------------------------ what is restored


@pytest.mark.parametrize("damage", DAMAGES)
def test_plan_and_fleet_file_are_restored_from_journal(damage: str, directory: MigrationDirectory) -> None:
    before = [file.read_bytes() for file in (directory.plan_file, directory.fleet_file)]
    DAMAGES[damage](directory.plan_file)
    DAMAGES[damage](directory.fleet_file)
    messages = directory.restore(Journal(directory.journal_file))
    assert [line.split()[0] for line in messages] == ["plan.json", "fleet.yaml"]
    assert all("restored from the journal" in line for line in messages)
    assert [file.read_bytes() for file in (directory.plan_file, directory.fleet_file)] == before
    assert directory.view().damage == ()
    assert directory.restore(Journal(directory.journal_file)) == []


@pytest.mark.parametrize("damage", ["deleted", "empty", "garbage", "list"])
def test_lost_journal_gets_plan_and_fleet_file_again(damage: str, directory: MigrationDirectory) -> None:
    DAMAGES[damage](directory.journal_file)
    directory.restore(Journal(directory.journal_file))
    directory.plan_file.unlink()
    directory.fleet_file.unlink()
    assert directory.plan().epoch == 2
    assert directory.fleet().hosts.keys() == {"a", "b"}


def test_files_with_secrets_have_private_modes(directory: MigrationDirectory) -> None:
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    secret = [file for file in directory.path.iterdir() if SECRET in file.read_text()]
    assert {file.name for file in secret} == {"fleet.yaml", "journal.jsonl"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in secret} == {0o600}
    directory.journal_file.chmod(0o644)  # the mode of an older version
    Journal(directory.journal_file).close()
    assert stat.S_IMODE(directory.journal_file.stat().st_mode) == 0o600


def test_journal_readers_never_print_the_fleet_file(directory: MigrationDirectory) -> None:
    with directory.locked():
        pass
    assert SECRET not in "".join(
        event.line() for event in [*migration_process.follow(MIGRATION), *directory.view().events]
    )


def test_create_without_disk_space_leaves_nothing() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(MidstreamError, match="cannot be written: File too large"):
            migration_directory.create(PLAN, "hosts: {}\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(migrations_directory().iterdir()) == []


# ------------------------------------------------------------------------------------------ the journal's lines


def damage_line(file: Path, holding: bytes, by: bytes) -> None:
    lines = file.read_bytes().splitlines()
    assert any(holding in line for line in lines)
    file.write_bytes(b"".join((by if holding in line else line) + b"\n" for line in lines))


@pytest.mark.parametrize("by", [b"", b"[]", b"\x00" * 40, b'{"event": "fact", "sealed"', b'{"event": 7, "time": 1}'])
def test_damaged_journal_lines_are_counted_and_ignored(by: bytes, directory: MigrationDirectory) -> None:
    damage_line(directory.journal_file, b'"sealed"', by)
    assert directory.view().damage == ("journal.jsonl has 1 line that cannot be read",)
    journal = Journal(directory.journal_file)
    assert journal.facts.sealed is None
    assert journal.damaged == 1
    journal.record(Facts(reestablished_at=1.0))
    assert directory.view().damage == ()
    assert Journal(directory.journal_file).damaged == 0


@pytest.mark.parametrize("value", [b'"x"', b"[]", b'{"step": "9"}', b'{"step": -1}', b"{}"])
def test_malformed_fact_is_a_damaged_line(value: bytes, directory: MigrationDirectory) -> None:
    damage_line(directory.journal_file, b'"sealed"', b'{"event": "fact", "time": 1.0, "sealed": ' + value + b"}")
    assert directory.view().sealed_step is None or directory.view().certificate is not None
    assert read(directory.journal_file).damaged == 1


# ------------------------------------------------------------------------------------------ from the hosts


def sealed(root: Path) -> RunDirectory:
    """Write the records of the source after the migration has sealed it."""
    run = RunDirectory(root, "r")
    records.Fence(1, "a").sealed(2, "b", 9).write(run.paths.fence)
    records.MigrationLock(MIGRATION, 2, "b", 1.0).write(run.paths.migration_lock)
    return run


@pytest.fixture
def migration(directory: MigrationDirectory, fleet: Path) -> Iterator[Migration]:
    journal, loaded = Journal(directory.journal_file), load_fleet(fleet)
    hosts = HostPool(loaded)
    yield Migration(directory.plan(), directory, journal, loaded, hosts, Watcher(loaded, hosts))
    hosts.close()


def without_journal(migration: Migration) -> Migration:
    """Return the same migration after its journal was lost."""
    migration.journal.close()
    migration.journal.path.unlink()
    journal = Journal(migration.journal.path)
    journal.write_lost()
    return replace(migration, journal=journal)


def test_lost_journal_is_reestablished_from_hosts(migration: Migration, tmp_path: Path) -> None:
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
    migration = without_journal(migration)
    reestablish(migration, rollback=False)
    facts = migration.journal.facts
    assert facts.sealed is not None
    assert facts.sealed.checkpoint == "step-9-a001"
    assert (facts.source_was_running, facts.sealing_attempt, facts.stop_sequence) == (True, 1, 4)
    assert (facts.owner_before, facts.relaunching, facts.target_attempt) == ("a", True, 2)
    done = {event.phase for event in migration.directory.view().events if event.state == phase_names.DONE}
    assert done == {phase_names.PREPARE, phase_names.CUTOVER}
    assert "journal.jsonl" not in str(migration.directory.view().damage)


@pytest.mark.parametrize("answered", [True, False])
def test_reestablish_sees_that_a_replica_was_promoted(migration: Migration, tmp_path: Path, answered: bool) -> None:
    """A process of a copied state directory had promoted it; on the old code the certificate wanted a copied state."""
    run, there = sealed(tmp_path / "a"), RunDirectory(tmp_path / "b", "r")
    run.status(1, records.STOPPED, 9)
    run.checkpoint(9, 1)
    records.Command(records.STOP, 2, owner="b", migration=MIGRATION, sequence=4).write(
        run.paths.attempt(1).command_file
    )
    records.Fence(1, "a").sealed(2, "b", 9).write(there.paths.fence)
    records.Status(
        records.TRAINING, 11, 0, heartbeat=1.0, run_id="r", attempt=2, epoch=2, acknowledged=3 if answered else 2,
        **records.this_process().to_json(),
    ).write(there.attempt(2).status())  # fmt: skip
    records.Command(records.PROMOTE, 2, "step-9-a001", migration=MIGRATION, step=9, sequence=3).write(
        there.paths.attempt(2).command_file
    )
    live = replace(migration, plan=changed(migration.plan, mode="live"))
    live.journal.record(Facts(standby_attempt=2, fallback_reason="attempt 1 on a has ended (stopped)"))
    reestablish(live, rollback=False)
    assert replayed(live) is answered
    assert live.journal.facts.takeover_step == (9 if answered else None)


def test_reestablish_before_the_seal_records_no_facts(migration: Migration, tmp_path: Path) -> None:
    RunDirectory(tmp_path / "a", "r").fence(1, "a")
    migration = without_journal(migration)
    reestablish(migration, rollback=False)
    for name in ("sealed", "source_was_running", "sealing_attempt", "relaunching", "target_attempt"):
        assert getattr(migration.journal.facts, name) is None, name


def test_reestablish_recognizes_a_started_rollback(migration: Migration, tmp_path: Path) -> None:
    run = sealed(tmp_path / "a")
    records.Fence.read(run.paths.fence).rolled_back("a", 9).write(run.paths.fence)
    records.MigrationLock(MIGRATION, 3, "a", 1.0).write(run.paths.migration_lock)
    migration = without_journal(migration)
    reestablish(migration, rollback=False)
    assert any(event.phase == phase_names.ROLLBACK for event in migration.directory.view().events)


def test_reestablish_refuses_run_of_another_migration(migration: Migration, tmp_path: Path) -> None:
    run = sealed(tmp_path / "a")
    records.MigrationLock("another", 2, "b", 1.0).write(run.paths.migration_lock)
    with pytest.raises(MovedOnError, match="this migration does not have it"):
        reestablish(without_journal(migration), rollback=False)


def test_wait_ends_where_a_status_stays_unreadable(
    migration: Migration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut tore it, and no engine writes another: on the old code the migration waited for a week."""
    there = RunDirectory(tmp_path / "b", "r")
    Path(there.attempt(2).status()).write_bytes(b"")
    monkeypatch.setattr(observation, "UNSEEN_TIMEOUT", 1.0)
    migration.watch.start()
    try:
        with pytest.raises(NeedsOperatorError, match="midstream --repair r --on b"):
            observation.wait_for(migration, "the healthy steps", "b", lambda _: False, 20.0)
    finally:
        migration.watch.stop()


# ------------------------------------------------------------------------------------------ which fleet it belongs to


@pytest.mark.usefixtures("directory")
def test_migration_is_listed_in_its_own_fleet_only(fleet: Path, tmp_path: Path) -> None:
    copy, other = tmp_path / "copy.yaml", tmp_path / "other.yaml"
    shutil.copy(fleet, copy)
    other.write_text(fleet.read_text().replace(f"{tmp_path}/a", f"{tmp_path}/elsewhere"))
    empty = tmp_path / "empty.yaml"
    empty.write_text("hosts:\n  c: {type: local}\n")
    shown = {file: len(migration_directory.list_migrations(load_fleet(file))) for file in (fleet, copy, other, empty)}
    assert shown == {fleet: 1, copy: 1, other: 0, empty: 0}
    assert MIGRATION not in status(other).stdout
    assert MIGRATION in status(copy).stdout
