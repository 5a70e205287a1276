"""A run that has done all its steps is not started again: its trainer may do one more step."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midstream_core import records
from support.paths import FIXTURES
from support.trainers.script_trainer import write_script
from support.trainers.trainer_drivers import Driver, drivers

# It writes what transformers' Trainer wrote in its last step, and another step where it is started again.
TRAIN = """
import json, os, shutil, sys
out, fixture = sys.argv[1:]
started = os.path.exists(os.path.join(out, "started"))
open(os.path.join(out, "started"), "a").write("x")
with open(os.path.join(out, "metrics.jsonl"), "a") as file:
    for step in range(6, 7) if started else range(6):
        file.write(json.dumps({"step": step, "loss": 1.0}) + "\\n")
shutil.copytree(fixture, os.path.join(out, "checkpoint-6"), dirs_exist_ok=True)
"""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    with drivers(tmp_path) as factory:
        yield factory


def _finished(make: Callable[..., Driver], directory: Path, steps: int) -> Driver:
    """Return a run of the Trainer's files that has ended by itself at step 6."""
    file = write_script(directory)
    (directory / "train.py").write_text(TRAIN)
    text = file.read_text().replace('{rule: glob, pattern: "ckpt-*.json"}', "{rule: huggingface}")
    fixture = FIXTURES / "trainers/huggingface/checkpoint-6"
    text = re.sub(r"(?m)^command: .*$", f'command: "{{python}} train.py {{out}} {fixture}"', text)
    text = re.sub(r"(?m)^steps: .*$", f"steps: {steps}" if steps else "", text)
    file.write_text(re.sub(r"resume: >-\n.*\n", f'resume: "{{python}} train.py {{out}} {fixture}"\n', text))
    driver = make(file)
    driver.start("--devices", "2")
    assert driver.ended() == records.EXIT_DONE
    assert driver.checkpoints() == ["step-6-a001"]
    return driver


@pytest.mark.parametrize("steps", [0, 6])
def test_complete_run_is_not_started_again(make: Callable[..., Driver], tmp_path: Path, steps: int) -> None:
    driver = _finished(make, tmp_path / "code", steps)
    assert driver.status.state == records.FINISHED
    driver.start("--devices", "2")
    assert driver.ended() == records.EXIT_DONE
    assert (driver.status.state, driver.status.step) == (records.FINISHED, 6)
    assert driver.status.message.startswith("the run is complete, step 6")
    assert driver.rows() == []
    out = Path(driver.paths.dir, "work", "out")
    assert not (out / "started").exists()
    state = json.loads((out / "checkpoint-6" / "trainer_state.json").read_text())
    assert state["global_step"] == state["max_steps"] == 6  # as it was placed
    restore = records.Restore.read(driver.files.restore)
    assert restore.root_digest == restore.expected_root_digest


def test_run_that_is_prolonged_is_started_again(make: Callable[..., Driver], tmp_path: Path) -> None:
    driver = _finished(make, tmp_path / "code", 8)
    driver.start("--devices", "2")
    driver.ended()
    assert Path(driver.paths.dir, "work", "out", "started").exists()
