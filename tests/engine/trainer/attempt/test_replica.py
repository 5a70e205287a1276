"""A replica replays the run's batches without effect, and becomes the run when promoted."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from midstream_core import records
from midstream_core.attempt import standby_lease
from midstream_core.attempt.errors import EngineError, FencedError
from midstream_core.attempt.status_file import StatusFile
from midstream_engine.attempt import parameter_drift
from midstream_engine.attempt.parameter_drift import LateMeasurement
from midstream_engine.attempt.replica import ReplayResult, Replica
from midstream_engine.attempt.run_attempt import promote
from midstream_engine.checkpoint.saving.snapshot import Copy, HostArray, snapshot
from midstream_engine.computation.setup import prepare
from midstream_engine.config import load_config
from midstream_engine.loop.finite_check import FiniteCheck
from midstream_engine.loop.requests import Known, Wanted
from midstream_engine.processes.rendezvous import Processes
from midstream_engine.runtime.attempt_record import AttemptRecord, open_attempt
from midstream_engine.tracking.metrics_file import MetricsFile
from midstream_engine.tracking.metrics_recorder import MetricsRecorder
from midstream_host.runs.attempts import EXIT_TIMEOUT
from support.checkpoints.checkpoint_states import save
from support.engines.engine_process import train_all
from support.engines.standby_engine import Held
from support.paths import CONFIGS

pytestmark = pytest.mark.drawn

STEPS = 400
TINY = ("--config_path", str(CONFIGS / "gpt2_tiny.yaml"), "--trainer.id", "r")
FLAGS = ("--trainer.num_train_steps", str(STEPS), "--trainer.checkpointer.keep", "[{every: 40}]")


@pytest.fixture(scope="module")
def trained():
    """A root with run ``r`` on 2 devices, with a checkpoint every 40 steps."""
    with tempfile.TemporaryDirectory(prefix="midstream-replay-") as directory:
        root = Path(directory)
        codes, log = train_all(root, [(*TINY, *FLAGS)], devices=2)
        assert codes == [0], log
        yield root


def rows_of(path: str) -> list[dict]:
    return records.parse_metrics(Path(path).read_text().splitlines())


def test_replica_replays_run_and_continues_it_when_promoted(trained: Path, tmp_path: Path) -> None:
    held = Held(trained, tmp_path, "step-40-a001", *FLAGS)
    held.order(records.REPLAY, 1, "step-40-a001")
    with held.start() as engine:
        engine.until(held.is_in(records.REPLAYING))
        status = held.status()
        assert status is not None
        assert (status.epoch, status.rehearsed_seconds > 0) == (0, True)
        held.order(records.STANDBY, 2, step=1)
        assert "is at step" in engine.until(held.has_refused(2)).message
        at = 40 * (engine.until(held.has_refused(2)).step // 40 + 3)
        assert at <= STEPS - 40, "this machine is too slow, or far too quick"
        held.order(records.STANDBY, 3, step=at)
        engine.until(held.has_done(3))
        for path in (held.paths.fence, held.paths.lineage, held.paths.config, held.paths.attempt(2).metrics):
            assert not Path(path).exists(), path
        held.order(records.PROMOTE, 4, f"step-{at}-a001", step=at)
        assert "the fence does not name two as owner" in engine.until(held.has_refused(4)).message
        records.Fence.read(held.source.fence).sealed(2, "two", at).write(held.paths.fence)
        held.order(records.PROMOTE, 5, f"step-{at}-a001", step=at)
        engine.until(held.has_done(5))
        held.bring(f"step-{at}-a001")
        engine.until(lambda: Path(held.paths.attempt(2).parameter_drift).exists() or None)
        code, log = engine.finish()
    assert code == 0, log

    theirs = rows_of(held.source.attempt(1).metrics)
    replayed, ours = rows_of(held.paths.attempt(2).replay), rows_of(held.paths.attempt(2).metrics)
    assert [row["global_step"] for row in ours] == list(range(at, STEPS))
    assert [row["global_step"] for row in replayed] == list(range(40, replayed[-1]["global_step"] + 1))
    for mine, one in zip([*replayed[: at - 40], *ours], theirs[40:], strict=True):
        assert mine["batch_digest"] == one["batch_digest"]
        assert records.relative_difference(mine["train/loss"], one["train/loss"]) < 1e-4

    drift = records.ParameterDrift.read(held.paths.attempt(2).parameter_drift)
    assert (drift.step, drift.checkpoint) == (at, f"step-{at}-a001")
    assert 0 < drift.distance < 1e-4, "computed on four devices instead of two: near, and not the same"
    assert drift.parameters > 100_000
    (entry,) = records.Lineage.read(held.paths.lineage).entries
    assert (entry.epoch, entry.first_step, entry.last_step, entry.checkpoint) == (2, at, STEPS, "step-40-a001")
    saved = [json.loads(path.read_text()) for path in Path(held.paths.checkpoints).glob(f"*-a002/{records.MANIFEST}")]
    assert any(at <= manifest["step"] for manifest in saved)
    assert {manifest["epoch"] for manifest in saved} == {2}


def test_replica_drops_its_state_on_restore_command(trained: Path, tmp_path: Path) -> None:
    held = Held(trained, tmp_path, "step-40-a001", *FLAGS)
    held.order(records.REPLAY, 1, "step-40-a001")
    with held.start() as engine:
        engine.until(held.is_in(records.REPLAYING))
        held.bring("step-360-a001")
        records.Fence.read(held.source.fence).sealed(2, "two", 360).write(held.paths.fence)
        held.order(records.RESTORE, 2, "step-360-a001")
        code, log = engine.finish()
    assert code == 0, log
    assert [row["global_step"] for row in rows_of(held.paths.attempt(2).metrics)] == list(range(360, STEPS))
    evidence = records.Restore.read(held.paths.attempt(2).restore)
    assert evidence.checkpoint == "step-360-a001"
    assert evidence.root_digest == evidence.expected_root_digest


def test_replica_with_a_state_that_is_not_finite_is_not_promoted(trained: Path, tmp_path: Path) -> None:
    # Each update multiplies the parameters by about -9: they overflow after the rehearsal of a few updates.
    flags = ("--optimizer.weight_decay", "1e4", "--trainer.crash_on_nan", "false", "--trainer.crash_on_inf", "false")
    held = Held(trained, tmp_path, "step-40-a001", *FLAGS, *flags)
    held.order(records.REPLAY, 1, "step-40-a001")
    with held.start() as engine:
        engine.until(lambda: bool((status := held.status()) and "is not finite" in status.message) or None)
        records.Fence.read(held.source.fence).sealed(2, "two", 80).write(held.paths.fence)
        held.order(records.PROMOTE, 2, "step-80-a001", step=STEPS)
        assert "the replica's state is not finite: " in engine.until(held.has_refused(2)).message
        assert engine.process.poll() is None
    assert not Path(held.paths.attempt(2).metrics).exists()


def test_replica_checks_its_state_again_when_it_takes_over() -> None:
    replica: Any = Replica.__new__(Replica)
    replica.step = 80
    replica._promotion = records.Command(records.PROMOTE, epoch=2, step=80)
    replica._finite = FiniteCheck.__new__(FiniteCheck)
    replica._finite.reason = "NaN in model/head, since step 79"
    with pytest.raises(EngineError, match="not promoted: its state is not finite: NaN in model/head, since step 79"):
        replica._promoted()


def test_rows_that_waited_for_room_are_rows_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replica, path = Replica.__new__(Replica), tmp_path / "replay.jsonl"
    untyped: Any = replica
    untyped.step, untyped.state, untyped._kept, untyped._leads = 81, None, None, True
    untyped._promotion = records.Command(records.PROMOTE, epoch=2, step=80)
    untyped._finite = SimpleNamespace(reason="")
    path.write_text('{"global_step": 79}\n{"global_step": 80, "train/loss": 1.0}\n{"global_step": 81}\n{"global_st')
    untyped._replayed = str(path)
    untyped._status = SimpleNamespace(update=lambda **_: None)
    untyped._recorder = MetricsRecorder(MetricsFile(str(path)))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(records, "append_line", full)
        untyped._recorder.write({"global_step": 80})
        with pytest.raises(OSError, match="No space left"):
            replica._promoted()
    outcome = replica._promoted()
    untyped._recorder.close()
    assert outcome is not None
    assert outcome.rows == ({"global_step": 80},)


class Replaying:
    """A replica before its first update; ``look`` gives its requests."""

    def __init__(self, root: Path, process: int, look: Any, client: Any = None) -> None:
        flags = ["--config_path", str(CONFIGS / "gpt2_tiny.yaml"), "--trainer.num_train_steps", "4"]
        setup = prepare(load_config(flags).config, str(root), None, jax.devices()[:1])
        self.attempt = open_attempt(str(root), "r", {})
        self.attempt = dataclasses.replace(self.attempt, processes=Processes(process, 2, client=client))
        self.status = StatusFile(str(root / "status.json"), run_id="r", attempt=1, epoch=0, num_train_steps=4)
        compiled: Any = SimpleNamespace(setup=setup, programs=None)
        requests: Any = SimpleNamespace(look=look)
        state: Any = 0
        self.replay = Replica(compiled, requests, self.attempt, self.status, state, 0)

    def run(self) -> ReplayResult:
        try:
            return self.replay.replay()
        finally:
            self.status.close()


@pytest.mark.parametrize("process", [0, 1])
def test_replica_processes_leave_together_without_a_lease(
    tmp_path: Path, process: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 0 has the lease; the others would wait for it in the next consensus."""
    offered = list[Known]()
    monkeypatch.setenv("MIDSTREAM_STANDBY_SECONDS", "0")
    monkeypatch.setattr(standby_lease, "POLL_INTERVAL", 0.0)

    def look(known: Known | None = None) -> Wanted:
        offered.append(known or Known())
        assert len(offered) == 1
        return Wanted(facts=Known(due=True))

    replaying = Replaying(tmp_path, process, look)
    assert replaying.run() == ReplayResult(None)
    assert offered[0].due == (process == 0)
    assert replaying.replay._known(1).due == (process == 0), "at each boundary"
    assert "lease was not renewed" in replaying.status.value.message


