"""Runs of real trainers are launched, watched, moved, and compared with runs that nothing interrupts."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from midstream_core import records
from simulators.sshd import Lab
from support.command_line import Ended, Run, midstream, refused, start_midstream
from support.trainers.trainer_moves import (
    ACCELERATE,
    DEEPSPEED,
    DIVIDED,
    GROUPED,
    HUGGINGFACE,
    LIGHTNING,
    SCRIPT,
    SHARDED,
    SHUFFLED,
    STEPS,
    TORCHRUN,
    UNIVERSAL,
    Trainer,
    undisturbed,
)
from support.trainers.trainer_processes import PYTHON, needs_trainers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), needs_trainers]
PATIENCE = 600.0  # seconds: torch is imported several times


def claims_of(ended: Ended) -> dict[str, dict[str, Any]]:
    return {claim["name"]: claim for claim in ended.result["certificate"]["claims"]}


def launch(fleet: Path, file: Path, on: str) -> None:
    launched = midstream("--fleet", fleet, "--launch", file, "--on", on, "--run-id", "r")
    assert launched.code == 0, launched.stderr


CASES = [
    pytest.param(HUGGINGFACE, "cold", 0.0, id="huggingface-cold"),
    pytest.param(HUGGINGFACE, "warm", 0.0, id="huggingface-warm"),
    pytest.param(LIGHTNING, "cold", 1e-6, id="lightning-cold"),  # without dropout: no random state is stored
    pytest.param(LIGHTNING, "warm", 1e-6, id="lightning-warm"),
    pytest.param(ACCELERATE, "cold", 1e-6, id="accelerate-cold"),
    pytest.param(ACCELERATE, "warm", 1e-6, id="accelerate-warm"),
    pytest.param(TORCHRUN, "cold", 0.0, id="torchrun-cold"),
    pytest.param(TORCHRUN, "warm", 0.0, id="torchrun-warm"),
    pytest.param(DEEPSPEED, "cold", 0.0, id="deepspeed-cold"),
    pytest.param(DEEPSPEED, "warm", 0.0, id="deepspeed-warm"),
    pytest.param(SCRIPT, "cold", 5e-5, id="script-cold"),  # its log has four digits
    pytest.param(SCRIPT, "warm", 5e-5, id="script-warm"),
]


@pytest.mark.parametrize(("trainer", "mode", "tolerance"), CASES)
def test_run_is_moved(
    lab: Lab, runs: Callable[..., Run], tmp_path: Path, trainer: Trainer, mode: str,
    tolerance: float | None,
) -> None:  # fmt: skip
    here, there = lab.host("here", devices=1), lab.host("there", devices=1)
    fleet = lab.fleet_file(here=here.config, there=there.config)
    launch(fleet, trainer.write(tmp_path / "code", PYTHON), "here")
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
        expected = undisturbed(trainer, PYTHON, tmp_path, len(steps))
        worst = max(abs(rows[step]["train/loss"] - expected[step]) for step in steps)
        assert worst <= max(tolerance, 1e-6), worst  # TensorBoard has float32


@pytest.mark.parametrize(
    ("trainer", "tolerance"),
    [
        pytest.param(trainer, tolerance, id=trainer.name)
        for trainer, tolerance in (
            (HUGGINGFACE, 1e-6), (LIGHTNING, 1e-6), (ACCELERATE, 1e-6), (TORCHRUN, 1e-6), (DEEPSPEED, 1e-6),
            (SCRIPT, 5e-5),
        )
    ],
)  # fmt: skip
def test_run_is_continued_after_a_kill_and_rolled_back(
    lab: Lab, runs: Callable[..., Run], tmp_path: Path, trainer: Trainer, tolerance: float
) -> None:
    """Killed and continued where it was, then migrated and rolled back: the losses are those of an undisturbed run."""
    here, there = lab.host("here", devices=1), lab.host("there", devices=1)
    fleet = lab.fleet_file(here=here.config, there=there.config)
    file = trainer.write(tmp_path / "code", PYTHON)
    launch(fleet, file, "here")
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint", PATIENCE)
    source.kill()
    source.wait(lambda run: not run.running, "its end")
    launch(fleet, file, "here")
    source.wait(lambda run: any(name.endswith("-a002") for name in run.checkpoints()), "a save after it", PATIENCE)
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--mode", "cold", "--yes")
    process = start_midstream(*words, "--healthy-steps", str(STEPS), "--json")
    try:
        target.wait(lambda run: run.running and len(run.rows()) > 3, "the target's steps", PATIENCE)
        assert process.stdout is not None
        migration = next(
            event["identity"]["migration"] for event in map(json.loads, process.stdout) if event.get("event") == "plan"
        )
        back = midstream("--rollback", migration, "--yes", "--json", timeout=1200)
        process.wait(120)
    finally:
        process.kill()
        process.communicate()
    assert back.code == 0, back.stderr
    attempt = records.Lineage.read(source.paths.lineage).attempts[-1]["attempt"]
    assert attempt == source.attempt > 2
    source.wait(lambda run: len(run.rows()) > 3, "its steps", PATIENCE)
    assert not target.running
    source.kill()
    rows = source.spliced()
    assert sorted(rows) == list(range(len(rows)))
    assert {row["attempt"] for row in rows.values()} == {1, 2, attempt}
    expected = undisturbed(trainer, PYTHON, tmp_path, len(rows))
    worst = max(abs(rows[step]["train/loss"] - expected[step]) for step in rows)
    assert worst <= tolerance, worst


@pytest.mark.parametrize(
    "trainer",
    [
        pytest.param(TORCHRUN, id="torchrun"),
        pytest.param(DEEPSPEED, id="deepspeed"),
        pytest.param(SHARDED, id="deepspeed-zero3"),
        pytest.param(UNIVERSAL, id="ds_to_universal"),
    ],
)
def test_run_continues_on_another_number_of_processes(
    lab: Lab, runs: Callable[..., Run], tmp_path: Path, trainer: Trainer
) -> None:
    """1 -> 2 -> 1 processes under torchrun: the same samples in order, the same losses but for rounding."""
    one, two = lab.host("one", devices=1), lab.host("two", devices=2)
    fleet = lab.fleet_file(one=one.config, two=two.config)
    launch(fleet, trainer.write(tmp_path / "code", PYTHON), "one")
    first, second = runs(one.root, "r"), runs(two.root, "r")
    first.wait(lambda run: bool(run.checkpoints()), "a checkpoint", PATIENCE)
    for target, run in (("two", second), ("one", first)):
        words = ("--fleet", fleet, "--migrate", "r", "--to", target, "--mode", "cold", "--yes", "--healthy-steps", "3")
        moved = midstream(*words, "--json", timeout=1200)
        assert moved.code == 0, moved.stderr
        attempt = run.attempt
        run.wait(
            lambda run, attempt=attempt: any(n.endswith(f"-a{attempt:03d}") for n in run.checkpoints()),
            "a save",
            PATIENCE,
        )
    first.kill()
    rows = first.spliced()
    assert sorted(rows) == list(range(len(rows)))
    expected = undisturbed(trainer, PYTHON, tmp_path, len(rows))
    worst = max(abs(rows[step]["train/loss"] - expected[step]) for step in rows)
    assert worst <= 1e-5, worst


@pytest.mark.parametrize(("mode", "dropout"), [("cold", 0.0), ("warm", 0.5)])
def test_huggingface_on_half_of_its_processes(
    lab: Lab, runs: Callable[..., Run], tmp_path: Path, mode: str, dropout: float
) -> None:
    """2 -> 1 processes under torchrun: the same batches in order, and a random state that no process continues."""
    two, one = lab.host("two", devices=2), lab.host("one", devices=1)
    fleet = lab.fleet_file(two=two.config, one=one.config)
    trainer = dataclasses.replace(DIVIDED, dropout=dropout)
    launch(fleet, trainer.write(tmp_path / "code", PYTHON), "two")
    source, target = runs(two.root, "r"), runs(one.root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint", PATIENCE)
    words = ("--fleet", fleet, "--migrate", "r", "--to", "one", "--mode", mode, "--healthy-steps", "3", "--json")
    planned = midstream(*words, "--dry-run", timeout=300)
    assert "checkpoints of huggingface lack the random state of 2 processes -> 1" in planned.stdout, planned.stderr
    moved = midstream(*words, "--yes", timeout=1200)
    assert moved.code == 0, moved.stderr
    claims = claims_of(moved)
    for claim in claims.values():
        print(claim["name"], claim["verdict"], claim["statement"])
    names = ("state", "step", "checkpoint read", "learning rate", "global batch", "environment")
    assert all(claims[name]["verdict"] == "verified" for name in names)
    assert "epochs on the source" in claims["global batch"]["statement"]
    overlap = claims["replay overlap"]
    assert overlap["agreed"]
    if mode == "warm":  # half of the numbers are dropped, others on each side
        assert overlap["verdict"] == "failed"
        assert "random state" in overlap["statement"]
    target.kill()
    rows = target.spliced()
    assert sorted(rows) == list(range(len(rows)))
    if not dropout:
        expected = undisturbed(trainer, PYTHON, tmp_path, len(rows), devices=2)
        worst = max(abs(rows[step]["train/loss"] - expected[step]) for step in rows)
        assert worst <= 1e-5, worst


def nodes_of(run: Run, attempt: int) -> list[records.Status]:
    """Return the status of both nodes of an attempt."""
    return [records.Status.read(run.paths.attempt(attempt).status(node)) for node in (0, 1)]


def test_run_is_moved_to_a_group_of_hosts_and_back(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    """One host -> torchrun on each of two -> one host: the same losses but for rounding."""
    root = lab.directory / "nfs"
    pair = {name: dataclasses.replace(lab.host(name, devices=1).config, root=str(root)) for name in ("a", "b")}
    one = lab.host("one", devices=1)
    fleet = lab.fleet_file(one=one.config, **pair)
    fleet.write_text(f"{fleet.read_text()}targets: {{pair: {{type: hosts, hosts: [a, b], shared_root: {root}}}}}\n")
    launch(fleet, GROUPED.write(tmp_path / "code", PYTHON), "one")
    alone, grouped = runs(one.root, "r"), runs(str(root), "r")
    alone.wait(lambda run: bool(run.checkpoints()), "a checkpoint", PATIENCE)
    words = ("--fleet", fleet, "--migrate", "r", "--yes", "--healthy-steps", "3", "--json", "--to")
    refused(midstream(*words, "pair", "--mode", "warm"), 2, "the rehearsal of torchrun is on one host", "--mode cold")
    for target, run in (("pair", grouped), ("one", alone)):
        moved = midstream(*words, target, "--mode", "cold", timeout=1200)
        assert moved.code == 0, moved.stderr
        claims = claims_of(moved)
        assert all(claims[name]["verdict"] == "verified" for name in ("state", "step", "learning rate", "environment"))
        attempt = run.attempt
        run.wait(
            lambda run, attempt=attempt: any(n.endswith(f"-a{attempt:03d}") for n in run.checkpoints()),
            "a save",
            PATIENCE,
        )
        if run is grouped:
            found = nodes_of(grouped, attempt)
            assert [(each.host, each.state) for each in found] == [("a", records.TRAINING), ("b", records.TRAINING)]
    assert not grouped.running
    assert [each.state for each in nodes_of(grouped, grouped.attempt)] == [records.STOPPED] * 2
    alone.kill()
    rows = alone.spliced()
    assert sorted(rows) == list(range(len(rows)))
    expected = undisturbed(GROUPED, PYTHON, tmp_path, len(rows))
    worst = max(abs(rows[step]["train/loss"] - expected[step]) for step in rows)
    assert worst <= 1e-5, worst


def test_lightning_with_a_shuffled_loader_is_reported(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    here, there = lab.host("here", devices=1), lab.host("there", devices=1)
    fleet = lab.fleet_file(here=here.config, there=there.config)
    launch(fleet, SHUFFLED.write(tmp_path / "code", PYTHON), "here")
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint", PATIENCE)
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--yes", "--healthy-steps", "3", "--json")
    moved = midstream(*words, timeout=1200)
    assert moved.code == 0, moved.stderr
    target.kill()
    overlap = claims_of(moved)["replay overlap"]
    assert (overlap["verdict"], overlap["agreed"]) == ("failed", True)
    assert "StatefulDataLoader" in overlap["statement"]


def test_partial_huggingface_checkpoint_is_never_used(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    here, there = lab.host("here", devices=1), lab.host("there", devices=1)
    fleet = lab.fleet_file(here=here.config, there=there.config)
    launch(fleet, HUGGINGFACE.write(tmp_path / "code", PYTHON), "here")
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: len(run.checkpoints()) > 1, "two checkpoints", PATIENCE)
    source.kill()
    source.wait(lambda run: not run.running, "its end")
    out = Path(source.paths.dir, "work", "out")
    newest = max(out.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    partial = out / "checkpoint-99999"
    shutil.copytree(newest, partial)
    state = json.loads((partial / "trainer_state.json").read_text())
    (partial / "trainer_state.json").write_text(json.dumps({**state, "global_step": 99999}))
    for name in ("optimizer.pt", "scheduler.pt"):
        (partial / name).unlink()
    (partial / "checkpoint-is-incomplete.txt").write_text("")
    advice = midstream("--fleet", fleet, "--check", "r", "--json")
    assert any(event["name"] == "incomplete" and "checkpoint-99999" in event["detail"] for event in advice.of("check"))
    moved = midstream(
        "--fleet", fleet, "--migrate", "r", "--to", "there", "--mode", "cold", "--checkpoint", "latest", "--yes",
        "--healthy-steps", "3", "--json", timeout=1200,
    )  # fmt: skip
    assert moved.code == 0, moved.stderr
    assert moved.result["certificate"]["step"] == int(source.checkpoints()[-1].split("-")[1]) < 99999
    assert claims_of(moved)["learning rate"]["verdict"] == "verified"
    assert target.running
