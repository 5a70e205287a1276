"""A real run moved between real hosts: what was promised, measured on the files that both sides left."""

from __future__ import annotations

import dataclasses
import re
import secrets
import stat
from pathlib import Path

import pytest

from midstream.migrate.execution.migration_directory import MigrationDirectory
from midstream_engine import records
from simulators.sshd import Lab
from support.command_line import REPOSITORY, SLOWER, TINY, midstream
from support.event_files import scalars

STEPS = 60
HALF = STEPS // 2
TRAINING = (*SLOWER, "--trainer.num_train_steps", str(STEPS), "--trainer.checkpointer.keep", f"[{{every: {HALF}}}]")


def test_a_run_that_was_moved_is_the_run_that_was_not(lab: Lab, runs):
    """N steps on 4 devices, and N steps of which the second half ran on other devices of another host."""
    small, large = lab.host("small", devices=2), lab.host("large", devices=4)
    straight = lab.local("straight", devices=4)
    fleet = lab.fleet_file(small=small.config, large=large.config, straight=straight)

    assert midstream("--fleet", fleet, "--launch", TINY, "--on", "straight", "--run-id", "r", "--", *TRAINING).code == 0
    uninterrupted = runs(straight.root, "r")
    uninterrupted.wait(lambda run: (status := run.status()) is not None and status.state == "finished", "the end")

    assert midstream("--fleet", fleet, "--launch", TINY, "--on", "small", "--run-id", "m", "--", *TRAINING).code == 0
    source, target = runs(small.root, "m"), runs(large.root, "m")
    source.wait(lambda run: f"step-{HALF}-a001" in run.checkpoints(), "the checkpoint in the middle")
    source.wait_step(HALF + 6)
    moved = midstream(
        "--fleet", fleet, "--migrate", "m", "--to", "large", "--checkpoint", str(HALF), "--yes",
        "--certify-steps", "4", "--healthy-steps", "8", "--json",
    )  # fmt: skip
    assert moved.code == 0, moved.stderr
    assert moved.of("plan")[0]["route"].startswith("direct, small -> large over TLS ("), "as probed"
    target.wait(lambda run: (status := run.status()) is not None and status.state == "finished", "the end")

    # Sealed is restored, and what was sealed on one side is what lies on the other.
    restore = records.Restore.read(target.paths.attempt(2).restore)
    sealed = source.manifest(f"step-{HALF}-a001")
    assert restore.root_digest == sealed.root_digest == target.manifest(f"step-{HALF}-a001").root_digest
    assert source.fence == target.fence
    assert (target.fence.epoch, target.fence.sealed_step) == (2, HALF)

    # Every step's loss and data are those of the run that was never touched.
    want, got = uninterrupted.spliced(), target.spliced()
    assert sorted(got) == sorted(want) == list(range(STEPS))
    assert [got[step]["attempt"] for step in range(STEPS)] == [1] * HALF + [2] * HALF
    worst = max(records.relative_difference(want[s]["train/loss"], got[s]["train/loss"]) for s in range(STEPS))
    assert worst <= 1e-4, worst
    assert [got[step]["batch_digest"] for step in range(STEPS)] == [want[step]["batch_digest"] for step in range(STEPS)]

    # The certificate says so, with the source's own losses past the seal as a witness.
    claims = {claim["name"]: claim for claim in moved.result["certificate"]["claims"]}
    assert {name: claim["verdict"] for name, claim in claims.items()} == {
        "state": "verified", "data": "verified", "reference losses": "verified", "continuity": "verified",
    }  # fmt: skip
    assert len(claims["continuity"]["evidence"]["steps"]) >= 4
    assert moved.result["downtime"]["total"] > 0


def documented_events() -> set[str]:
    """The events that docs/cli.md lists."""
    lines = (REPOSITORY / "docs" / "cli.md").read_text().splitlines()
    return {name for line in lines if line.startswith("| `") for name in re.findall(r"`(\w+)`", line.split("|")[1])}


