"""A rehearsal on several devices compiles the programs of the run on them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.engines.engine_process import train_all
from support.engines.engine_runs import environment
from support.paths import CONFIGS

pytestmark = pytest.mark.drawn

DEVICES = 4


def compiled(root: Path) -> set[str]:
    """The programs in the compile cache, without the times of their last use."""
    found = (root / "compile-cache").rglob("*")
    return {str(path.relative_to(root)) for path in found if path.is_file() and not path.name.endswith("-atime")}


def test_rehearsal_on_mesh_compiles_all_programs_of_run(tmp_path: Path) -> None:
    """2 x 2 devices, with sharded parameters and one sharded model axis."""
    flags = [
        "--config_path", str(CONFIGS / "gpt2_tiny.yaml"), "--trainer.id", "meshed",
        "--trainer.num_train_steps", "2", "--trainer.train_batch_size", "8", "--trainer.model_axis_size", "2",
        "--trainer.tensor_parallel_axes", "[mlp, heads]",
        "--data.train_urls", "stdlib:json/*.py", "--model.seq_len", "16",
        "--model.hidden_dim", "16", "--model.num_layers", "1", "--model.num_heads", "2",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "midstream_engine.rehearse", *flags],
        env=environment(tmp_path, DEVICES), capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (step, *_) = json.loads(done.stdout)["programs"]
    assert step["batch"] == 8
    rehearsed = compiled(tmp_path)
    assert len(rehearsed) >= 3
    codes, log = train_all(tmp_path, [flags], devices=DEVICES)
    assert codes == [0], log
    assert compiled(tmp_path) == rehearsed
