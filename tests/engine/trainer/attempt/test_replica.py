"""A replica replays the run's batches without effect, and becomes the run when promoted."""

from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midstream_engine import records
from midstream_engine.checkpoint.saving.snapshot import Copy, snapshot
from midstream_engine.errors import EngineError
from midstream_engine.trainer.attempt import parameter_drift
from midstream_engine.trainer.attempt.parameter_drift import LateMeasurement
from midstream_engine.trainer.attempt.replica import Replay
from midstream_engine.trainer.loop.finite_check import FiniteCheck
from midstream_engine.trainer.runtime.attempt_record import open_attempt
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
    replica: Any = Replay.__new__(Replay)
    replica.step = 80
    replica._promotion = records.Command(records.PROMOTE, epoch=2, step=80)
    replica._finite = FiniteCheck.__new__(FiniteCheck)
    replica._finite.reason = "NaN in model/head, since step 79"
    with pytest.raises(EngineError, match="not promoted: its state is not finite: NaN in model/head, since step 79"):
        replica._promoted()


def test_end_of_an_attempt_ends_the_wait_for_a_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    attempt = open_attempt(str(tmp_path), "r", {})
    measurement = LateMeasurement(attempt, "step-7-a001", [])
    measurement.close()
    assert not measurement._thread.is_alive()
    assert "the attempt ends before step-7-a001 arrives" in caplog.text


def test_measurement_that_takes_too_long_ends_with_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its thread would write while the process exits."""
    attempt = open_attempt(str(tmp_path), "r", {})
    array = np.ones((512, 2048), np.float32)
    save(attempt.paths, {"model": {"wide": array}})
    kept = snapshot({"model": {"wide": array}}, Copy.HOST)
    monkeypatch.setattr(parameter_drift, "END_TIMEOUT", 0.0)
    reading, squares = threading.Event(), parameter_drift._squares

    def slow(*arrays: np.ndarray) -> tuple[float, float]:
        reading.set()
        assert measurement._given_up.wait(60)
        return squares(*arrays)

    monkeypatch.setattr(parameter_drift, "_squares", slow)
    measurement = LateMeasurement(attempt, "step-7-a001", kept)
    assert reading.wait(60)
    measurement.close()
    assert not measurement._thread.is_alive()
    assert "parameter drift not measured: the attempt ends" in caplog.text
    assert not Path(attempt.files.parameter_drift).exists()
