"""Runs of real trainers are launched, watched, moved, and compared with runs that nothing interrupts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from midstream_engine import records
from simulators.sshd import Lab
from support.command_line import Ended, Run, midstream
from support.trainer_moves import ACCELERATE, HUGGINGFACE, LIGHTNING, SCRIPT, TORCHRUN, Trainer, undisturbed

PATIENCE = 600.0  # seconds: torch is imported several times


def claims_of(ended: Ended) -> dict[str, dict[str, Any]]:
    return {claim["name"]: claim for claim in ended.result["certificate"]["claims"]}


def launch(fleet: Path, file: Path, on: str) -> None:
    launched = midstream("--fleet", fleet, "--launch", file, "--on", on, "--run-id", "r")
    assert launched.code == 0, launched.stderr


CASES = [
    pytest.param(HUGGINGFACE, "cold", 0.0, id="huggingface-cold"),
    pytest.param(HUGGINGFACE, "warm", 0.0, id="huggingface-warm"),
    pytest.param(LIGHTNING, "warm", None, id="lightning-warm"),  # it has dropout, and no random state is stored
    pytest.param(ACCELERATE, "warm", 0.0, id="accelerate-warm"),
    pytest.param(TORCHRUN, "warm", 0.0, id="torchrun-warm"),
    pytest.param(SCRIPT, "cold", 5e-5, id="script-cold"),  # its log has four digits
]


@pytest.mark.parametrize(("trainer", "mode", "tolerance"), CASES)
def test_run_is_moved(
    lab: Lab, runs: Callable[..., Run], tmp_path: Path, trainer_python: str, trainer: Trainer, mode: str,
    tolerance: float | None,
) -> None:  # fmt: skip
    here, there = lab.host("here", devices=1), lab.host("there", devices=1)
    fleet = lab.fleet_file(here=here.config, there=there.config)
    launch(fleet, trainer.write(tmp_path / "code", trainer_python), "here")
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint", PATIENCE)
    moved = midstream(
        "--fleet", fleet, "--migrate", "r", "--to", "there", "--mode", mode, "--yes", "--healthy-steps", "3", "--json",
        timeout=1200,
    )  # fmt: skip
    assert moved.code == 0, moved.stderr
    claims = claims_of(moved)
    for claim in claims.values():
        print(claim["name"], claim["verdict"], claim["statement"])
    assert all(claims[name]["verdict"] == "verified" for name in ("state", "step", "learning rate", "environment"))
    if mode == "warm" and tolerance == 0.0:
        assert claims["replay overlap"]["verdict"] == "verified"
        assert "bit by bit" in claims["replay overlap"]["statement"]
    assert not source.running
    target.kill()
    rows = target.spliced()
    steps = sorted(rows)
    assert steps == list(range(len(steps)))
    assert {rows[step]["attempt"] for step in steps} == {
        1,
        records.Lineage.read(target.paths.lineage).attempts[-1]["attempt"],
    }
    if tolerance is not None:
        expected = undisturbed(trainer, trainer_python, tmp_path, len(steps))
        worst = max(abs(rows[step]["train/loss"] - expected[step]) for step in steps)
        assert worst <= max(tolerance, 1e-6), worst  # TensorBoard has float32
