"""Migrations that are killed, cut and lied to: never two lineages, nothing lost, and a line that says how to go on."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from lab.command_line import SLOWER, TINY, Run, ended, midstream, start_midstream, step_of
from lab.sshd import Lab
from midstream.migrate.directory import MigrationDirectory, migration_ids
from midstream.migrate.journal import read_events
from midstream_engine import records

LONG = (*SLOWER, "--trainer.num_train_steps", "100000")


def launched(fleet: Path, run: Run, target: str, *flags: str) -> None:
    """The run ``run``, training on ``target``, a few steps on."""
    done = midstream(
        "--fleet", fleet, "--launch", TINY, "--on", target, "--run-id", run.paths.run_id, "--", *LONG, *flags
    )
    assert done.code == 0, done.stderr
    run.wait_step(4)


def newest_migration() -> MigrationDirectory:
    return MigrationDirectory(migration_ids()[0])


def wait_event(phase: str, state: str, timeout: float = 120.0) -> MigrationDirectory:
    """Until the newest migration's journal has this line."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if migration_ids():
            directory = newest_migration()
            for event in read_events(directory.journal_file):
                if event.event == "phase" and (event.phase, event.state) == (phase, state):
                    return directory
        time.sleep(0.02)
    pytest.fail(f"{phase} {state}: not within {timeout} s")


def kill_operator(directory: MigrationDirectory) -> None:
    """End the process that carries the migration out, at once."""
    pid = int((directory.path / ".lock").read_text())
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while directory.is_held() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not directory.is_held()


def assert_one_lineage(run: Run) -> None:
    """Every step once, none missing, each in the accepted lineage."""
    spliced = run.spliced()
    assert sorted(spliced) == list(range(max(spliced) + 1))


@pytest.mark.parametrize("phase", ["prepare", "cutover", "relaunch", "finish"])
def test_a_migration_whose_process_is_killed_is_continued(phase: str, lab: Lab, runs):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    one, two = lab.local("one", devices=2), lab.local("two", devices=4)
    fleet = lab.fleet_file(one=one, two=two)
    source, target = runs(one.root, "r"), runs(two.root, "r")
    launched(fleet, source, "one")
    follower = start_midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--healthy-steps", "12")
    directory = wait_event(phase, "started")
    time.sleep(random.Random(seed).uniform(0.0, 1.5))
    kill_operator(directory)
    _, talk = follower.communicate(timeout=60)
    if "completed" not in talk and follower.returncode != 0:
        assert follower.returncode == 4, talk
        assert f"midstream --continue {directory.migration}" in talk
    assert not (source.alive and target.alive)

    again = midstream("--continue", directory.migration, "--json")
    assert again.code in (0, 2), again.stderr  # 2: the kill came after the end
    assert directory.view().state == "completed"
    assert target.alive
    assert not source.alive
    assert source.fence == target.fence
    assert target.fence.epoch == 2
    assert_one_lineage(target)
    starts = [name for name in os.listdir(target.paths.attempts) if int(name) >= 2]
    assert len(starts) <= 2
    proof = json.loads(directory.certificate_file.read_text())
    assert proof["valid"]


def test_a_target_that_dies_gives_the_run_back_to_its_source(lab: Lab, runs):
    one, two = lab.local("one", devices=2), lab.local("two", devices=4)
    fleet = lab.fleet_file(one=one, two=two)
    source, target = runs(one.root, "r"), runs(two.root, "r")
    launched(fleet, source, "one")
    follower = start_midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--json")
    wait_event("relaunch", "started")
    target.wait(lambda run: run.attempt == 2 and run.status(2) is not None, "the target's attempt")
    target.kill()
    out, talk = follower.communicate(timeout=200)
    assert follower.returncode == 1, talk
    result = json.loads(out.splitlines()[-1])
    assert result["outcome"] == "rolled back"
    sealed = next(event for event in read_events(newest_migration().journal_file) if "sealed" in event.detail)
    step = sealed.detail["sealed"]["step"]
    source.wait(lambda run: run.attempt == 3 and run.alive, "the source's new attempt")
    source.wait_step(step + 3)
    assert source.rows(3)[0]["global_step"] == step, "it goes on exactly where it was sealed"
    assert_one_lineage(source)
    assert source.fence.epoch == 3
    assert not source.fence.accepts(2, step + 1), "nothing of the target's is accepted any more"
    assert records.Fence.read(target.paths.fence) == source.fence