def test_only_process_0_writes_the_rows_of_a_replay(tmp_path: Path) -> None:
    """The processes may share the directory, and the other ones' rows have no digest of the batch."""
    for process in (1, 0):
        replaying = Replaying(tmp_path / str(process), process, lambda _known: Wanted(stop=True))
        assert replaying.run() == ReplayResult(None)
        assert Path(replaying.attempt.files.replay).exists() == (process == 0)
    follower = Replaying(tmp_path / "1", 1, Wanted).replay
    follower._promotion, follower.step = records.Command(records.PROMOTE, epoch=2, step=2), 2
    outcome = follower._promoted()
    follower._recorder.close()
    assert outcome is not None
    assert outcome.rows == ()


def test_replica_processes_reject_a_command_together(tmp_path: Path) -> None:
    """One host may lack the fence that another one has."""
    client: Any = SimpleNamespace(peers=["process 0", "process 1"])
    client.exchange = lambda _key, value: [value, b"there is no fence"]
    replaying = Replaying(tmp_path, 0, Wanted, client)
    command = records.Command(records.STANDBY, epoch=replaying.attempt.epoch, step=2, sequence=3)
    assert replaying.replay._unfit(command) == ""
    assert replaying.replay._take(Wanted(command=command)) is None
    replaying.replay._recorder.close()
    replaying.status.close()
    assert (replaying.status.value.rejected, replaying.status.value.message) == (3, "process 1: there is no fence")


