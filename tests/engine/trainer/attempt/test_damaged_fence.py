"""An unreadable fence: training continues, and nothing is committed until it can be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from midstream_core import records
from support.engines.engine_runs import Engine


def _complete(engine: Engine) -> set[str]:
    """Names of the checkpoints that have a manifest."""
    return {path.parent.name for path in Path(engine.paths.checkpoints).glob(f"step-*/{records.MANIFEST}")}


@pytest.mark.drawn
def test_damaged_fence_pauses_commits_until_readable(tmp_path: Path) -> None:
    every = ("--trainer.checkpointer.save_interval", "100ms", "--trainer.checkpointer.keep", "[{every: 5}]")
    with Engine(tmp_path, "--trainer.num_train_steps", "1000000", *every) as engine:
        engine.until(lambda: _complete(engine) or None)
        fence = Path(engine.paths.fence)
        content = fence.read_bytes()
        records.write_bytes(str(fence), content[: len(content) // 2])

        def said() -> records.Status | None:
            status = engine.status(1)
            return status if status is not None and "fence.json: not JSON" in status.message else None

        status = engine.until(said)
        assert "nothing is committed until the fence can be read" in status.message
        # A save that was in flight has ended by now, well or not: a step later none begins.
        engine.until(engine.has_trained(1, status.step + 2))
        before = _complete(engine)
        engine.until(engine.has_trained(1, status.step + 30))  # six permanent checkpoints were due
        assert _complete(engine) <= before, "it has committed what no fence accepts"
        assert engine.process.poll() is None

        records.write_bytes(str(fence), content)
        fresh = engine.until(lambda: {name for name in _complete(engine) if _step(name) > status.step + 30} or None)
        assert fresh
        reported = engine.until(lambda: status if (status := engine.status(1)) and not status.message else None)
        assert reported.state in (records.TRAINING, records.SAVING)
        engine.process.terminate()
        code, log = engine.finish()
    assert code == 0, log
    assert "the fence can be read again: ownership 1" in log


def _step(name: str) -> int:
    parsed = records.parse_checkpoint_name(name)
    assert parsed is not None
    return parsed[0]


@pytest.mark.drawn
def test_damaged_fence_delays_exit_after_last_step(tmp_path: Path) -> None:
    flags = ("--trainer.num_train_steps", "40", "--trainer.checkpointer.save_interval", "1h")
    with Engine(tmp_path, *flags) as engine:
        engine.until(engine.has_trained(1, 1))
        fence = Path(engine.paths.fence)
        content = fence.read_bytes()
        fence.unlink()
        os.mkfifo(fence)  # it must not be waited for, either
        engine.until(engine.has_trained(1, 39))
        engine.until(lambda: ((status := engine.status(1)) and "not a regular file" in status.message) or None)
        assert _complete(engine) == set()
        fence.unlink()
        records.write_bytes(str(fence), content)
        code, log = engine.finish()
    assert code == 0, log
    status = engine.status(1)
    assert status is not None
    assert (status.state, status.checkpoint) == (records.FINISHED, "step-40-a001")