def test_a_person_takes_a_migration_back_until_it_is_finished(lab: Lab, runs):
    one, two = lab.host("one", devices=2), lab.local("two", devices=4)
    fleet = lab.fleet_file(one=one.config, two=two)
    source, target = runs(one.root, "r"), runs(two.root, "r")
    launched(fleet, source, "one")
    follower = start_midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--healthy-steps", "100000")
    directory = wait_event("finish", "started")
    step = json.loads(directory.certificate_file.read_text())["step"]
    target.wait_step(step + 2)
    refused = midstream("--rollback", directory.migration)
    assert refused.code == 3
    assert "--yes" in refused.stderr
    back = midstream("--rollback", directory.migration, "--yes", "--json")
    assert back.code == 0, back.stderr
    assert back.result["outcome"] == "rolled back"
    assert ended(follower) == 0
    assert not target.alive
    assert source.alive
    assert source.rows(3)[0]["global_step"] == step
    assert_one_lineage(source)
    assert midstream("--rollback", directory.migration, "--yes").code == 2


def test_a_witness_that_disagrees_is_not_certified_and_rolled_back(lab: Lab, runs):
    """The checkpoint's bytes are whole, but its losses are not those that were recorded."""
    one, two = lab.local("one", devices=2), lab.local("two", devices=2)
    fleet = lab.fleet_file(one=one, two=two)
    source, target = runs(one.root, "r"), runs(two.root, "r")
    launched(fleet, source, "one", "--trainer.checkpointer.keep", "[{every: 5}]")
    source.wait(lambda run: len(run.checkpoints()) >= 1, "a checkpoint")
    name = source.checkpoints()[0]
    directory = Path(source.paths.checkpoint(name))
    train = json.loads((directory / records.TRAIN).read_text())
    train["witness"]["losses"][0] *= 1.01
    (directory / records.TRAIN).write_text(json.dumps(train))
    forge_manifest(directory)
    moved = midstream(
        "--fleet", fleet, "--migrate", "r", "--to", "two", "--checkpoint", str(step_of(name)), "--yes", "--json"
    )
    assert moved.code == 5, (moved.stderr, moved.stdout)
    claims = {claim["name"]: claim["verdict"] for claim in moved.result["certificate"]["claims"]}
    assert (claims["state"], claims["witness"]) == ("proven", "refuted")
    assert not target.alive
    # The source goes on from what it had saved as it was stopped: nothing of it is lost.
    source.wait(lambda run: run.attempt == 3 and run.alive, "the source's new attempt")
    stopped_at = source.rows(1)[-1]["global_step"] + 1
    source.wait_step(stopped_at + 2)
    assert source.rows(3)[0]["global_step"] == stopped_at
    assert_one_lineage(source)


def forge_manifest(directory: Path) -> None:
    """Make the manifest agree with a train.json that was edited: only the witness, which no digest covers."""
    import hashlib

    manifest = json.loads((directory / records.MANIFEST).read_text())
    data = (directory / records.TRAIN).read_bytes()
    for entry in manifest["objects"]:
        if entry["path"] == records.TRAIN:
            entry.update(size=len(data), sha256=hashlib.sha256(data).hexdigest(), crc32c="")
    (directory / records.MANIFEST).write_text(json.dumps(manifest))


def test_a_rollback_that_cannot_reach_the_target_waits_to_be_continued(lab: Lab, runs):
    """The target may be training: without evidence that it is not, the source does not start."""
    one, two = lab.local("one", devices=2), lab.host("two", devices=2)
    fleet = lab.fleet_file(one=one, two=two.config)
    source, target = runs(one.root, "r"), runs(two.root, "r")
    launched(fleet, source, "one")
    follower = start_midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--healthy-steps", "100000")
    directory = wait_event("finish", "started")
    two.stop()
    back = midstream("--rollback", directory.migration, "--yes", "--json")
    assert back.code == 4, (back.stderr, back.stdout)
    assert f"midstream --continue {directory.migration}" in back.result["message"]
    assert ended(follower) == 4
    assert target.alive
    assert not source.alive
    two.start()
    again = midstream("--continue", directory.migration, "--json")
    assert directory.view().state == "rolled back", again.stderr
    assert not target.alive
    assert source.alive
    assert_one_lineage(source)