def test_metrics_on_a_full_disk_hide_no_reason_of_a_replica(tmp_path: Path) -> None:
    def look(_known: Known | None = None) -> Wanted:
        raise FencedError("the run has passed to three")

    replaying = Replaying(tmp_path, 0, look)
    replaying.replay._recorder.close()
    replaying.replay._recorder = MetricsRecorder(MetricsFile("/dev/full"))
    replaying.replay._recorder.write({"global_step": 1})
    with pytest.raises(FencedError, match="passed to three"):
        replaying.run()


def test_end_of_an_attempt_ends_the_wait_for_a_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    attempt = open_attempt(str(tmp_path), "r", {})
    measurement = LateMeasurement(attempt, "step-7-a001", [])
    measurement.close(60)
    assert not measurement._thread.is_alive()
    assert "the attempt ends before step-7-a001 arrives" in caplog.text


@pytest.fixture
def wide(tmp_path: Path) -> tuple[AttemptRecord, list[HostArray]]:
    """An attempt with a checkpoint of one large array, and that array."""
    attempt = open_attempt(str(tmp_path), "r", {})
    array = np.ones((512, 2048), np.float32)
    save(attempt.paths, {"model": {"wide": array}})
    return attempt, snapshot({"model": {"wide": array}}, Copy.HOST)


