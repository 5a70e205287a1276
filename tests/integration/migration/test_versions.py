"""A migration between two sets of packages: the plan and the certificate name what changes."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable

import pytest

from simulators.sshd import Lab
from support.command_line import SLOWER, TINY, Run, midstream
from support.paths import REPOSITORY

NEWEST = REPOSITORY / ".venv/newest/bin/python"
TRAINING = (*SLOWER, "--trainer.num_train_steps", "24", "--trainer.checkpointer.keep", "[{every: 8}]")
NAMED = "import jax, jaxlib; print(jax.__version__, jaxlib.__version__)"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not NEWEST.exists(), reason="needs .venv/newest: make newest"),
]


def test_migration_between_versions_of_jax_names_them(lab: Lab, runs: Callable[..., Run]) -> None:
    """The state is the same bit by bit; later losses are near, and the certificate says what has changed."""
    ours = lab.local("ours", devices=2)
    plain = lab.local("newest", devices=2)
    flags = plain.env["XLA_FLAGS"].replace("--xla_cpu_use_fusion_emitters=false", "")  # a newer XLA ends at it
    newest = dataclasses.replace(plain, python=str(NEWEST), env={**plain.env, "XLA_FLAGS": flags})
    fleet = lab.fleet_file(ours=ours, newest=newest)
    found = subprocess.run([NEWEST, "-c", NAMED], capture_output=True, text=True, check=True)
    version, library = found.stdout.split()
    assert midstream("--fleet", fleet, "--launch", TINY, "--on", "ours", "--run-id", "r", "--", *TRAINING).code == 0
    source, target = runs(ours.root, "r"), runs(newest.root, "r")
    source.wait(lambda run: (status := run.status()) is not None and status.state == "finished", "the end")
    arguments = ("--fleet", fleet, "--migrate", "r", "--to", "newest", "--checkpoint", "8", "--mode", "cold", "--yes")
    shown = midstream(*arguments, "--dry-run")
    assert f"jax 0.10.2 -> {version}" in shown.stdout
    assert "losses may differ from the source's in their last bits" in shown.stdout
    moved = midstream(*arguments, "--certify-steps", "8", "--healthy-steps", "8", "--json")
    assert moved.code == 0, moved.stderr
    claims = {claim["name"]: claim for claim in moved.result["certificate"]["claims"]}
    assert {name: claim["verdict"] for name, claim in claims.items()} == {
        "state": "verified", "data": "verified", "reference losses": "verified", "continuity": "verified",
        "environment": "failed",
    }  # fmt: skip
    assert f"jaxlib 0.10.2 -> {library}" in claims["environment"]["statement"]
    assert moved.result["certificate"]["valid"]
    assert target.manifest("step-8-a001").root_digest == source.manifest("step-8-a001").root_digest
