"""Runs of another trainer, a script without torch: launched, watched, migrated, rolled back, continued."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import Exit
from midstream_core import records
from simulators.sshd import Lab
from support.command_line import Run, midstream, refused, start_midstream
from support.trainers.script_runs import STEPS, check_curve, claims_of
from support.trainers.script_trainer import write_script

pytestmark = pytest.mark.drawn


def test_script_is_watched_migrated_cold_and_continued(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    file = write_script(tmp_path / "code", steps=STEPS, every=25)
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r", "--json")
    assert launched.code == 0, launched.stderr
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: len(run.checkpoints()) > 1, "two checkpoints")

    # The fleet shows it like any other run.
    metrics = midstream("--fleet", fleet, "--metrics", "r", "--json")
    first = next(event for event in metrics.events if event.get("event") == "metrics" or "global_step" in event)
    assert {"train/loss", "optim/learning_rate"} <= first.keys(), first

    # What the target executes is agreed to first.
    refused(midstream("--fleet", fleet, "--migrate", "r", "--to", "there", "--mode", "cold"), 3, "there executes")
    moved = midstream(
        "--fleet", fleet, "--migrate", "r", "--to", "there", "--mode", "cold", "--yes", "--healthy-steps", "5", "--json"
    )
    assert moved.code == 0, moved.stderr
    found = {name: claim["verdict"] for name, claim in claims_of(moved).items()}
    assert {name: found[name] for name in ("state", "step", "learning rate", "environment")} == dict.fromkeys(
        ("state", "step", "learning rate", "environment"), "verified"
    )
    assert not source.running
    sealed = moved.result["certificate"]["step"]
    assert sealed % 25 == 0
    assert source.handed_over == target.handed_over
    restore = records.Restore.read(target.paths.attempt(2).restore)
    assert restore.root_digest == source.manifest(f"step-{sealed}-a001").root_digest

    # Killed, it continues from its newest checkpoint there.
    target.wait(lambda run: any(name.endswith("-a002") for name in run.checkpoints()), "a checkpoint of the target")
    target.kill()
    target.wait(lambda run: not run.running, "its end")
    again = midstream("--fleet", fleet, "--launch", file, "--on", "there", "--run-id", "r")
    assert again.code == 0, again.stderr
    stopped = midstream("--fleet", fleet, "--stop", "r", "--json")
    assert stopped.code == 0, stopped.stderr
    rows = check_curve(target, file, tmp_path / "straight")
    assert {row["attempt"] for row in rows.values()} == {1, 2, 3}
    assert max(rows) + 1 >= stopped.result["step"] > sealed


def test_complete_run_is_copied_and_not_started(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    file = write_script(tmp_path / "code", steps=40, every=20)
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: (status := run.status()) is not None and status.state == "finished", "its end")
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--yes")
    refused(midstream(*words, "--mode", "warm"), 2, "r is complete, step 40 of 40: there is nothing to rehearse")
    moved = midstream(*words, "--mode", "cold", "--json")
    assert moved.code == 0, moved.stderr
    assert claims_of(moved)["step"]["statement"] == "the run was complete at step 40: nothing was left to train"
    status = target.status()
    assert status is not None
    assert (status.state, status.step) == ("finished", 40)
    assert target.checkpoints() == source.checkpoints()[-1:]
    assert not Path(target.paths.attempt(2).metrics).read_text()


@pytest.mark.parametrize("mode", ["cold", "warm"])
def test_trainer_that_ignores_its_checkpoint_goes_back(
    lab: Lab, runs: Callable[..., Run], tmp_path: Path, mode: str
) -> None:
    """It trained the same steps again, from the beginning, under a valid certificate."""
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    file = write_script(tmp_path / "code", steps=STEPS, every=25, flags="--ignore-checkpoint")
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    source = runs(here.root, "r")
    source.wait(lambda run: len(run.checkpoints()) > 1, "two checkpoints")
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--mode", mode, "--yes", "--healthy-steps", "5")
    moved = midstream(*words, "--json")
    assert "the trainer logged step 0 after its start from step" in moved.stderr, moved.stderr
    if mode == "warm":  # the rehearsal shows it, before anything is stopped
        assert source.running
        assert source.attempt == 1
        return
    assert moved.code == Exit.NOT_CERTIFIED, moved.stderr
    [claim] = [event for event in moved.of("note") if event["message"].startswith("step: failed")]
    assert "it did not continue from it" in claim["message"]
    source.wait(lambda run: run.running and run.attempt == 3, "the source's next attempt")
    assert source.fence.epoch == 3


def test_script_is_rehearsed_migrated_warm_and_rolled_back(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    tap = "environment: {variables: {TAP: '1'}}"
    file = write_script(tmp_path / "code", steps=STEPS, every=25, saves=True, more=tap)
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--yes", "--healthy-steps", str(STEPS))
    process = start_midstream(*words, "--json")
    target.wait(lambda run: run.running and len(run.rows()) > 3, "the target's steps")
    assert process.stdout is not None
    events: list[dict[str, Any]] = []
    for line in process.stdout:
        events.append(json.loads(line))
        if events[-1].get("event") == "phase" and (events[-1]["phase"], events[-1]["state"]) == ("certify", "done"):
            break
    notes = [event.get("message", "") for event in events if event.get("event") == "note"]
    assert any("rehearsal: replay overlap: verified" in note and "bit by bit" in note for note in notes), notes
    assert any(note.startswith("data: verified") for note in notes), notes
    migration = next(event["identity"]["migration"] for event in events if event.get("event") == "plan")
    back = midstream("--rollback", migration, "--yes", "--json")
    process.communicate(timeout=60)
    assert back.code == 0, back.stderr
    source.wait(lambda run: run.running and run.attempt > 2, "the source's next attempt")
    source.wait(lambda run: len(run.rows()) > 3, "its steps")
    assert not target.running
    assert source.fence.epoch == 3
    check_curve(source, file, tmp_path / "straight")


def test_running_trainer_is_described_adopted_and_advised(
    lab: Lab, runs: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = lab.host("here")
    fleet = lab.fleet_file(here=here.config)
    directory = tmp_path / "theirs"
    file = write_script(directory, steps=STEPS, every=25)
    text = file.read_text()
    file.unlink()
    (directory / "out").mkdir()
    argv = [sys.executable, "train.py", "--out", "out", "--steps", STEPS, "--every", 25, "--pause", 0.02]
    theirs = subprocess.Popen(list(map(str, argv)), cwd=directory)
    try:
        monkeypatch.chdir(tmp_path)
        written = midstream("--fleet", fleet, "--init-run", f"here:{directory}")
        assert written.code == 0, written.stderr
        found = Path("run.yaml").read_text()
        assert "trainer: script" in found
        assert "{python} train.py --out {out} --steps 20000" in found
        refused(midstream("--fleet", fleet, "--adopt", f"here:{directory}"), 2, "has no run.yaml", "--init-run")
        private = tmp_path / "private-key"  # of this machine: a run file of a host names none of its files
        private.write_text("PRIVATE KEY")
        for name in (str(private), f"../{private.name}"):
            file.write_text(f"{text}\nenvironment: {{lock: {name}}}\n")
            adopt = midstream("--fleet", fleet, "--adopt", f"here:{directory}", "--run-id", "r")
            refused(adopt, 2, "environment.lock", "is not below the directory of the run file")
        file.write_text(f"{text}\nenvironment: {{lock: missing.txt}}\n")
        adopt = midstream("--fleet", fleet, "--adopt", f"here:{directory}", "--run-id", "r")
        refused(adopt, 2, "environment.lock", "missing.txt")
        file.write_text(text)
        adopted = midstream("--fleet", fleet, "--adopt", f"here:{directory}", "--run-id", "r", "--json")
        assert adopted.code == 0, adopted.stderr
        run = runs(here.root, "r")
        run.wait(lambda run: bool(run.checkpoints()) and bool(run.rows()), "a checkpoint")
        assert run.rows()[0]["global_step"] == 0
        advice = midstream("--fleet", fleet, "--check", "r", "--json")
        states = {event["name"]: event["state"] for event in advice.of("check")}
        assert states["checkpoint"] == "pass", advice.stdout
        assert states["batches"] == "warn", "it has no tap"
        refused(midstream("--fleet", fleet, "--compare", "r", "--with", "h100x8"), 2, "r is of script")
        run.kill()
        run.wait(lambda run: not run.running, "the driver's end")
        assert theirs.poll() is None, "a trainer that a user has started outlives its driver"
        again = midstream("--fleet", fleet, "--adopt", f"here:{directory}", "--run-id", "r", "--json")
        assert again.code == 0, again.stderr
        run.wait(lambda run: run.attempt == 2 and bool(run.rows(2)), "rows of the second attempt")
        stopped = midstream("--fleet", fleet, "--stop", "r", "--json")
        assert stopped.code == 0, stopped.stderr
        assert theirs.wait(60) != 0
    finally:
        theirs.kill()
        theirs.wait()


def test_run_in_a_directory_of_the_user_can_be_migrated(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    """``files:`` beside ``directory:`` are taken from that directory of the host, at the launch."""
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    directory = tmp_path / "theirs"
    file = write_script(directory, steps=STEPS, every=25, more=f"directory: {directory}")
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    runs(here.root, "r").wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    moved = midstream(
        "--fleet", fleet, "--migrate", "r", "--to", "there", "--mode", "cold", "--yes", "--healthy-steps", "5", "--json"
    )
    assert moved.code == 0, moved.stderr
    target = runs(there.root, "r")
    assert Path(target.paths.dir, "work", "train.py").read_bytes() == (directory / "train.py").read_bytes()


@pytest.mark.slow
def test_guard_migrates_a_script_that_was_killed(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    file = write_script(tmp_path / "code", steps=STEPS, every=25)
    assert midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r").code == 0
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    words = ("--fleet", fleet, "--guard", "r", "--to", "there", "--tries", "1", "--json")
    refused(midstream(*words), 3, "there would execute", "--yes agrees to it")
    guard = start_midstream(*words, "--yes")
    try:
        assert guard.stdout is not None
        source.kill()
        target.wait(lambda run: run.running and len(run.rows()) > 3, "the run there", 100.0)
        kinds: list[str] = []
        for line in guard.stdout:
            kinds.append(json.loads(line)["kind"])
            if kinds[-1] == "finished":
                break
        stopped = midstream("--fleet", fleet, "--stop", "r")
        assert stopped.code == 0, stopped.stderr
        guard.wait(60.0)
    finally:
        guard.kill()
        guard.communicate()
    assert guard.returncode == 0
    assert kinds == ["lost", "migrating", "finished"]
    assert (target.fence.owner, target.fence.epoch) == ("there", 2)
    check_curve(target, file, tmp_path / "straight")


@pytest.mark.slow
def test_data_that_restart_are_found_before_the_stop(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    file = write_script(tmp_path / "code", steps=STEPS, every=25, flags="--forget-data")
    assert midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r").code == 0
    source = runs(here.root, "r")
    source.wait(lambda run: len(run.checkpoints()) > 1, "two checkpoints")
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--yes", "--healthy-steps", "3", "--json")
    moved = midstream(*words)
    assert moved.code == 1, moved.stderr
    assert "the order of the data, or the random state, begins again" in moved.stderr
    assert source.running
    assert source.attempt == 1
    assert source.fence.epoch == 1


@pytest.mark.slow
def test_data_that_restart_by_agreement_are_certified(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    more = "stored: {data_position: 'no'}"
    file = write_script(tmp_path / "code", steps=STEPS, every=25, flags="--forget-data", more=more)
    assert midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r").code == 0
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: len(run.checkpoints()) > 1, "two checkpoints")
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--healthy-steps", "3", "--json")
    moved = midstream(*words, "--yes")
    assert moved.code == 0, moved.stderr
    overlap = claims_of(moved)["replay overlap"]
    assert (overlap["verdict"], overlap["agreed"]) == ("failed", True)
    assert moved.result["certificate"]["valid"]
    assert target.running


def test_run_that_saves_only_on_its_signal_is_migrated_cold(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    """A rehearsal needs an earlier checkpoint, and a run of this kind never has one."""
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    file = write_script(tmp_path / "code", steps=STEPS, every=STEPS, saves=True)
    file.write_text(file.read_text().replace("saves: true", "saves: true, wait: 2"))
    assert midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r").code == 0
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: len(run.rows()) > 3, "steps")
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--healthy-steps", "3", "--yes", "--json")
    planned = midstream(*words, "--dry-run")
    assert "choose --mode cold" in planned.stdout, planned.stdout
    warm = midstream(*words)
    assert warm.code == 1, warm.stderr
    assert "nothing to rehearse on" in warm.stderr
    assert "it saves when it is stopped: --mode cold" in warm.stderr
    assert source.running
    assert source.fence.epoch == 1
    cold = midstream(*words, "--mode", "cold")
    assert cold.code == 0, cold.stderr
    assert "choose --mode cold" not in cold.stdout
    assert target.running


def test_plan_names_what_is_lost_on_other_processes(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    """The Trainer saves a random state for each process: on another number it has none."""
    here, there = lab.host("here", devices=2), lab.host("there", devices=1)
    fleet = lab.fleet_file(here=here.config, there=there.config)
    more = "launcher: false\nbatch: {kept_by: trainer}"
    file = write_script(tmp_path / "code", steps=STEPS, every=25, flags="--own-directory", more=more)
    file.write_text(file.read_text().replace("trainer: script", "trainer: huggingface"))
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    source = runs(here.root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--dry-run", "--json")
    planned = midstream(*words, "--mode", "cold")
    assert "checkpoints of huggingface lack the random state of 2 processes -> 1" in planned.stdout, planned.stdout
    assert "2 processes -> 1: dispatch_batches" in planned.stdout
    found = {event["name"]: event for event in planned.of("check")}
    assert found["random state"]["state"] == "warn", planned.stdout
    assert "on 2 processes -> 1 dropout and augmentation draw other numbers" in found["random state"]["detail"]