def test_measurement_that_takes_too_long_ends_with_the_attempt(
    wide: tuple[AttemptRecord, list[HostArray]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its thread would write while the process exits."""
    attempt, kept = wide
    reading, built, squares = threading.Event(), threading.Event(), parameter_drift._squares

    def slow(*arrays: np.ndarray) -> tuple[float, float]:
        reading.set()
        assert built.wait(60)
        assert measurement._given_up.wait(60)
        return squares(*arrays)

    monkeypatch.setattr(parameter_drift, "_squares", slow)
    monkeypatch.setattr(parameter_drift, "READ_TIMEOUT", 60.0)
    measurement = LateMeasurement(attempt, "step-7-a001", kept)
    built.set()
    assert reading.wait(60)
    measurement.close(0.0)
    assert not measurement._thread.is_alive()
    assert "parameter drift not measured: the attempt ends" in caplog.text
    assert not Path(attempt.files.parameter_drift).exists()


def test_read_that_hangs_does_not_hold_the_end_of_the_attempt(
    wide: tuple[AttemptRecord, list[HostArray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, kept = wide
    reading, ended = threading.Event(), threading.Event()

    def hang(*_: np.ndarray) -> tuple[float, float]:
        reading.set()
        assert ended.wait(60)
        return 0.0, 1.0

    monkeypatch.setattr(parameter_drift, "_squares", hang)
    monkeypatch.setattr(parameter_drift, "READ_TIMEOUT", 0.0)
    measurement = LateMeasurement(attempt, "step-7-a001", kept)
    assert reading.wait(60)
    measurement.close(0.0)
    assert measurement._thread.is_alive()
    ended.set()
    measurement._thread.join(60)
    assert not Path(attempt.files.parameter_drift).exists(), "nothing is written after the end"


@pytest.mark.parametrize("fails", [True, False])
def test_failure_of_a_promoted_replica_waits_for_no_measurement(
    fails: bool, wide: tuple[AttemptRecord, list[HostArray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other processes wait in a collective until it is reported; the end of training waits a little."""
    attempt, kept = wide
    offered = list[float]()
    monkeypatch.setattr(LateMeasurement, "close", lambda _self, timeout: offered.append(timeout))
    command = records.Command(records.PROMOTE, checkpoint="step-7-a001", step=7)
    saver: Any = SimpleNamespace(save=lambda *_: None)
    metrics: Any = SimpleNamespace(write=lambda _row: None)
    with contextlib.suppress(EngineError), contextlib.ExitStack() as threads:
        promote(attempt, ReplayResult(command, SimpleNamespace(), 7, (), kept), saver, metrics, threads)  # pyright: ignore
        if fails:
            raise EngineError("a collective has failed")
    assert offered == [0.0 if fails else parameter_drift.END_TIMEOUT]
    assert parameter_drift.END_TIMEOUT + parameter_drift.READ_TIMEOUT < EXIT_TIMEOUT / 2, "the next start waits"
