"""Rows of the tables of docs/reference/trainers.md, seen with the libraries that locks/trainers.txt pins."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from midstream_host.driver.checkpoints.checkpoint_finder import saved_state
from simulators.sshd import free_port
from support.trainers.trainer_processes import PROGRAMS, PYTHON, needs_trainers

pytestmark = [pytest.mark.slow, needs_trainers]
ORDER = list(range(24))


def found(directory: Path, case: str, *arguments: str, ranks: int = 1, launched: bool = True) -> list[Any]:
    """Run a case; return what each rank prints, in their order."""
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--master_port", str(free_port())]
    command = [PYTHON, "-W", "ignore", *(launcher if ranks > 1 and launched else [])]
    done = subprocess.run(
        [*command, str(PROGRAMS / "library_cases.py"), case, *arguments],
        cwd=directory, capture_output=True, text=True, timeout=400,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"},
    )  # fmt: skip
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    assert len(lines) == ranks, done.stdout[-2000:] + done.stderr[-4000:]
    return [json.loads(line.split(" ", 2)[2]) for line in lines]


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


@pytest.mark.parametrize(("step", "position", "same"), [(8, "recomputed", True), (14, "none", False)])
def test_huggingface_begins_a_later_pass_of_a_stream_again(step: int, position: str, same: bool, tmp_path) -> None:
    [straight] = found(tmp_path, "huggingface", "stream", "out")
    checkpoint = tmp_path / "out" / f"checkpoint-{step}"
    assert saved_state("huggingface", str(checkpoint)).data_position == position
    [resumed] = found(tmp_path, "huggingface", "stream", "again", str(checkpoint))
    assert (resumed == straight[step:]) is same
    if not same:
        assert resumed[0] == straight[0] == [0, 1]


@pytest.mark.parametrize(
    ("kind", "ranks", "same"), [("sized", 2, True), ("dispatched", 1, True), ("dispatched", 2, False)]
)
def test_huggingface_repeats_dispatched_batches(kind: str, ranks: int, same: bool, tmp_path: Path) -> None:
    straight = found(tmp_path, "huggingface", kind, "out", ranks=ranks)
    checkpoint = shutil.copytree(tmp_path / "out" / "checkpoint-4", tmp_path / "kept" / "checkpoint-4")
    resumed = found(tmp_path, "huggingface", kind, "again", str(checkpoint), ranks=ranks)
    assert ([each[:2] for each in resumed] == [each[4:6] for each in straight]) is same
    assert saved_state("huggingface", str(checkpoint)).data_position == ("recomputed" if same else "none")


def test_accelerates_prepared_scheduler_steps_once_a_process(tmp_path: Path) -> None:
    [one] = found(tmp_path, "schedule")
    assert one == {"prepared": [0.99, 0.98, 0.97], "plain": [0.99, 0.98, 0.97]}
    two = found(tmp_path, "schedule", ranks=2)
    assert two == [{"prepared": [0.98, 0.96, 0.94], "plain": [0.99, 0.98, 0.97]}] * 2


@pytest.mark.parametrize(("continued", "expected"), [("no", [2, True]), ("yes", [5, False])])
def test_accelerates_automatic_names_begin_again(continued: str, expected: list[Any], tmp_path: Path) -> None:
    assert found(tmp_path, "names", str(tmp_path / "out"), continued) == [expected]


def test_lightning_shuffles_a_sequential_loader_on_two_processes(tmp_path: Path) -> None:
    [one] = found(tmp_path, "lightning", "1")
    assert flat(one) == ORDER[:8]
    two = found(tmp_path, "lightning", "2", ranks=2)
    assert flat(two[0]) + flat(two[1]) != ORDER[:16:2] + ORDER[1:16:2]


@pytest.mark.parametrize(("before", "after"), [("2", "1"), ("1", "2")])
def test_streams_of_datasets_are_of_their_number_of_processes(before: str, after: str, tmp_path: Path) -> None:
    [[read, rest]] = found(tmp_path, "stream", before, after)
    assert sorted(read + rest) != ORDER


def test_a_shuffle_buffer_is_lost(tmp_path: Path) -> None:
    [[read, rest]] = found(tmp_path, "buffer")
    assert len(set(read) | set(rest)) < 1000
