"""Migrations of a real run, checked against the files on both hosts."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from midstream.migrate.journal.migration_directory import MigrationDirectory
from midstream.migrate.journal.plan import FORMAT
from midstream_core import records
from simulators.sshd import Lab
from support.checkpoints.trees import files
from support.command_line import SLOWER, TINY, Run, midstream
from support.html_page import HtmlPage
from support.tracking.event_files import scalars

STEPS = 60
HALF = STEPS // 2
TRAINING = (*SLOWER, "--trainer.num_train_steps", str(STEPS), "--trainer.checkpointer.keep", f"[{{every: {HALF}}}]")


def test_migrated_run_equals_uninterrupted_run(lab: Lab, runs: Callable[..., Run]) -> None:
    """60 steps on one host equal 60 steps of which the last 30 ran on another."""
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
    assert moved.of("plan")[0]["route"]["probed"].startswith("direct, small -> large over TLS ("), "as probed"
    target.wait(lambda run: (status := run.status()) is not None and status.state == "finished", "the end")

    # The sealed checkpoint was restored, and both hosts have the same fence.
    restore = records.Restore.read(target.paths.attempt(2).restore)
    sealed = source.manifest(f"step-{HALF}-a001")
    assert restore.root_digest == sealed.root_digest == target.manifest(f"step-{HALF}-a001").root_digest
    assert source.handed_over == target.handed_over
    assert (target.fence.epoch, target.fence.sealed_step) == (2, HALF)

    # Loss and data of every step equal those of the uninterrupted run.
    expected, found = uninterrupted.spliced(), target.spliced()
    assert sorted(found) == sorted(expected) == list(range(STEPS))
    assert [found[step]["attempt"] for step in range(STEPS)] == [1] * HALF + [2] * HALF
    largest = max(records.relative_difference(expected[s]["train/loss"], found[s]["train/loss"]) for s in range(STEPS))
    assert largest <= 1e-4, largest
    assert [found[step]["batch_digest"] for step in range(STEPS)] == [
        expected[step]["batch_digest"] for step in range(STEPS)
    ]

    # The certificate compares the source's own losses past the seal, too.
    claims = {claim["name"]: claim for claim in moved.result["certificate"]["claims"]}
    assert {name: claim["verdict"] for name, claim in claims.items()} == {
        "state": "verified", "data": "verified", "reference losses": "verified", "continuity": "verified",
        "environment": "verified",
    }  # fmt: skip
    assert len(claims["continuity"]["evidence"]["steps"]) >= 4
    assert moved.result["downtime"]["total"] > 0


def files_with(directory: Path, *secrets: str) -> list[str]:
    """Return the names of the files below that contain any of these words."""
    found = files(directory).items()
    return sorted(Path(path).name for path, content in found if any(word.encode() in content for word in secrets))


def check_command_log(commands: list[dict[str, str]], fleet: str) -> None:
    """Paste the lines of a migration's command log into a shell: each runs, on the host that it names."""
    lines = {event[name]: event for event in commands for name in ("does", "shows") if name in event}
    first = next(iter(lines))
    assert first.startswith(f"midstream --fleet {fleet} --migrate r --to there "), "the migration itself"
    del lines[first]
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))  # of midstream itself
    printed = {
        line: subprocess.run(["/bin/sh", "-c", line], env={**os.environ, "PATH": path}, capture_output=True, text=True)
        for line in lines
    }
    assert {line: done.stderr for line, done in printed.items() if done.returncode} == {}
    for line, event in lines.items():
        assert line.startswith("ssh ") == (event.get("host") == "there"), line
    assert any("/command.json" in line and '"action"' in done.stdout for line, done in printed.items())
    assert any("--verify" in line and "verified" in done.stdout for line, done in printed.items())


def check_report(fleet: str, file: Path) -> None:
    """Write the report of the migrated run: it has both attempts, the certificate and the downtime."""
    made = midstream("--fleet", fleet, "--report", "r", str(file), "--json")
    assert (made.code, made.result["migrations"]) == (0, 1), made.stderr
    page = HtmlPage(file.read_text())
    assert page.problems == []
    for words in ("attempt 1: here", "attempt 2: there", "Certificate: certified", "reference losses", "first step"):
        assert words in page.text, words
    assert page.tags.count("svg") >= 3, "loss, throughput, and the loss at the seam"


