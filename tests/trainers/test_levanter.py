"""A run of Levanter's trainer is launched, killed, continued and moved, beside one that nothing interrupts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from simulators.sshd import Lab
from support.command_line import Run, midstream
from support.trainers.trainer_moves import LEVANTER, undisturbed
from support.trainers.trainer_processes import LEVANTER_PYTHON, needs_levanter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), needs_levanter]
FIRST = 2  # Levanter calls no hook of steps 0 and 1
PATIENCE = 300.0  # seconds: it compiles at each start


def test_temporary_checkpoint_is_the_newest(
    lab: Lab, runs: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Levanter saves by time in another place: the base path has nothing before step 100000."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    here, there = lab.host("here", devices=1), lab.host("there", devices=1)
    fleet = lab.fleet_file(here=here.config, there=there.config)
    flags = (
        "--trainer.checkpointer.temporary_base_path soon --trainer.checkpointer.save_interval 2s "
        "--trainer.checkpointer.append_run_id_to_base_path true"
    )
    trainer = replace(LEVANTER, command=f"{LEVANTER.command} {flags}")
    file = trainer.write(tmp_path / "code", LEVANTER_PYTHON)
    settings = file.with_name("levanter.yaml")
    settings.write_text(settings.read_text().replace("every: 10}", "every: 100000}"))
    source, target = runs(here.root, "r"), runs(there.root, "r")
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    source.wait(lambda run: len(run.checkpoints()) > 1, "two checkpoints", PATIENCE)
    assert not list(Path(source.paths.dir, "work/out/checkpoints").rglob("metadata.json"))
    checked = midstream("--fleet", fleet, "--check", "r", "--json")
    assert any("soon (temporary_base_path)" in event["detail"] for event in checked.of("check"))
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--mode", "cold", "--yes", "--healthy-steps", "3")
    moved = midstream(*words, "--json", timeout=900)
    assert moved.code == 0, moved.stderr
    claims = {claim["name"]: claim for claim in moved.result["certificate"]["claims"]}
    assert all(claims[name]["verdict"] == "verified" for name in ("state", "step", "checkpoint read", "learning rate"))
    target.kill()
    rows = target.spliced()
    assert sorted(rows) == list(range(FIRST, FIRST + len(rows)))


@pytest.mark.parametrize("mode", ["cold", "warm"])
def test_levanter_is_continued_after_a_kill_and_moved(
    lab: Lab, runs: Callable[..., Run], tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    here, there = lab.host("here", devices=1), lab.host("there", devices=1)
    fleet = lab.fleet_file(here=here.config, there=there.config)
    file = LEVANTER.write(tmp_path / "code", LEVANTER_PYTHON)
    source, target = runs(here.root, "r"), runs(there.root, "r")
    for attempt in (1, 2):
        launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
        assert launched.code == 0, launched.stderr
        end = f"-a{attempt:03d}"
        source.wait(
            lambda run, end=end: any(name.endswith(end) for name in run.checkpoints()), "a checkpoint", PATIENCE
        )
        if attempt == 1:
            source.kill()
            source.wait(lambda run: not run.running, "its end")
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--mode", mode, "--yes", "--healthy-steps", "3")
    moved = midstream(*words, "--json", timeout=900)
    assert moved.code == 0, moved.stderr
    claims = {claim["name"]: claim for claim in moved.result["certificate"]["claims"]}
    assert all(claims[name]["verdict"] == "verified" for name in ("state", "step", "learning rate", "environment"))
    if mode == "warm":
        assert "bit by bit" in claims["replay overlap"]["statement"]
    assert not source.running
    target.kill()
    rows = target.spliced()
    assert sorted(rows) == list(range(FIRST, FIRST + len(rows)))
    # From its first logged step on, with the hosts' flags of XLA: without its optimizations it rounds otherwise.
    expected = undisturbed(LEVANTER, LEVANTER_PYTHON, tmp_path, len(rows), variables=dict(here.config.env))
    assert [rows[step]["train/loss"] for step in sorted(rows)] == [expected[step] for step in sorted(expected)]
