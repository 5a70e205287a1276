"""A run is migrated from the accelerator to CPU devices and back, with certificates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from midstream.fleet.fleet import LocalHostConfig
from midstream_core import records
from simulators.sshd import Lab
from support.command_line import TINY, Run, midstream, step_of

# Other programs use the accelerator too, this process among them.
SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
TRAINING = ("--trainer.num_train_steps", "100000", "--trainer.checkpointer.keep", "[{every: 20, until: 60}]")


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize(("kind", "mode"), [("gpt2", "warm"), ("llama", "cold")])
def test_run_moves_to_cpus_and_back(lab: Lab, runs: Callable[..., Run], tmp_path: Path, kind: str, mode: str) -> None:
    """A cold move goes on from an older checkpoint, so that both sides did the same steps."""
    there = LocalHostConfig(root=str(tmp_path / "accelerator"), env=SHARED)
    here = lab.local("cpus", devices=2)
    fleet = lab.fleet_file(accelerator=there, cpus=here)
    config = TINY.with_name(f"{kind}_tiny.yaml")
    launched = midstream("--fleet", fleet, "--launch", config, "--on", "accelerator", "--run-id", "r", "--", *TRAINING)
    assert launched.code == 0, launched.stderr
    source, target = runs(there.root, "r"), runs(here.root, "r")

    def move(run: Run, host: str, step: int) -> None:
        run.wait(lambda run: any(step_of(name) >= step for name in run.checkpoints()), "a checkpoint")
        run.wait_step(step + 8)
        saved = ["--checkpoint", str(step), "--yes"] if mode == "cold" else []
        moved = midstream("--fleet", fleet, "--migrate", "r", "--to", host, "--mode", mode, *saved, "--json")
        assert moved.code == 0, moved.stderr
        claims = {
            claim["name"]: (claim["verdict"], claim["statement"]) for claim in moved.result["certificate"]["claims"]
        }
        print(host, mode, claims)  # with -rP: how far the losses differ
        for name in ("state", "data", "reference losses", *(["continuity"] if mode == "cold" else [])):
            assert claims[name][0] == "verified", claims

    assert device_kind(source) == jax.devices()[0].device_kind
    move(source, "cpus", 20)
    assert device_kind(target) == "cpu"
    move(target, "accelerator", 40)
    assert device_kind(source) == jax.devices()[0].device_kind
    rows = source.spliced()
    assert sorted(rows) == list(range(len(rows))), "each step once"


def device_kind(run: Run) -> str:
    """Return jax's name of the devices of the newest attempt."""
    return records.Lineage.read(run.paths.lineage).entries[-1].device_kind