def check_export(fleet: str, directory: Path, newest: str) -> None:
    """Export the newest checkpoint of the migrated run; refuse what cannot be exported, and leave nothing of it."""

    def export(run: str, place: str, form: str = "huggingface", *flags: str) -> Any:
        return midstream("--fleet", fleet, "--export", run, "--as", form, "--output", place, *flags, "--json")

    made = export("r", f"there:{directory}")
    assert made.code == 0, made.stderr
    assert (made.result["checkpoint"], made.result["host"], made.result["path"]) == (newest, "there", str(directory))
    assert json.loads((directory / "config.json").read_text())["model_type"] == "gpt2"
    length = int.from_bytes((directory / "model.safetensors").read_bytes()[:8], "little")
    names = json.loads((directory / "model.safetensors").read_bytes()[8 : 8 + length])
    assert "transformer.wte.weight" in names or "wte.weight" in names
    before = files(directory)
    for run, place, words in (
        ("r", f"there:{directory}", "exists already"),
        ("r@999999", f"there:{directory}-2", "has no complete checkpoint of step 999999"),
        ("r@x", f"there:{directory}-2", "'x' is not a step"),
        ("r", f"here:{directory}-2", "r is on there: it is exported there, and not on here"),
        ("r", f"{directory}-2", "r is on there: it is exported there, and not on here"),
        ("r", "s3://bucket/r", "an export is written to a directory of a host"),
    ):
        refused = export(run, place)
        assert refused.code in (1, 2), words
        assert words in refused.result["error"], refused.result
    assert files(directory) == before
    assert sorted(path.name for path in directory.parent.glob("exported*")) == ["exported"]
    for flags, words in (
        (("huggingface", "--processes", "2"), "--processes: huggingface is written for any number"),
        (("deepspeed", "--model-parallel-size", "2"), "--model-parallel-size: deepspeed is written for any number"),
        (("deepspeed", "--processes", "0"), "--processes 0: at least 1 is needed"),
    ):
        refused = export("r", f"there:{directory}-2", *flags)
        assert refused.code == 2, refused.stdout
        assert words in refused.result["error"], refused.result
    made = export(f"r@{newest.split('-')[1]}", f"there:{directory}-2", "deepspeed", "--processes", "2")
    assert made.code == 0, made.stderr
    assert made.result["checkpoint"] == newest
    ranks = {path.name.split("_mp_rank")[0] for path in Path(f"{directory}-2").rglob("*zero_pp_rank_*")}
    assert len(ranks) == 2, ranks


@pytest.mark.drawn
def test_running_run_is_sealed_migrated_and_stopped(
    lab: Lab, runs: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert (plan["shape"]["accumulation"], plan["shape"]["per_device_parallelism"]) == (2, 8)
    assert (plan["format"], plan["identity"]["epoch"]) == (FORMAT, 2)
    assert plan["route"]["probed"].startswith("direct, here -> there over TLS (")
    assert sorted(path.name for path in there.directory.iterdir()) == before, "a dry run leaves nothing behind"
    assert source.running

    moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "there", "--healthy-steps", "3", "--json")
    assert moved.code == 0, moved.stderr
    assert [event["phase"] for event in moved.of("phase") if event["state"] == "done"] == [
        "prepare", "cutover", "relaunch", "certify", "finish",
    ]  # fmt: skip
    kinds = {event["event"] for event in [*dry.events, *moved.events]}
    assert kinds == {"plan", "check", "phase", "stage", "command", "note", "result"}
    assert (moved.result["ok"], moved.result["exit_code"], moved.result["run"]) == (True, 0, "r")
    for event in moved.of("phase"):
        assert event["state"] in ("started", "progress", "done", "failed")
        assert event["state"] != "progress" or {"what", "bytes_done", "bytes_total", "eta_seconds"} <= event.keys()
    assert not any(word in done.stdout + done.stderr for done in (dry, moved) for word in (secret, in_env))
    directory = MigrationDirectory(moved.result["migration"]).path
    assert {"plan.json", "journal.jsonl", "certificate.json", "certificate.md"} <= {p.name for p in directory.iterdir()}
    assert files_with(directory, secret) == []
    copies = files_with(directory, in_env)
    assert copies == ["fleet.yaml", "journal.jsonl"], "copies of the user's fleet file"
    assert {stat.S_IMODE(Path(directory, name).stat().st_mode) for name in copies} == {0o600}
    assert files_with(there.directory, secret) == [], "the engine has it in its environment alone"
    step = moved.result["certificate"]["step"]
    assert step >= 5
    assert not source.running
    assert (status := source.status()) is not None
    assert status.state == "stopped"
    assert target.running
    assert source.handed_over == target.handed_over
    assert [row["global_step"] for row in source.rows(1)] == list(range(step)), "no step past the seal"
    assert target.rows(2)[0]["global_step"] == step
    assert len(target.rows(1)) == step, "the history was copied"
    assert moved.result["certificate"]["valid"]
    lineage = records.Lineage.read(target.paths.lineage).entries
    assert [(entry.attempt, entry.epoch, entry.target, entry.devices) for entry in lineage] == [
        (1, 1, "here", 4), (2, 2, "there", 2),
    ]  # fmt: skip

    status = midstream("--fleet", fleet, "--status", "--json")
    copies = {event["host"]: event for event in status.of("run")}
    assert (copies["here"]["running"], copies["there"]["running"]) == (False, True)
    assert midstream("--fleet", fleet, "--verify", "r").code == 0
    check_command_log(moved.of("command"), str(fleet))
    stopped = midstream("--fleet", fleet, "--stop", "r", "--json")
    assert stopped.code == 0, stopped.stderr
    assert stopped.result["host"] == "there"
    assert not target.running
    check_report(str(fleet), there.directory.parent / "report.html")
    check_export(str(fleet), there.directory / "exported", stopped.result["checkpoint"])


