"""Where a trainer's metrics are looked for, as its run file describes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from midstream_host.driver.metrics_source import open_source
from midstream_host.driver.run_file import Checkpoints, Metrics, RunFile, World
from midstream_host.driver.trainer_setup import Node, TrainerSetup


@pytest.mark.parametrize(
    "path",
    [
        "{out}/logs/a/m.jsonl", "{out}/**/m.jsonl", "out/logs/*/m.jsonl", "ROOT/out/logs/a/m.jsonl",
        "ROOT/out/*/a/m.jsonl", "ROOT/out/**/[m].jsonl",
    ],
)  # fmt: skip
def test_metrics_are_found_by_any_path(path: str, tmp_path: Path) -> None:
    """An absolute pattern may have wildcards in its folders too."""
    file = tmp_path / "out" / "logs" / "a" / "m.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"step": 3, "loss": 2.0}) + "\n" + json.dumps({"step": 4, "loss": 1.0}) + "\n")
    metrics = Metrics("jsonl", path.replace("ROOT", str(tmp_path)))
    run = RunFile(
        trainer="script", command=["train"], resume=["train"], checkpoints=Checkpoints("glob", "*.pt"), metrics=metrics
    )
    reader = open_source(TrainerSetup(run, World(), Node(), "python", str(tmp_path), ""), "")
    found = [row["global_step"] for _ in range(2) for part in reader.poll() for row in part.rows]
    assert found == [3, 4]
