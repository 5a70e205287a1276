"""Ownership of a run: migration lock, fence, commands, starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from midstream_core import records
from midstream_host.runs import attempts, ownership, run_state
from support.run_directory import RunDirectory, dead_process

STOP = {"action": records.STOP, "epoch": 2, "owner": "there"}


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path)


@pytest.fixture
def run(run: RunDirectory) -> RunDirectory:
    """Return the run directory, with a fence of ownership 1."""
    run.fence(1)
    return run


def acquire(root: str, migration: str, epoch: int = 2, seconds: float = 60.0) -> records.Fence:
    return ownership.acquire(root, "run", migration, epoch, f"target of {migration}", seconds)


@pytest.mark.usefixtures("run")
def test_one_of_many_acquires_the_migration_lock(root: str) -> None:
    barrier = threading.Barrier(8)

    def one(number: int) -> bool:
        barrier.wait()
        try:
            acquire(root, f"m{number}")
        except run_state.RefusedError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(one, range(8))) == 1


@pytest.mark.usefixtures("run")
def test_owner_may_acquire_again_and_release(root: str) -> None:
    assert acquire(root, "a").epoch == 1
    acquire(root, "a")
    ownership.release(root, "run", "b", 2, "there")
    with pytest.raises(run_state.RefusedError, match="by migration a"):
        acquire(root, "b")
    ownership.release(root, "run", "a", 2, "there")
    acquire(root, "b")
    lock = ownership.migration_lock(root, "run")
    assert lock is not None
    assert lock.migration == "b"


@pytest.mark.parametrize("acquired", [True, False])
@pytest.mark.usefixtures("run")
def test_migration_that_was_rolled_back_acquires_no_lock(root: str, acquired: bool) -> None:
    """A process with a copy of its files went on: on the old code it migrated the run after all."""
    if acquired:
        acquire(root, "a")
    ownership.release(root, "run", "a", 2, "there")
    assert ownership.migration_lock(root, "run") is None
    with pytest.raises(run_state.RefusedError, match="migration a was rolled back by another process"):
        acquire(root, "a")
    acquire(root, "b")
    ownership.release(root, "run", "a", 2, "there")
    lock = ownership.migration_lock(root, "run")
    assert lock is not None
    assert lock.migration == "b", "another one's lock stays"


@pytest.mark.usefixtures("run")
def test_expired_migration_lock_may_be_acquired(root: str) -> None:
    acquire(root, "a", seconds=-1.0)
    acquire(root, "b")
    with pytest.raises(run_state.RefusedError, match="by migration b"):
        acquire(root, "a")


def test_begun_epoch_stays_with_its_migration(root: str, run: RunDirectory) -> None:
    acquire(root, "a", seconds=-1.0)
    run.fence(2, "target of a", 5)
    assert acquire(root, "a").epoch == 2, "the same migration continues"
    with pytest.raises(run_state.RefusedError, match=r"has migrated to target of a \(ownership 2\)"):
        acquire(root, "b")
    acquire(root, "b", epoch=3)
    with pytest.raises(run_state.RefusedError, match="has migrated to"):
        acquire(root, "a")


def test_commands_and_fences_of_other_migrations_are_refused(root: str, run: RunDirectory) -> None:
    run.attempt(1)
    acquire(root, "a")
    assert ownership.send_command(root, "run", 1, {**STOP, "migration": "a"}) == 1
    with pytest.raises(run_state.RefusedError, match="by migration a"):
        ownership.send_command(root, "run", 1, {**STOP, "migration": "b"})
    assert records.Command.read(run.attempt(1).command_file).migration == "a"
    fence = records.Fence.read(run.paths.fence).sealed(2, "elsewhere", 5)
    for change in (
        lambda: ownership.put_fence(root, "run", fence.to_json(), migration="b"),
        lambda: ownership.seal(root, "run", 2, "elsewhere", 5, migration="b"),
    ):
        with pytest.raises(run_state.RefusedError, match="by migration a"):
            change()
    assert records.Fence.read(run.paths.fence).epoch == 1
    assert ownership.seal(root, "run", 2, "target of a", 5, migration="a").epoch == 2


def test_lock_is_not_released_while_its_command_to_stop_waits(root: str, run: RunDirectory) -> None:
    """Another process of the migration may send it after the rollback has looked for one."""
    run.status(1, records.TRAINING, 5)
    acquire(root, "a")
    stop = {**STOP, "owner": "target of a", "migration": "a"}
    ownership.send_command(root, "run", 1, stop)
    with pytest.raises(run_state.RefusedError, match="has commanded attempt 1 of run to stop by now"):
        ownership.release(root, "run", "a", 2, "target of a")
    assert ownership.migration_lock(root, "run") is not None
    ownership.send_command(root, "run", 1, {"action": records.SAVE, "epoch": 1, "migration": "a"})
    ownership.release(root, "run", "a", 2, "target of a")
    assert ownership.migration_lock(root, "run") is None


def test_lock_is_not_released_while_the_run_is_sealed_for_it(root: str, run: RunDirectory) -> None:
    acquire(root, "a")
    ownership.seal(root, "run", 2, "target of a", 5, migration="a")
    with pytest.raises(run_state.RefusedError, match="another process of migration a has sealed run run by now"):
        ownership.release(root, "run", "a", 2, "target of a")
    back = records.Fence.read(run.paths.fence).rolled_back("here", 5)
    ownership.put_fence(root, "run", back.to_json(), migration="a")
    ownership.release(root, "run", "a", 2, "target of a")
    assert ownership.migration_lock(root, "run") is None


def test_lost_lock_of_a_sealed_run_ends_its_rollback(root: str, run: RunDirectory) -> None:
    """Without the lock the migration changes nothing there, so a refusal would repeat for ever."""
    run.fence(2, "target of a", 5)
    ownership.release(root, "run", "a", 2, "target of a")
    assert records.MigrationLock.read(run.paths.migration_lock).released


def test_command_to_seal_is_refused_after_a_rollback(root: str, run: RunDirectory) -> None:
    """A process that was suspended would stop the engine that the rollback has started."""
    run.attempt(3)
    acquire(root, "a")
    sealed = ownership.seal(root, "run", 2, "target of a", 5, migration="a")
    ownership.put_fence(root, "run", sealed.rolled_back("here", 5).to_json(), migration="a")
    with pytest.raises(run_state.RefusedError, match=r"run run belongs to here \(ownership 3\) by now"):
        ownership.send_command(root, "run", 3, {**STOP, "owner": "target of a", "migration": "a"})
    assert not os.path.exists(run.attempt(3).command_file)


def test_standby_on_former_source_accepts_newer_epochs_only(root: str, run: RunDirectory) -> None:
    """A standby on a former source, where the lock of the finished migration is left."""
    run.attempt(1)
    acquire(root, "there")
    ownership.seal(root, "run", 2, "target of there", 5, migration="there")
    standby = records.Command(records.STANDBY, epoch=3, step=9, migration="back").to_json()
    assert ownership.send_command(root, "run", 1, standby) == 1
    with pytest.raises(run_state.RefusedError, match="by migration there"):
        ownership.send_command(root, "run", 1, {**standby, "epoch": 2})


@pytest.mark.usefixtures("run")
def test_rollback_and_next_migration_share_no_epoch(root: str) -> None:
    """Only one of a rollback and the next migration from its target gets ownership 3."""
    there = records.first_fence("here").sealed(2, "there", 5)
    back = there.rolled_back("here", 5)
    ownership.put_fence(root, "run", there.to_json(), migration="first")
    acquire(root, "second", epoch=3)
    with pytest.raises(run_state.RefusedError, match="by migration second"):
        ownership.put_fence(root, "run", back.to_json(), migration="first")
    ownership.release(root, "run", "second", 3, "there")
    ownership.put_fence(root, "run", back.to_json(), migration="first")
    with pytest.raises(run_state.RefusedError, match=r"has migrated to here \(ownership 3\)"):
        acquire(root, "second", epoch=3)


SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_late_start_makes_no_second_engine(root: str, run: RunDirectory) -> None:
    Path(run.paths.config).write_text("a: 1\n")
    first, second = run_state.claim_attempt(root, "run"), run_state.claim_attempt(root, "run")
    started = attempts.start(root, "run", second, SLEEPER, {})
    try:
        with pytest.raises(run_state.RefusedError, match="attempt 2 of run runs here already"):
            attempts.start(root, "run", first, SLEEPER, {})
        assert run_state.running_attempt(root, "run") == second
        third = run_state.claim_attempt(root, "run")
        assert run_state.describe(root, "run").attempt == second, "a claim changes nothing about the run"
        with pytest.raises(run_state.RefusedError):
            attempts.start(root, "run", third, SLEEPER, {})
        assert run_state.attempts(run.paths) == [second], "unused claims are removed"
    finally:
        os.kill(started.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while run_state.running_attempt(root, "run"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_start_waits_for_a_stopped_attempt_to_exit(root: str, run: RunDirectory) -> None:
    """On one machine, the copied status is that of a process that is about to exit."""
    Path(run.paths.config).write_text("a: 1\n")
    ending = subprocess.Popen(SLEEPER)
    late = threading.Timer(0.3, ending.kill)
    try:
        identity = records.identify(ending.pid)
        assert identity is not None
        run.status(1, records.STOPPED, 3, identity)
        assert run_state.running_attempt(root, "run") == 1
        late.start()
        second = run_state.claim_attempt(root, "run")
        started = attempts.start(root, "run", second, SLEEPER, {})
        os.kill(started.pid, signal.SIGKILL)
    finally:
        late.cancel()
        ending.kill()
        ending.wait()


def test_exited_attempt_is_not_running(root: str, run: RunDirectory) -> None:
    run.status(1, records.TRAINING, 3, dead_process())
    assert run_state.running_attempt(root, "run") == 0
    run.status(2, records.TRAINING, 3)
    assert run_state.running_attempt(root, "run") == 2


def test_fence_of_a_started_target_is_put_again(root: str, run: RunDirectory) -> None:
    """The answers to the fence and to the start may be lost: by then the start has its number."""
    sealed = records.first_fence("here").sealed(2, "there", 5)
    ownership.put_fence(root, "run", sealed.to_json(), "m")
    started = sealed.started(5).started(8)
    started.write(run.paths.fence)
    assert ownership.put_fence(root, "run", sealed.to_json(), "m") == started
    assert records.Fence.read(run.paths.fence) == started, "no number is taken twice"
    assert ownership.put_fence(root, "run", started.started(9).to_json(), "m").order == (2, 3), "it rises"
    for other in (
        records.first_fence("here").sealed(2, "elsewhere", 5),
        records.first_fence("here").sealed(2, "there", 6).started(6),
        sealed.started(4),
    ):
        with pytest.raises(run_state.RefusedError, match="cannot replace it"):
            ownership.put_fence(root, "run", other.to_json(), "m")


def test_seal_of_a_migration_without_lock_is_refused(root: str, run: RunDirectory) -> None:
    """Another process has rolled it back: on the old code its late command left the run without an owner."""
    run.attempt(1)
    seals = {**STOP, "migration": "a", "owner": "b", "epoch": 2}
    acquire(root, "a")
    assert ownership.send_command(root, "run", 1, seals) == 1
    ownership.release(root, "run", "a", 2, "there")
    with pytest.raises(run_state.RefusedError, match="migration a has no lock on run run any more"):
        ownership.send_command(root, "run", 1, {**seals, "step": 7})
    assert ownership.send_command(root, "run", 1, {**STOP, "owner": "", "migration": "a"}) == 2, "it seals nothing"
