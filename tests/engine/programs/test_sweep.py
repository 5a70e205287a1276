"""``benchmarks/engine.py --sweep``: a sweep that is killed continues where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from support.engines.engine_runs import environment
from support.paths import REPOSITORY

BENCHMARKS = REPOSITORY / "benchmarks"
DRIVER = """
import json, os, sys
from pathlib import Path
sys.path[:0] = [{benchmarks!r}, {engine!r}]
from steps import sweep
sweep.SCRIPT = Path({script!r})
points = [sweep.Point(sweep.UPDATES, "gpt2-tiny", batch) for batch in (1, 2, 3)]
say = lambda **row: print(json.dumps(row), flush=True)
sweep.sweep(Path({file!r}), {budget}, iter(points), os.environ, torch=sys.executable, say=say)
"""
# It waits for good at the second point, the first time; the third one fails.
STAND_IN = """
import json, os, sys, time
from pathlib import Path
batch, marker = json.loads(sys.argv[1])["batch"], Path(__file__).with_name("marker")
if batch == 2 and not marker.exists():
    marker.write_text(str(os.getpid()))
    time.sleep(600)
if batch == 3:
    sys.exit("RESOURCE_EXHAUSTED: out of memory")
print(json.dumps({"result": {"step_ms": batch}}))
"""


@pytest.fixture
def driver(tmp_path: Path) -> list[str]:
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    code = DRIVER.format(
        benchmarks=str(BENCHMARKS), engine=str(BENCHMARKS.parent / "engine"), script=str(tmp_path / "stand_in.py"),
        file=str(tmp_path / "table.jsonl"), budget=1e9,
    )  # fmt: skip
    return [sys.executable, "-c", code]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def test_killed_sweep_continues_with_the_point_that_it_was_at(driver: list[str], tmp_path: Path) -> None:
    table, marker = tmp_path / "table.jsonl", tmp_path / "marker"
    with subprocess.Popen(driver, stdout=subprocess.DEVNULL) as first:
        deadline = time.monotonic() + 120
        while not (marker.exists() and marker.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        first.kill()
    os.kill(int(marker.read_text()), signal.SIGKILL)
    assert [row["point"]["batch"] for row in rows_of(table)] == [1]
    with table.open("a") as file:
        file.write('{"point": {"bat')  # a line that was being written
    done = subprocess.run(driver, capture_output=True, text=True, check=True)
    *rows, partial = sorted(table.read_text().split("\n")[:-1], key=len, reverse=True)
    assert partial == '{"point": {"bat'
    found = sorted(map(json.loads, rows), key=lambda row: row["point"]["batch"])
    assert [row["point"]["batch"] for row in found] == [1, 2, 3]
    assert [row.get("result") for row in found] == [{"step_ms": 1}, {"step_ms": 2}, None]
    assert found[2]["error"] == "RESOURCE_EXHAUSTED: out of memory"
    assert json.loads(done.stdout.splitlines()[-1])["points_left"] == 0


def test_budget_leaves_the_rest_to_the_next_sweep(driver: list[str], tmp_path: Path) -> None:
    driver[2] = driver[2].replace("1000000000.0", "0.0")
    done = subprocess.run(driver, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["points_left"] == 3
    assert not (tmp_path / "table.jsonl").exists()


def test_torch_point_without_torch_is_skipped_by_name(driver: list[str], tmp_path: Path) -> None:
    interpreter = tmp_path / "python"  # without any packages
    interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    interpreter.chmod(0o755)
    stand_in = str(tmp_path / "stand_in.py")
    code = driver[2].replace(stand_in, str(BENCHMARKS / "steps" / "sweep_point.py"))
    code = code.replace("sweep.UPDATES", "sweep.TORCH").replace("(1, 2, 3)", "(1,)")
    code = code.replace("torch=sys.executable", f"torch={str(interpreter)!r}")
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    (row,) = rows_of(tmp_path / "table.jsonl")
    assert row["point"]["measures"] == "torch"
    assert row["skipped"] == f"torch is not installed for {interpreter} (hint: --torch PYTHON)"


@pytest.mark.slow
def test_sweep_of_a_tiny_model_runs_on_this_machine(tmp_path: Path) -> None:
    table = tmp_path / "table.jsonl"
    code = f"""
import json, os, sys
from pathlib import Path
sys.path[:0] = [{str(BENCHMARKS)!r}, {str(BENCHMARKS.parent / "engine")!r}]
from steps import sweep
point = sweep.Point(sweep.UPDATES, "gpt2-tiny", 2, "xla", "false")
points = [point, sweep.Point(sweep.SAVE, "gpt2-10m", 2), sweep.Point(sweep.BESIDE, "gpt2-10m", 2)]
sweep.sweep(Path({str(table)!r}), 1e9, iter(points), os.environ, torch=sys.executable, say=lambda **_: None)
"""
    subprocess.run([sys.executable, "-c", code], env=environment(tmp_path, 1), check=True)
    updates, save, beside = (row["result"] for row in rows_of(table))
    assert updates["tokens_per_second"] > 0
    assert updates["loss"] < 7
    assert save["state_bytes"] > 100_000_000
    rates = ("save", "stall", "device_copy_stall", "restore_cached")
    assert min(save[f"{name}_gb_per_second"] for name in rates) > 0
    assert [beside[where]["copied_on_devices"] for where in ("host", "devices")] == [False, True]
    assert min(beside[where]["updates"] for where in ("host", "devices")) >= 1
