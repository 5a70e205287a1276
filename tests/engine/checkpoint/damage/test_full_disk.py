"""A disk that is full for some time during training."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from midstream_core import records
from simulators.disks import small_disk
from support.engines.engine_runs import Engine

PATIENCE = 120.0


def _still(path: Path) -> bool:
    """Return whether the file has stopped growing."""
    size = path.stat().st_size
    for _ in range(20):
        time.sleep(0.05)
        if path.stat().st_size != size:
            return False
    return True


@pytest.mark.drawn
@pytest.mark.system
def test_full_disk_pauses_rows_and_loses_none(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64m") as mounted:
        if not mounted:
            pytest.skip("a full disk: mounting a small tmpfs needs root and CAP_SYS_ADMIN (sudo make test)")
        root = tmp_path / "disk"
        flags = ("--trainer.num_train_steps", "1000000", "--trainer.checkpointer.save_interval", "1s")
        with Engine(root, *flags) as engine:
            engine.until(engine.has_trained(1, 5))
            filler = root / "other"
            with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):  # no space left
                while True:
                    file.write(bytes(1 << 20))
            metrics = Path(engine.paths.attempt(1).metrics)
            deadline = time.monotonic() + PATIENCE
            while not _still(metrics):
                assert time.monotonic() < deadline, "rows are appended to a full disk"
            behind = len(records.parse_metrics(metrics.read_text().splitlines()))
            assert engine.process.poll() is None, "the full disk ended the engine"
            filler.unlink()
            engine.until(engine.has_trained(1, behind + 20))
            engine.process.terminate()
            code, log = engine.finish()
        assert code == 0, log
        rows = engine.rows(1)
        assert [row["global_step"] for row in rows] == list(range(len(rows)))
        status = engine.status(1)
        assert status is not None
        assert status.checkpoint is not None
        assert (status.state, status.step) == (records.STOPPED, len(rows))
        assert records.Manifest.read(f"{engine.paths.checkpoint(status.checkpoint)}/{records.MANIFEST}").step == len(
            rows
        )
