"""Waits for an attempt on a host that answers, and shows what can never become the awaited attempt."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midstream.errors import MidstreamError, RemoteError
from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts.host_pool import HostPool
from midstream.migrate.journal import migration_directory
from midstream.migrate.journal.facts import Facts
from midstream.migrate.journal.journal import Journal
from midstream.migrate.steps import first_update, prepare_standby
from midstream.migrate.steps.awaited_attempt import check_can_train, check_can_wait
from midstream.migrate.steps.migration import Migration
from midstream.watch.watcher import Watcher
from midstream_core import records
from midstream_host.runs import standby_state
from support.migrations.sample_plan import PLAN, SEALED
from support.run_directory import RunDirectory
from support.watching import run_of, seen

STANDBY = records.Command(records.STANDBY, epoch=2, sequence=1, migration="m")
RESTORE = records.Command(
    records.RESTORE, epoch=2, checkpoint=SEALED.checkpoint, root_digest="d" * 64, step=7, sequence=2, migration="m"
)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return parse_fleet(
        f"hosts:\n  a: {{type: local, root: {tmp_path}/a, devices: 1}}\n"
        f"  b: {{type: local, root: {tmp_path}/b, devices: 1}}\n"
    )


@pytest.fixture
def target(tmp_path: Path) -> RunDirectory:
    """Return the run on "b", to which attempt 1 came with the source's history."""
    run = RunDirectory(tmp_path / "b", "r")
    run.fence(2, "b", 7, [records.Seal(1, 7).to_json()])
    run.status(1, records.STOPPED, 7)
    return run


@pytest.fixture
def migration(
    fleet: Fleet, hosts: HostPool, target: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Migration]:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(first_update, "FIRST_STEP_TIMEOUT", 20.0)  # ten times what a check takes
    directory = migration_directory.create(PLAN, fleet.text)
    watch = Watcher(fleet, hosts)
    watch.start()
    seen(watch, lambda snapshot: run_of(snapshot, "r"))
    journal = Journal(directory.journal_file)
    yield Migration(PLAN, directory, journal, fleet, hosts, watch)
    watch.stop()
    journal.close()


def put(run: RunDirectory, number: int, state: str, epoch: int, command: records.Command, **answers: int) -> None:
    """Write an attempt whose process is this one. ``answers``: ``acknowledged`` or ``rejected``."""
    run.attempt(number)
    command.write(run.paths.attempt(number).command_file)
    run.status(number, state, 7)
    status = records.Status.read(run.paths.attempt(number).status())
    message = "the fence does not name b" if "rejected" in answers else ""
    dataclasses.replace(status, epoch=epoch, message=message, **answers).write(run.paths.attempt(number).status())


def waiting(run: RunDirectory) -> None:
    put(run, 2, records.WAITING, 0, STANDBY)


def rejecting(run: RunDirectory) -> None:
    put(run, 2, records.WAITING, 0, RESTORE, rejected=2)


def replaced(run: RunDirectory) -> None:
    put(run, 2, records.TRAINING, 2, RESTORE)
    put(run, 3, records.TRAINING, 2, RESTORE)


def without_process(run: RunDirectory) -> None:
    run.attempt(2)


@pytest.mark.parametrize(
    ("present", "line"),
    [
        (waiting, "attempt 2 of r on b is a standby, and no command to train was sent to it"),
        (rejecting, "attempt 2 of r on b is a standby, and rejected the command to train: the fence does not name b"),
        (replaced, "attempt 2 of r on b was replaced: attempt 3 was started there since"),
        (without_process, "attempt 2 of r on b has no process there: the newest attempt is 1"),
    ],
)
def test_wait_for_training_ends_at_once(
    present: Callable[[RunDirectory], None], line: str, migration: Migration, target: RunDirectory
) -> None:
    present(target)
    with pytest.raises(MidstreamError) as ended:
        first_update.wait_training(migration, migration.target_group, 2)
    assert line in str(ended.value)
    assert "midstream --status shows what runs on b" in str(ended.value)


def test_trainer_without_a_row_ends_the_wait(migration: Migration, target: RunDirectory) -> None:
    put(target, 2, records.STARTING, 2, RESTORE)
    why = "2 checkpoints were written since its start, and its source has no row"
    records.TrainerEvidence(7, unrecorded=why).write(target.paths.attempt(2).trainer_evidence)
    with pytest.raises(MidstreamError, match=f"attempt 2 of r on b trains, and no row of it can be recorded: {why}"):
        first_update.wait_training(migration, migration.target_group, 2)