@pytest.mark.slow  # three engines, two migrations
@pytest.mark.parametrize("precision", ["f32", "p=f32,c=bf16", "bfloat16", "half"])
def test_migration_and_return_keep_batch_and_curve(precision: str, lab: Lab, runs: Callable[..., Run]) -> None:
    """2 -> 8 devices, and 8 -> 2 with accumulation, at the same global batch."""
    one, two = lab.local("one", devices=2), lab.local("two", devices=8)
    fleet = lab.fleet_file(one=one, two=two)
    flags = ("--trainer.per_device_parallelism", "8", "--trainer.mp", precision, "--trainer.num_train_steps", "5000")
    trackers = ("--trainer.tracker", "[{type: tensorboard, flush_secs: 1}]")
    assert midstream("--fleet", fleet, "--launch", TINY, "--on", "one", "--run-id", "r", "--",
                     *SLOWER, *flags, *trackers).code == 0  # fmt: skip
    first, second = runs(one.root, "r"), runs(two.root, "r")
    first.wait_step(3)
    for target, mode, shape in (("two", "warm", (4, 1)), ("one", "cold", (8, 2))):
        moved = midstream("--fleet", fleet, "--migrate", "r", "--to", target, "--mode", mode, "--healthy-steps", "2",
                          "--json")  # fmt: skip
        assert moved.code == 0, moved.stderr
        (plan,) = moved.of("plan")
        planned = plan["shape"]
        assert planned["train_batch_size"] == 32
        assert (planned["per_device_parallelism"], planned["accumulation"]) == shape
        assert {claim["name"]: claim["verdict"] for claim in moved.result["certificate"]["claims"]} == {
            "state": "verified", "data": "verified", "reference losses": "verified", "continuity": "not checked",
            "environment": "verified",
        }  # fmt: skip
    assert not second.running
    lineage = records.Lineage.read(first.paths.lineage).entries
    assert [(entry.attempt, entry.target, entry.devices) for entry in lineage] == [
        (1, "one", 2), (2, "two", 8), (3, "one", 2),
    ]  # fmt: skip
    spliced = first.spliced()
    assert sorted(spliced) == list(range(max(spliced) + 1)), "every step once"
    assert {row["attempt"] for row in spliced.values()} == {1, 2, 3}
    assert first.fence.epoch == 3
    assert Path(first.paths.config).exists()

    last = moved.result["certificate"]["step"]
    curve = scalars(Path(first.paths.dir, "tblogs", "r"))
    steps = sorted(step for tag, step in curve if tag == "train/loss" and step < last)
    assert steps == list(range(last)), "TensorBoard shows one curve"
