"""A run of GPT-NeoX from its ``load:`` directory to the real engine's next updates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import neox_data
from engine_runs import environment
from midstream_engine import records
from midstream_engine.convert import main

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 is giving up.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
NAME = "pythia-fp32-z1-dp2"
SOURCE = Path(__file__).parent.parent / "fixtures" / "neox" / NAME
STEP, BATCH, UPDATES = 3, 30, 20


def test_an_adopted_run_trains_on_as_deepspeed_did(tmp_path: Path) -> None:
    """Converted in its host's root: the witness holds, the samples are NeoX's, the losses DeepSpeed's, on 2 devices."""
    expected = json.loads((SOURCE / "expected.json").read_text())
    tokens = np.asarray(expected["tokens"], np.int64).reshape(-1, 13)
    rows = np.zeros(((UPDATES - STEP) * BATCH, 13), np.int64)
    rows[: len(tokens)] = tokens
    prefix = neox_data.write(tmp_path / "text", rows, UPDATES * BATCH)
    root = tmp_path / "root"
    arguments = [SOURCE, tmp_path / "building", "--data", prefix, "--run-id", "r", "--root", root]
    assert main([str(argument) for argument in arguments]) == 0
    paths = records.RunPaths(str(root), "r")
    assert not (tmp_path / "building").exists()

    command = [sys.executable, "-m", "midstream_engine.train", "--config_path", paths.config, "--trainer.id", "r"]
    command += ["--trainer.num_train_steps", str(UPDATES), "--trainer.jax_config", "{}"]
    with subprocess.Popen(
        command, env=environment(root, 2), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as engine:
        log, _ = engine.communicate(timeout=250)
    assert engine.returncode == 0, log[-3000:]
    evidence = json.loads(Path(paths.attempt(2).dir, "restore.json").read_text())
    assert evidence["step"] == STEP
    assert len(evidence["witness_recorded"]) == 8
    assert evidence["witness_error"] < 1e-4
    assert evidence["batch_digest"] == evidence["recorded_batch_digest"]
    assert evidence["root_digest"] == evidence["expected_root_digest"]
    found = records.parse_metrics(Path(paths.attempt(2).metrics).read_text().splitlines())
    losses = {row["global_step"]: row["train/loss"] for row in found if "train/loss" in row}
    next_ones = [losses[STEP + number] for number in range(len(expected["losses"]))]
    np.testing.assert_allclose(next_ones, expected["losses"], rtol=1e-4)
