"""Losses that a host reads from the metrics of an attempt."""

from __future__ import annotations

import math
from pathlib import Path

from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.migrate.proof import restore_evidence
from midstream_core import records
from midstream_engine.tracking.metrics_file import MetricsFile


def test_null_of_a_loss_or_learning_rate_is_nan(tmp_path: Path) -> None:
    """The engine writes null for NaN; a run may continue past it."""
    paths = records.RunPaths(str(tmp_path), "run").attempt(1)
    Path(paths.dir).mkdir(parents=True)
    file = MetricsFile(paths.metrics)
    for step, loss in enumerate((2.0, math.nan, 1.5)):
        row = {"global_step": step, "train/loss": loss, "optim/learning_rate": loss / 100}
        file.write({**row, "batch_digest": "b", "time": 1.0})
    file.close()
    found = restore_evidence.losses(LocalHost("here", LocalHostConfig(root=str(tmp_path))), "run", 1)
    assert [row["global_step"] for row in found] == [0, 1, 2]
    assert [str(row["train/loss"]) for row in found] == ["2.0", "nan", "1.5"]
    assert [str(row.get("optim/learning_rate")) for row in found] == ["0.02", "nan", "0.015"]