def test_attempt_that_contradicts_itself_ends_the_wait(migration: Migration, target: RunDirectory) -> None:
    put(target, 2, records.FAILED, 2, RESTORE)
    status = records.Status.read(target.paths.attempt(2).status())
    dataclasses.replace(status, contradiction="reference losses differ").write(target.paths.attempt(2).status())
    with pytest.raises(first_update.ContradictionError, match="has ended: reference losses differ"):
        first_update.wait_training(migration, migration.target_group, 2)


def test_attempt_that_is_commanded_is_waited_for(migration: Migration, target: RunDirectory) -> None:
    """It has not read the command yet; its status is a standby's."""
    put(target, 2, records.WAITING, 0, RESTORE)
    seen(migration.watch, lambda snapshot: (run := run_of(snapshot, "r")) is not None and run.attempt == 2)
    check_can_train(migration, migration.target_group, 2)
    put(target, 2, records.TRAINING, 2, RESTORE)
    target.lineage({"attempt": 1, "epoch": 1}, {"attempt": 2, "epoch": 2, "first_step": 7})
    target.rows(2, 7)
    assert first_update.wait_training(migration, migration.target_group, 2).attempt == 2


def test_attempt_that_trains_is_no_standby(migration: Migration, target: RunDirectory) -> None:
    put(target, 2, records.TRAINING, 2, RESTORE)
    seen(migration.watch, lambda snapshot: (run := run_of(snapshot, "r")) is not None and run.attempt == 2)
    with pytest.raises(MidstreamError, match="is no standby: it is training under ownership 2"):
        check_can_wait(migration, migration.target_group, 2)


def test_command_decides_before_first_status(migration: Migration, target: RunDirectory) -> None:
    """An attempt that was started to train has no status yet, as a standby that was started a moment ago."""
    for command, adopted in ((RESTORE, None), (STANDBY, 2)):
        command.write(target.attempt(2).command_file)
        records.write_json(target.paths.attempt(2).launched(0), records.this_process().to_json())
        assert prepare_standby.adopt_standby(migration) == adopted
        assert migration.journal.facts == Facts(standby_attempt=adopted)


@pytest.mark.parametrize(("state", "epoch", "ends"), [
    (records.FAILED, 0, True), (records.STOPPED, 0, True), (records.FAILED, 2, True),
    (records.STOPPED, 2, False), (records.FINISHED, 2, False),
])  # fmt: skip
def test_failed_standby_is_ended_before_the_next(
    migration: Migration, target: RunDirectory, state: str, epoch: int, ends: bool
) -> None:
    """Its process runs on after its last status: the target refuses another attempt. What trained may be saving."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            identity = records.identify(process.pid)
            put(target, 2, state, epoch, STANDBY)
            status = records.Status.read(target.paths.attempt(2).status())
            assert identity is not None
            dataclasses.replace(status, **identity.to_json()).write(target.paths.attempt(2).status())
            assert prepare_standby.adopt_standby(migration) is None
            with pytest.raises(RemoteError, match="attempt 2 of r runs here already"):
                migration.target_group.put_config("")
            prepare_standby.end_standby(migration)
            assert (process.poll() is not None) == ends
            assert (migration.target_group.running_attempt() == 2) != ends
        finally:
            process.kill()


def test_acknowledged_promotion_is_not_sent_again(migration: Migration, target: RunDirectory) -> None:
    """The replica has ownership 0 until the step of its promotion, and rejects a promotion after it."""
    promote = dataclasses.replace(RESTORE, action=records.PROMOTE, sequence=3)
    put(target, 2, records.REPLAYING, 0, promote, acknowledged=3)
    host, fence = migration.target, records.Fence.read(target.paths.fence)
    report = host.call(standby_state.take_over)(
        root=host.root,
        run_id="r",
        attempt=2,
        fence=fence.to_json(),
        command=dataclasses.replace(promote, sequence=1).to_json(),
        patience=0.0,
    )
    assert (report.outcome, report.sequence) == ("sent before", 0)
    assert records.Command.read(target.paths.attempt(2).command_file) == promote
