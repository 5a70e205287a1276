"""``benchmarks/engine.py --sweep``: its point of torch, from the engine's initial parameters on the same batches."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.engines.engine_runs import environment
from support.paths import REPOSITORY
from support.trainers.trainer_processes import PYTHON, needs_trainers

pytestmark = [pytest.mark.slow, needs_trainers]
BENCHMARKS = REPOSITORY / "benchmarks"
SHAPE = "gpt2-tiny"
LIST_POINTS = f"""
import dataclasses, json, sys
sys.path[:0] = [{str(BENCHMARKS)!r}]
from steps import sweep
for point in sweep.points([{SHAPE!r}], "cpu"):
    print(json.dumps(dataclasses.asdict(point)))
"""


def test_torch_point_has_the_losses_of_the_engine(tmp_path: Path) -> None:
    listed = subprocess.run([sys.executable, "-c", LIST_POINTS], capture_output=True, text=True, check=True).stdout
    points: list[dict[str, Any]] = [json.loads(line) for line in listed.splitlines()]
    (torch,) = [point for point in points if point["measures"] == "torch"]
    (engine,) = [point for point in points if {**point, "measures": "torch"} == torch and point is not torch]
    table = tmp_path / "table.jsonl"
    measured_before = [point for point in points if point not in (torch, engine)]
    table.write_text("".join(json.dumps({"point": point, "result": {}}) + "\n" for point in measured_before))
    command = [
        sys.executable, str(BENCHMARKS / "engine.py"), "--shape", SHAPE, "--sweep", str(table), "--budget", "600",
        "--torch", PYTHON,
    ]  # fmt: skip
    done = subprocess.run(command, env=environment(tmp_path, 1), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["points_left"] == 0
    rows = [json.loads(line) for line in table.read_text().splitlines()][len(measured_before) :]
    assert [row["point"] for row in rows] == [engine, torch], "in the order of their use"
    ours, theirs = (row["result"] for row in rows)
    assert set(theirs["versions"]) == {"torch"}
    assert 0 < theirs["least_ms"] <= theirs["step_ms"]
    assert theirs["tokens_per_second"] > 0
    assert theirs["ready_seconds"] > 0
    assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-4)
