"""What a host does for us in its run directories: claims, orders, seals, fences, pins, signals."""

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

from midstream.remote.runs import ownership, run_state
from midstream_engine import records
from support.run_directory import RunDirectory, dead_process


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def test_an_attempt_belongs_to_one_claimer_alone(root: str):
    claimers = 16
    together = threading.Barrier(claimers)

    def claim(_: int) -> int:
        together.wait()
        return run_state.claim_attempt(root, "run")

    with ThreadPoolExecutor(claimers) as pool:
        claimed = list(pool.map(claim, range(claimers)))
    assert sorted(claimed) == list(range(1, claimers + 1))


def test_attempts_go_on_from_the_highest_of_all_hosts(root: str):
    assert run_state.claim_attempt(root, "run", at_least=7) == 7
    assert run_state.claim_attempt(root, "run", at_least=3) == 8


def test_a_run_id_cannot_leave_the_root(root: str):
    with pytest.raises(records.RecordError, match="run id"):
        run_state.claim_attempt(root, "../../etc")
    with pytest.raises(records.RecordError, match="run id"):
        ownership.put_fence(root, "a/b", records.first_fence("here").to_json())


def test_runs_are_directories_with_attempts(root: str, tmp_path: Path):
    assert run_state.list_runs(root) == []
    run_state.claim_attempt(root, "b")
    run_state.claim_attempt(root, "a")
    (tmp_path / "runs" / "rubbish").mkdir()
    (tmp_path / "runs" / "file").write_text("")
    assert run_state.list_runs(root) == ["a", "b"]


def test_a_run_that_is_not_there_is_described_as_empty(root: str):
    described = run_state.describe(root, "nothing")
    assert (described["attempt"], described["fence"], described["status"], described["running"]) == (
        0,
        None,
        None,
        False,
    )
    assert described["checkpoints"] == []


def test_orders_have_rising_serials(root: str, run: RunDirectory):
    run.attempt(1)
    orders = [records.Command(action).to_json() for action in (records.SAVE, records.STOP, records.SAVE)]
    assert [ownership.send_command(root, "run", 1, order) for order in orders] == [1, 2, 3]
    assert records.Command.read(run.attempt(1).command_file).sequence == 3


def test_a_serial_is_past_the_one_that_the_engine_carried_out(root: str, run: RunDirectory):
    run.status(1, records.TRAINING, 3)
    status = json.loads(Path(run.attempt(1).status()).read_text())
    records.write_json(run.attempt(1).status(), {**status, "acknowledged": 5})
    assert ownership.send_command(root, "run", 1, records.Command(records.STOP).to_json()) == 6


def test_an_order_without_an_action_is_refused_before_it_is_written(root: str, run: RunDirectory):
    run.attempt(1)
    with pytest.raises(records.RecordError, match="lacks action"):
        ownership.send_command(root, "run", 1, {"epoch": 2})
    assert not Path(run.attempt(1).command_file).exists()


def test_only_the_very_process_is_signalled(root: str, run: RunDirectory):
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


def test_a_living_source_is_not_sealed_from_outside(root: str, run: RunDirectory):
    run.fence(1)
    run.status(1, records.TRAINING, 3)
    with pytest.raises(run_state.Refused, match="attempt 1 of run runs"):
        ownership.seal(root, "run", 2, "there", 3)
    assert records.Fence.read(run.paths.fence).epoch == 1


def test_a_dead_source_is_sealed_once(root: str, run: RunDirectory):
    run.fence(1)
    run.status(1, records.TRAINING, 9, dead_process())
    sealed = ownership.seal(root, "run", 2, "there", 5)
    assert (sealed["epoch"], sealed["owner"], sealed["sealed_step"]) == (2, "there", 5)
    assert ownership.seal(root, "run", 2, "there", 5) == sealed, "the same again changes nothing"
    with pytest.raises(records.RecordError, match="already at epoch 2"):
        ownership.seal(root, "run", 2, "elsewhere", 5)
    fence = records.Fence.read(run.paths.fence)
    assert fence.accepts(1, 5)
    assert not fence.accepts(1, 6)


def test_a_fence_only_goes_up(root: str, run: RunDirectory):
    first = records.first_fence("here")
    assert ownership.put_fence(root, "run", first.to_json()) == first.to_json()
    second = first.sealed(2, "there", 5)
    assert ownership.put_fence(root, "run", second.to_json())["epoch"] == 2
    assert ownership.put_fence(root, "run", second.to_json())["epoch"] == 2
    for old in (first, first.sealed(2, "elsewhere", 5)):
        with pytest.raises(run_state.Refused, match="epoch 2"):
            ownership.put_fence(root, "run", old.to_json())
    assert records.Fence.read(run.paths.fence) == second


def test_of_many_who_put_a_fence_one_wins(root: str, run: RunDirectory):
    ownership.put_fence(root, "run", records.first_fence("here").to_json())
    together = threading.Barrier(8)

    def put(number: int) -> bool:
        together.wait()
        try:
            ownership.put_fence(root, "run", records.first_fence("here").sealed(2, f"host{number}", 5).to_json())
        except run_state.Refused:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(put, range(8))) == 1


def test_pins_hold_until_they_expire_or_are_taken(root: str, run: RunDirectory):
    name, other = run.checkpoint(5), run.checkpoint(9)

    def pinned() -> list[str]:
        return [point["name"] for point in run_state.describe(root, "run")["checkpoints"] if point["pinned"]]

    run_state.pin(root, "run", "m1", name, time.time() + 60)
    run_state.pin(root, "run", "m2", other, time.time() - 1)
    assert pinned() == [name]
    run_state.unpin(root, "run", "m1")
    run_state.unpin(root, "run", "m1")
    assert pinned() == []


def test_metrics_from_an_offset_are_whole_lines(root: str, run: RunDirectory):
    assert run_state.metrics(root, "run", 1) == {"text": "", "offset": 0}
    run.text(1, '{"global_step": 0}\n{"glo')
    first = run_state.metrics(root, "run", 1)
    assert first == {"text": '{"global_step": 0}\n', "offset": 19}
    run.text(1, 'bal_step": 1}\n')
    assert run_state.metrics(root, "run", 1, first["offset"])["text"] == '{"global_step": 1}\n'


def test_the_last_words_of_a_process_that_ended_meanwhile_are_heard(
    root: str, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
):
    run.status(1, records.TRAINING, 3)
    alive = records.is_running

    def ends_now(process: records.ProcessIdentity) -> bool:
        run.status(1, records.STOPPED, 4, dead_process())
        return alive(dead_process())

    monkeypatch.setattr(records, "is_running", ends_now)
    assert run_state.status(root, "run", 1)["status"]["state"] == records.STOPPED