def holding(directory: Path, *secrets: str) -> list[str]:
    """Names of the files below that hold any of these words."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return sorted(path.name for path in files if any(word.encode() in path.read_bytes() for word in secrets))


def test_a_living_run_is_sealed_moved_and_retired(lab: Lab, runs, monkeypatch: pytest.MonkeyPatch):
    here, there = lab.local("here", devices=4), lab.host("there", devices=2)
    secret, in_env = secrets.token_hex(20), secrets.token_hex(20)
    monkeypatch.setenv("LAB_TOKEN", secret)
    there.config = dataclasses.replace(
        there.config, secrets={"TOKEN": "env:LAB_TOKEN"}, env={**there.config.env, "SETTING": in_env}
    )
    fleet = lab.fleet_file(here=here, there=there.config)
    training = (*SLOWER, "--trainer.num_train_steps", "5000", "--trainer.per_device_parallelism", "8")
    launched = midstream("--fleet", fleet, "--launch", TINY, "--on", "here", "--run-id", "r", "--", *training)
    assert launched.code == 0, launched.stderr
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait_step(5)

    before = sorted(path.name for path in there.directory.iterdir())
    dry = midstream("--fleet", fleet, "--migrate", "r", "--to", "there", "--dry-run", "--json")
    assert dry.code == 0, dry.stderr
    (plan,) = dry.of("plan")
    assert (plan["accumulation"], plan["per_device_parallelism"], plan["epoch"]) == (2, 8, 2)
    assert plan["route"].startswith("here -> there over SSH (")
    assert sorted(path.name for path in there.directory.iterdir()) == before, "a dry run leaves nothing behind"
    assert source.alive

    moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "there", "--healthy-steps", "3", "--json")
    assert moved.code == 0, moved.stderr
    assert [event["phase"] for event in moved.of("phase") if event["state"] == "done"] == [
        "prepare", "cutover", "relaunch", "certify", "finish",
    ]  # fmt: skip
    kinds = {event["event"] for event in [*dry.events, *moved.events]}
    assert kinds == {"plan", "check", "phase", "command", "note", "result"} <= documented_events()
    assert (moved.result["ok"], moved.result["exit_code"], moved.result["run"]) == (True, 0, "r")
    for event in moved.of("phase"):
        assert event["state"] in ("started", "progress", "done", "failed")
        assert event["state"] != "progress" or {"what", "bytes_done", "bytes_total", "eta_seconds"} <= event.keys()
    assert not any(word in done.stdout + done.stderr for done in (dry, moved) for word in (secret, in_env))
    directory = MigrationDirectory(moved.result["migration"]).path
    assert {"plan.json", "journal.jsonl", "certificate.json", "certificate.md"} <= {p.name for p in directory.iterdir()}
    assert holding(directory, secret) == []
    copies = holding(directory, in_env)
    assert copies == ["fleet.yaml", "journal.jsonl"], "copies of what the person wrote"
    assert {stat.S_IMODE(Path(directory, name).stat().st_mode) for name in copies} == {0o600}
    assert holding(there.directory, secret) == [], "the engine has it in its environment alone"
    step = moved.result["certificate"]["step"]
    assert step >= 5
    assert not source.alive
    assert source.status().state == "stopped"
    assert target.alive
    assert source.fence == target.fence
    assert [row["global_step"] for row in source.rows(1)] == list(range(step)), "not a step past the seal"
    assert target.rows(2)[0]["global_step"] == step
    assert len(target.rows(1)) == step, "the history came along"
    assert moved.result["certificate"]["valid"]
    lineage = records.Lineage.read(target.paths.lineage).entries
    assert [(entry.attempt, entry.epoch, entry.target, entry.devices) for entry in lineage] == [
        (1, 1, "here", 4), (2, 2, "there", 2),
    ]  # fmt: skip

    status = midstream("--fleet", fleet, "--status", "--json")
    assert {event["event"] for event in status.events} <= documented_events()
    copies = {event["host"]: event for event in status.of("run")}
    assert (copies["here"]["running"], copies["there"]["running"]) == (False, True)
    assert midstream("--fleet", fleet, "--verify", "r").code == 0
    stopped = midstream("--fleet", fleet, "--stop", "r", "--json")
    assert stopped.code == 0, stopped.stderr
    assert stopped.result["host"] == "there"
    assert not target.alive


@pytest.mark.slow  # three engines, two moves
@pytest.mark.parametrize("precision", ["f32", "p=f32,c=bf16"], ids=["f32", "bf16"])
def test_a_run_goes_there_and_back_again(precision: str, lab: Lab, runs):
    """2 -> 8 devices, and 8 -> 2 with accumulation, at the same global batch."""
    one, two = lab.local("one", devices=2), lab.local("two", devices=8)
    fleet = lab.fleet_file(one=one, two=two)
    flags = ("--trainer.per_device_parallelism", "8", "--trainer.mp", precision, "--trainer.num_train_steps", "5000")
    trackers = ("--trainer.tracker", "[{type: tensorboard, flush_secs: 1}]")
    assert midstream("--fleet", fleet, "--launch", TINY, "--on", "one", "--run-id", "r", "--",
                     *SLOWER, *flags, *trackers).code == 0  # fmt: skip
    home, away = runs(one.root, "r"), runs(two.root, "r")
    home.wait_step(3)
    for target, mode, shape in (("two", "warm", (4, 1)), ("one", "cold", (8, 2))):
        moved = midstream("--fleet", fleet, "--migrate", "r", "--to", target, "--mode", mode, "--healthy-steps", "2",
                          "--json")  # fmt: skip
        assert moved.code == 0, moved.stderr
        (plan,) = moved.of("plan")
        assert (plan["train_batch_size"], plan["per_device_parallelism"], plan["accumulation"]) == (32, *shape)
        assert {claim["name"]: claim["verdict"] for claim in moved.result["certificate"]["claims"]} == {
            "state": "verified", "data": "verified", "reference losses": "verified", "continuity": "not checked",
        }  # fmt: skip
    assert not away.alive
    lineage = records.Lineage.read(home.paths.lineage).entries
    assert [(entry.attempt, entry.target, entry.devices) for entry in lineage] == [
        (1, "one", 2), (2, "two", 8), (3, "one", 2),
    ]  # fmt: skip
    spliced = home.spliced()
    assert sorted(spliced) == list(range(max(spliced) + 1)), "no step is missing and none is there twice"
    assert {row["attempt"] for row in spliced.values()} == {1, 2, 3}
    assert home.fence.epoch == 3
    assert Path(home.paths.config).exists()

    last = moved.result["certificate"]["step"]
    curve = scalars(Path(home.paths.dir, "tblogs", "r"))
    steps = sorted(step for tag, step in curve if tag == "train/loss" and step < last)
    assert steps == list(range(last)), "TensorBoard shows one curve"
