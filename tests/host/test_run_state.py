"""Run directories of a host: claims, commands, seals, fences, pins, signals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from midstream_core import records
from midstream_host.runs import checkpoint_pins, ownership, run_state
from support.run_directory import RunDirectory, dead_process


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path)


def test_concurrent_claims_get_different_attempts(root: str) -> None:
    claimers = 16
    barrier = threading.Barrier(claimers)

    def claim(_: int) -> int:
        barrier.wait()
        return run_state.claim_attempt(root, "run")

    with ThreadPoolExecutor(claimers) as pool:
        claimed = list(pool.map(claim, range(claimers)))
    assert sorted(claimed) == list(range(1, claimers + 1))


def test_claim_attempt_starts_above_at_least(root: str) -> None:
    assert run_state.claim_attempt(root, "run", at_least=7) == 7
    assert run_state.claim_attempt(root, "run", at_least=3) == 8


def test_run_id_cannot_leave_the_root(root: str) -> None:
    with pytest.raises(records.RecordError, match="run id"):
        run_state.claim_attempt(root, "../../etc")
    with pytest.raises(records.RecordError, match="run id"):
        ownership.put_fence(root, "a/b", records.first_fence("here").to_json())


def test_list_runs_lists_directories_with_attempts(root: str, tmp_path: Path) -> None:
    assert run_state.list_runs(root) == []
    run_state.claim_attempt(root, "b")
    run_state.claim_attempt(root, "a")
    (tmp_path / "runs" / "rubbish").mkdir()
    (tmp_path / "runs" / "file").write_text("")
    assert run_state.list_runs(root) == ["a", "b"]


def test_describe_missing_run_is_empty(root: str) -> None:
    described = run_state.describe(root, "nothing")
    assert (described.attempt, described.fence, described.status, described.running) == (
        0,
        None,
        None,
        False,
    )
    assert described.checkpoints == []


def test_command_sequences_increase(root: str, run: RunDirectory) -> None:
    run.attempt(1)
    commands = [records.Command(action).to_json() for action in (records.SAVE, records.STOP, records.SAVE)]
    assert [ownership.send_command(root, "run", 1, command) for command in commands] == [1, 2, 3]
    assert records.Command.read(run.attempt(1).command_file).sequence == 3


def test_command_sequence_exceeds_the_acknowledged_one(root: str, run: RunDirectory) -> None:
    run.status(1, records.TRAINING, 3)
    status = json.loads(Path(run.attempt(1).status()).read_text())
    records.write_json(run.attempt(1).status(), {**status, "acknowledged": 5})
    assert ownership.send_command(root, "run", 1, records.Command(records.STOP).to_json()) == 6


def test_command_without_action_is_refused_unwritten(root: str, run: RunDirectory) -> None:
    run.attempt(1)
    with pytest.raises(records.RecordError, match="lacks action"):
        ownership.send_command(root, "run", 1, {"epoch": 2})
    assert not Path(run.attempt(1).command_file).exists()


def test_signal_checks_the_process_identity(root: str, run: RunDirectory) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1) as child:
        assert child.stdout is not None
        child.stdout.readline()
        identity = records.identify(child.pid)
        assert identity is not None
        stranger = records.ProcessIdentity(identity.boot_id, identity.pid, identity.start_ticks - 1)
        run.status(1, records.TRAINING, 3, stranger)
        assert run_state.signal(root, "run", 1, "SIGTERM") is False
        assert child.poll() is None
        run.status(1, records.TRAINING, 3, identity)
        assert run_state.signal(root, "run", 1, "SIGTERM") is True
        assert child.wait(20) == -signal.SIGTERM
    assert run_state.signal(root, "run", 1, "SIGTERM") is False
    assert run_state.signal(root, "run", 2, "SIGTERM") is False, "there is no such attempt"


def test_running_source_is_not_sealed_from_outside(root: str, run: RunDirectory) -> None:
    run.fence(1)
    run.status(1, records.TRAINING, 3)
    with pytest.raises(run_state.RefusedError, match="attempt 1 of run runs"):
        ownership.seal(root, "run", 2, "there", 3)
    assert records.Fence.read(run.paths.fence).epoch == 1


def test_exited_source_is_sealed_once(root: str, run: RunDirectory) -> None:
    run.fence(1)
    run.status(1, records.TRAINING, 9, dead_process())
    sealed = ownership.seal(root, "run", 2, "there", 5)
    assert (sealed.epoch, sealed.owner, sealed.sealed_step) == (2, "there", 5)
    assert ownership.seal(root, "run", 2, "there", 5) == sealed, "repeating it changes nothing"
    with pytest.raises(records.RecordError, match="already at ownership 2"):
        ownership.seal(root, "run", 2, "elsewhere", 5)
    fence = records.Fence.read(run.paths.fence)
    assert fence.accepts(1, 5)
    assert not fence.accepts(1, 6)


def test_put_fence_refuses_lower_epochs(root: str, run: RunDirectory) -> None:
    first = records.first_fence("here")
    assert ownership.put_fence(root, "run", first.to_json()) == first
    second = first.sealed(2, "there", 5)
    assert ownership.put_fence(root, "run", second.to_json()).epoch == 2
    assert ownership.put_fence(root, "run", second.to_json()).epoch == 2
    for old in (first, first.sealed(2, "elsewhere", 5)):
        with pytest.raises(run_state.RefusedError, match="ownership 2"):
            ownership.put_fence(root, "run", old.to_json())
    assert records.Fence.read(run.paths.fence) == second


@pytest.mark.usefixtures("run")
def test_one_of_many_fences_wins(root: str) -> None:
    ownership.put_fence(root, "run", records.first_fence("here").to_json())
    barrier = threading.Barrier(8)

    def put(number: int) -> bool:
        barrier.wait()
        try:
            ownership.put_fence(root, "run", records.first_fence("here").sealed(2, f"host{number}", 5).to_json())
        except run_state.RefusedError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(put, range(8))) == 1


def test_pins_last_until_expiry_or_unpin(root: str, run: RunDirectory) -> None:
    name, other = run.checkpoint(5), run.checkpoint(9)

    def pinned() -> list[str]:
        return [checkpoint.name for checkpoint in run_state.describe(root, "run").checkpoints if checkpoint.pinned]

    checkpoint_pins.pin(root, "run", "m1", name, time.time() + 60)
    checkpoint_pins.pin(root, "run", "m2", other, time.time() - 1)
    assert pinned() == [name]
    checkpoint_pins.unpin(root, "run", "m1")
    checkpoint_pins.unpin(root, "run", "m1")
    assert pinned() == []


def test_status_is_read_again_after_the_process_exited(
    root: str, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.status(1, records.TRAINING, 3)
    is_running = records.is_running

    def exits_now(_: records.ProcessIdentity) -> bool:
        run.status(1, records.STOPPED, 4, dead_process())
        return is_running(dead_process())

    monkeypatch.setattr(records, "is_running", exits_now)
    found = run_state.status(root, "run", 1).status
    assert found is not None
    assert found.state == records.STOPPED
