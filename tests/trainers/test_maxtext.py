"""A run of MaxText, with a tiny model, is launched and moved, beside one that nothing interrupts."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from simulators.sshd import Lab
from support.command_line import Run, midstream
from support.trainers.trainer_processes import MAXTEXT_PYTHON, needs_maxtext

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), needs_maxtext]
PATIENCE = 400.0  # seconds: it imports TensorFlow, and compiles
STEPS = 200000  # more than a test trains; the schedule follows from it
SETTINGS = (
    "run_name=r hardware=cpu dataset_type=synthetic async_checkpointing=false enable_checkpointing=true "
    "base_emb_dim=64 base_num_query_heads=2 base_num_kv_heads=2 base_mlp_dim=128 base_num_decoder_layers=2 head_dim=32 "
    "vocab_size=256 max_target_length=32 per_device_batch_size=2 attention=dot_product enable_tensorboard=false "
    "enable_goodput_recording=false monitor_goodput=false skip_jax_distributed_system=true log_config=false"
)
# Without the flags of the lab's hosts: jax 0.12 ends at one that it does not know.
VARIABLES = {"JAX_PLATFORMS": "cpu", "DECOUPLE_GCLOUD": "TRUE", "XLA_FLAGS": ""}


def command(steps: int, period: int) -> str:
    """Return MaxText's command line; its schedule is that of STEPS steps."""
    return (
        f"-m maxtext.trainers.pre_train.train {{configs}}/base.yml base_output_directory={{out}} "
        f"metrics_file={{out}}/metrics.jsonl steps={steps} learning_rate_schedule_steps={STEPS} "
        f"checkpoint_period={period} {SETTINGS}"
    )


def configs() -> str:
    """Return the folder of MaxText's own configs."""
    words = "import importlib.util as u; print(u.find_spec('maxtext').submodule_search_locations[0])"
    return subprocess.check_output([MAXTEXT_PYTHON, "-c", words], text=True).strip() + "/configs"


@pytest.mark.parametrize("mode", ["cold", "warm"])
def test_maxtext_is_moved(lab: Lab, runs: Callable[..., Run], tmp_path: Path, mode: str) -> None:
    here, there = lab.host("here", devices=1), lab.host("there", devices=1)
    fleet = lab.fleet_file(here=here.config, there=there.config)
    folder = configs()
    line = "{python} " + command(STEPS, 1000).replace("{configs}", folder)
    file = tmp_path / "run.yaml"
    described = {"python": MAXTEXT_PYTHON, "variables": VARIABLES}
    file.write_text(
        f"trainer: maxtext\ncommand: {json.dumps(line)}\nsteps: {STEPS}\nenvironment: {json.dumps(described)}\n"
    )
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint", PATIENCE)
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--mode", mode, "--yes", "--healthy-steps", "3")
    moved = midstream(*words, "--json", timeout=900)
    assert moved.code == 0, moved.stderr
    claims = {claim["name"]: claim for claim in moved.result["certificate"]["claims"]}
    assert all(claims[name]["verdict"] == "verified" for name in ("state", "step", "learning rate", "environment"))
    if mode == "warm":  # the rehearsal trained from an earlier checkpoint, with the same losses
        assert claims["replay overlap"]["verdict"] == "verified", claims["replay overlap"]
        assert "equal bit by bit" in claims["replay overlap"]["statement"], claims["replay overlap"]
    assert not source.running
    target.kill()
    rows = target.spliced()
    assert sorted(rows) == list(range(len(rows)))

    straight = tmp_path / "straight"
    straight.mkdir()
    line = command(len(rows), STEPS).replace("{configs}", folder).replace("{out}", str(straight))
    environment = {**os.environ, **here.config.env, **VARIABLES}
    subprocess.run([MAXTEXT_PYTHON, *line.split()], env=environment, check=True, capture_output=True)
    expected = [json.loads(row) for row in (straight / "metrics.jsonl").read_text().splitlines()]
    assert len(expected) == len(rows)
    assert [rows[int(each["step"])]["train/loss"] for each in expected] == [each["learning/loss"] for each in expected]
