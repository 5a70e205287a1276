"""DeepSpeed loads what `--reshard` wrote with its ordinary `load_checkpoint`, and trains on.

Another number of processes sums gradients in another order, so losses are compared bit by bit with DeepSpeed at that
number from its own ``ds_to_universal``, and within a bound with the run that nothing interrupts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from midstream_host.driver.reshard.reshard import reshard
from support.command_line import midstream
from support.trainers.trainer_processes import PYTHON, Step, finished, needs_trainers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), needs_trainers]
PROGRAM = "reshard_deepspeed.py"
SAVED, LAST = 10, 30
FP32, BF16 = 1e-6, 5e-3  # greatest relative difference of a loss within 20 steps, by the type of the weights
CASES = [
    pytest.param("--stage 1 --precision bf16", BF16, id="zero1-bf16"),
    pytest.param("--stage 1 --precision bf16 --accumulate fp32", BF16, id="bf16-optimizer"),
    pytest.param("--stage 2", FP32, id="zero2-fp32"),
    pytest.param("--stage 2 --precision fp16 --groups 1", BF16, id="zero2-fp16"),
    # Of ZeRO 3 universal checkpoints are right with one group in one subgroup alone: findings/.
    pytest.param("--stage 3 --groups 1", FP32, id="zero3-fp32"),
    pytest.param("--stage 3 --precision bf16 --groups 1", BF16, id="zero3-bf16"),
]


def train(directory: Path, out: str, ranks: int, options: str, *more: str) -> dict[int, Step]:
    """Train to the last step; return the steps of the first rank."""
    return finished(directory, PROGRAM, out, "--steps", str(LAST), *options.split(), *more, ranks=ranks)


def saved(directory: Path, ranks: int, options: str) -> tuple[Path, dict[int, Step]]:
    """Train without a pause; return a directory with the checkpoint of step 10, and all steps."""
    steps = train(directory, "source", ranks, options, "--save-every", str(SAVED))
    tag = directory / "ten" / f"global_step{SAVED}"
    shutil.copytree(directory / "source" / tag.name, tag)
    (tag.parent / "latest").write_text(tag.name)
    return tag.parent, steps


def universal(directory: Path, checkpoint: Path) -> Path:
    """Return the directory of what DeepSpeed's own converter writes."""
    folder = directory / "universal" / f"global_step{SAVED}"
    subprocess.run(
        [PYTHON, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", checkpoint / folder.name,
         "--output_folder", folder, "--inject_missing_state", "--num_extract_workers", "1", "--num_merge_workers", "1"],
        check=True, capture_output=True, env={**os.environ, "DS_ACCELERATOR": "cpu"},
    )  # fmt: skip
    return folder.parent


def differences(steps: dict[int, Step], expected: dict[int, Step]) -> float:
    """Return the greatest relative difference of a loss; learning rates have to be equal."""
    assert sorted(steps) == list(range(SAVED + 1, LAST + 1))
    assert all(steps[number].batch[:2] == expected[number].batch[:2] for number in steps)
    return max(abs(step.loss - expected[number].loss) / expected[number].loss for number, step in steps.items())


@pytest.mark.parametrize(("options", "bound"), CASES)
def test_deepspeed_trains_on_with_another_number_of_processes(tmp_path: Path, options: str, bound: float) -> None:
    checkpoint, expected = saved(tmp_path, 2, options)
    theirs = universal(tmp_path, checkpoint)
    for ranks in (1, 3):
        there = tmp_path / f"for-{ranks}"
        done = midstream("--reshard", checkpoint, "--processes", str(ranks), "--output", there, "--json")
        assert done.code == 0, done.stderr
        steps = train(tmp_path, f"out-{ranks}", ranks, options, "--save-every", "1000", "--resume", str(there))
        assert differences(steps, expected) <= bound
        other = train(
            tmp_path, f"their-{ranks}", ranks, options, "--save-every", "1000", "--resume", str(theirs), "--universal"
        )
        assert {number: step.loss for number, step in steps.items()} == {
            number: step.loss for number, step in other.items()
        }


@pytest.mark.parametrize("options", ["--stage 2 --precision bf16 --round-robin", "--stage 3 --sub-group-size 40"])
def test_the_same_number_continues_bit_by_bit(tmp_path: Path, options: str) -> None:
    """To another number of processes and back: nothing may be lost on the way."""
    checkpoint, expected = saved(tmp_path, 2, options)
    tag = f"global_step{SAVED}"
    for name, ranks in (("eight", 8), ("back", 2)):
        (tmp_path / name).mkdir()
        reshard(str((checkpoint if name == "eight" else tmp_path / "eight") / tag), str(tmp_path / name / tag), ranks)
    (tmp_path / "back" / "latest").write_text(tag)
    steps = train(tmp_path, "out", 2, options, "--save-every", "1000", "--resume", str(tmp_path / "back"))
    assert differences(steps, expected) == 0.0


@pytest.mark.parametrize(
    ("options", "bound"),
    [("--stage 3 --precision bf16 --sub-group-size 40", BF16), ("--stage 2 --precision fp16 --round-robin", BF16)],
)
def test_groups_keep_their_settings(tmp_path: Path, options: str, bound: float) -> None:
    """Where DeepSpeed's own universal checkpoints do not: beside the run that nothing interrupts."""
    checkpoint, expected = saved(tmp_path, 2, options)
    done = midstream("--reshard", checkpoint, "--processes", "3", "--output", tmp_path / "three", "--json")
    assert done.code == 0, done.stderr
    steps = train(tmp_path, "out", 3, options, "--save-every", "1000", "--resume", str(tmp_path / "three"))
    assert differences(steps, expected) <= bound


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_without_zero_each_process_has_everything(tmp_path: Path, precision: str) -> None:
    options = f"--stage 0 --precision {precision}"
    checkpoint, expected = saved(tmp_path, 2, options)
    done = midstream("--reshard", checkpoint, "--processes", "3", "--output", tmp_path / "three", "--json")
    assert done.code == 0, done.stderr
    steps = train(tmp_path, "out", 3, options, "--save-every", "1000", "--resume", str(tmp_path / "three"))
    assert differences(steps, expected) <= (FP32 if precision == "fp32" else BF16)
