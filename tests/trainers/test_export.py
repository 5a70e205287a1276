"""DeepSpeed loads what an export wrote with its ordinary `load_checkpoint`, and trains on.

The state came from DeepSpeed, through the engine's format. On as many processes the losses of 20 steps are those of the
run that nothing interrupts, bit by bit; transformers' model sums in another order.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from midstream_core.learning_rate import rate_at, rate_parts, rate_settings
from support.command_line import midstream
from support.trainers import continued_runs
from support.trainers.trainer_processes import Step, finished, needs_trainers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), needs_trainers]
PROGRAM, SAVED, LAST = "export_deepspeed.py", 3, 23
BOUND = 2e-5  # greatest relative difference of a loss in float32 within 20 steps of another model or engine
CASES = {
    "pythia-bf16": 2,
    "llama-fp32-pipeline": 2,
    "tied-fp32-pipeline": 1,
    "pythia-fp32": 2,
    "plain-fp32": 2,
}  # with processes


def convert(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "midstream_engine.convert", *map(str, arguments)], check=True)


def source_of(folder: Path, case: str) -> tuple[dict[int, Step], Path]:
    """Train without a pause; return the steps after the checkpoint, and an import of that."""
    steps = finished(folder, PROGRAM, case, "source", "--steps", str(LAST), "--save-at", str(SAVED), ranks=CASES[case])
    present = ("--gqa-layout", "blocked", "--rms-epsilon", "inside")
    convert(folder / "source", folder / "run", "--without-data", "--without-reference-losses", *present)
    return {number: step for number, step in steps.items() if number > SAVED}, folder / "run"


def exported(run: Path, form: str, *options: str) -> Path:
    target = run.parent / f"to-{form}"
    convert(run, target, "--to", form, *options)
    return target


@pytest.mark.parametrize("case", CASES)
def test_an_export_to_neox_continues_bit_by_bit(tmp_path: Path, case: str) -> None:
    expected, run = source_of(tmp_path, case)
    stages = str(int("pipeline" in case))
    there = exported(run, "neox", "--processes", str(CASES[case]), "--pipe-parallel-size", stages,
                     "--zero-stage", str(int(case != "plain-fp32")))  # fmt: skip
    steps = finished(tmp_path, PROGRAM, case, "out", "--steps", str(LAST), "--resume", str(there), ranks=CASES[case])
    assert steps == expected


def test_transformers_continue_within_a_bound(tmp_path: Path) -> None:
    expected, run = source_of(tmp_path, "pythia-fp32")
    for form, ranks, options in (("deepspeed", 2, ["--processes", "2"]), ("deepspeed-universal", 3, [])):
        there = exported(run, form, *options)
        more = ["--universal"] if form == "deepspeed-universal" else []
        steps = finished(tmp_path, PROGRAM, "transformers", form, "--steps", str(LAST), "--resume", str(there), *more,
                         ranks=ranks)  # fmt: skip
        assert steps.keys() == expected.keys()
        assert [step.loss for step in steps.values()] == pytest.approx(
            [step.loss for step in expected.values()], rel=BOUND
        )


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_deepspeed_continues_a_run_of_the_engine(tmp_path: Path, model: str) -> None:
    """On two processes, resharded to one, and on three from a universal checkpoint."""
    config = continued_runs.configuration(tmp_path, model, "cosine", batch=6)
    losses, batches = continued_runs.trained(tmp_path, config, batch=6)
    parts = rate_parts(rate_settings({"learning_rate": 5e-3, **continued_runs.SCHEDULES["cosine"]}), len(batches))
    (tmp_path / "rates.json").write_text(json.dumps([rate_at(parts, step) for step in range(len(batches))]))
    np.save(tmp_path / "batches.npy", batches)
    checkpoint = continued_runs.checkpoint(tmp_path)
    two, universal = (exported(checkpoint, form, *options) for form, options in (
        ("deepspeed", ["--processes", "2"]), ("deepspeed-universal", [])))  # fmt: skip
    one = tmp_path / "one"
    assert midstream("--reshard", two, "--processes", "1", "--output", one, "--json").code == 0
    for file in two.glob("*.json"):
        shutil.copy(file, one)
    for there, ranks, more in ((two, 2, []), (one, 1, []), (universal, 3, ["--universal"])):
        steps = finished(tmp_path, "continue_deepspeed.py", str(there), "batches.npy", "rates.json", *more, ranks=ranks)
        assert sorted(steps) == list(range(continued_runs.SAVED + 1, continued_runs.LAST + 1))
        found = [step.loss for step in steps.values()]
        assert found == pytest.approx([losses[number] for number in steps], rel=BOUND), there
    assert losses[continued_runs.LAST] < 0.9 * losses[continued_runs.SAVED]  # the comparison means something
