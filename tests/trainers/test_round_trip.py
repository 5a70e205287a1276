"""A checkpoint of GPT-NeoX goes from 8 ranks to 2, to transformers' Trainer, and back to 8 ranks.

That is the case which the guide of a suite of NeoX models calls unsolved: mismatched hardware, and optimizer states
that transformers can resume. Every program trains on, and has the losses of the run that nothing interrupts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from midstream_core.records import read_json
from support.command_line import midstream
from support.trainers.trainer_processes import Step, finished, needs_trainers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000), needs_trainers]
PROGRAM, RANKS, SAVED, MIDDLE, LAST = "export_deepspeed.py", 8, 3, 13, 30
BOUND = 2e-5  # greatest relative difference of a loss in float32 of another model or another number of processes


def convert(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "midstream_engine.convert", *map(str, arguments)], check=True)


def assert_continues(steps: dict[int, Step], expected: dict[int, Step], first: int) -> None:
    assert sorted(steps) == list(range(first, LAST + 1))
    assert [step.loss for step in steps.values()] == pytest.approx(
        [expected[number].loss for number in steps], rel=BOUND
    )


def test_eight_ranks_two_transformers_and_back(tmp_path: Path) -> None:
    def neox(ranks: int, out: str, *more: str | Path) -> dict[int, Step]:
        given = ["any-ranks", out, "--steps", str(LAST), *map(str, more)]
        return finished(tmp_path, PROGRAM, *given, ranks=ranks)

    two, run, there, again, back = (tmp_path / name for name in ("two", "run", "there", "again", "back"))
    expected = neox(RANKS, "source", "--save-at", str(SAVED), "--batches", "batches.npy")
    assert expected[LAST].loss < 0.9 * expected[SAVED].loss  # the comparison means something
    assert midstream("--reshard", tmp_path / "source", "--processes", "2", "--output", two, "--json").code == 0
    assert_continues(neox(2, "on-two", "--resume", two), expected, SAVED + 1)

    convert(two, run, "--without-data", "--without-reference-losses")
    convert(run, there, "--to", "huggingface-trainer")
    state = there / f"checkpoint-{SAVED}" / "trainer_state.json"
    state.write_text(json.dumps(read_json(str(state)) | {"save_steps": MIDDLE}))
    # Trainer does not load the head of a GPT-NeoX model: the model is loaded from the checkpoint, as the docs say.
    place = str(state.parent)
    steps = finished(
        tmp_path, "train_causal.py", "trainer", "batches.npy", "--model", place, "--resume", place, "--ours"
    )
    assert_continues(steps, expected, SAVED + 1)

    convert(tmp_path / "trainer" / f"checkpoint-{MIDDLE}", again)
    convert(again, back, "--to", "neox", "--processes", str(RANKS), "--pipe-parallel-size", "0")
    assert_continues(neox(RANKS, "on-eight", "--resume", back), expected, MIDDLE + 1)
