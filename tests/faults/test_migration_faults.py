"""Migrations with killed processes, cut links and false records."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream.migrate.journal.facts import facts_of
from midstream.migrate.journal.journal import read_events
from midstream.migrate.journal.migration_directory import MigrationDirectory, migration_ids
from midstream_core import records
from simulators.sshd import Lab
from support.command_line import SLOWER, TINY, Run, ended, midstream, start_midstream, step_of
from support.migrations.real_migrations import assert_one_lineage, kill_operator, launched, newest_migration, two_hosts


def wait_event(phase: str, state: str, timeout: float = 120.0) -> MigrationDirectory:
    """Wait until the newest migration's journal has this line."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if migration_ids():
            directory = newest_migration()
            for event in read_events(directory.journal_file):
                if event.event == "phase" and (event.phase, event.state) == (phase, state):
                    return directory
        time.sleep(0.02)
    pytest.fail(f"{phase} {state}: not within {timeout} s")


def wait_command(words: str, timeout: float = 120.0) -> MigrationDirectory:
    """Wait until the command log of the running migration has a line with these words."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if migration_ids():
            directory = newest_migration()
            done = any(event.event == "command" and words in event.message for event in directory.view().events)
            if done and directory.is_locked():
                return directory
        time.sleep(0.01)
    pytest.fail(f"{words!r} was not done within {timeout} s")


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["prepare", "cutover", "relaunch", "finish"])
def test_migration_of_killed_operator_is_continued(phase: str, lab: Lab, runs: Callable[..., Run]) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    fleet, source, target = two_hosts(lab, runs, 2, 4)
    launched(fleet, source, "one")
    follower = start_midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--healthy-steps", "60")
    directory = wait_event(phase, "started")
    time.sleep(random.Random(seed).uniform(0.0, 1.5))
    kill_operator(directory)
    _, errors = follower.communicate(timeout=60)
    if "completed" not in errors and follower.returncode != 0:
        assert follower.returncode == 4, errors
        assert f"midstream --continue {directory.migration}" in errors
    status = target.status() if target.attempt >= 2 else None
    assert not (source.running and target.running and status is not None and status.epoch > 0), (
        "at most one of them trains"
    )

    again = midstream("--continue", directory.migration, "--json")
    assert again.code in (0, 2), again.stderr  # 2: the kill came after the end
    assert directory.view().state == "completed"
    assert target.running
    assert not source.running
    assert source.handed_over == target.handed_over
    assert target.fence.epoch == 2
    assert_one_lineage(target)
    starts = [name for name in os.listdir(target.paths.attempts) if int(name) >= 2]
    assert len(starts) <= 2
    certificate = json.loads(directory.certificate_file.read_text())
    assert certificate["valid"]


@pytest.mark.drawn
def test_killed_target_rolls_back_to_source(lab: Lab, runs: Callable[..., Run]) -> None:
    fleet, source, target = two_hosts(lab, runs, 2, 4)
    launched(fleet, source, "one")
    follower = start_midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--mode", "cold", "--json")
    wait_event("relaunch", "started")
    target.wait(lambda run: run.attempt == 2 and run.status(2) is not None, "the target's attempt")
    target.kill()
    out, errors = follower.communicate(timeout=200)
    assert follower.returncode == 1, errors
    result = json.loads(out.splitlines()[-1])
    assert result["outcome"] == "rolled back"
    sealed = facts_of(read_events(newest_migration().journal_file)).sealed
    assert sealed is not None
    step = sealed.step
    source.wait(lambda run: run.attempt == 3 and run.running, "the source's new attempt")
    source.wait_step(step + 3)
    assert source.rows(3)[0]["global_step"] == step, "it continues at the sealed step"
    assert_one_lineage(source)
    assert source.fence.epoch == 3
    assert not source.fence.accepts(2, step + 1), "no step of the target is accepted"
    assert source.fence.continues(records.Fence.read(target.paths.fence))


@pytest.mark.slow
def test_rollback_on_request_until_finished(lab: Lab, runs: Callable[..., Run]) -> None:
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
    assert not target.running
    assert source.running
    assert source.rows(3)[0]["global_step"] == step
    assert_one_lineage(source)
    assert midstream("--rollback", directory.migration, "--yes").code == 2


@pytest.mark.drawn
def test_wrong_reference_losses_roll_back(lab: Lab, runs: Callable[..., Run]) -> None:
    """The checkpoint's bytes are intact, but its recorded reference losses are wrong."""
    fleet, source, target = two_hosts(lab, runs, 2, 2)
    launched(fleet, source, "one", "--trainer.checkpointer.keep", "[{every: 5}]")
    source.wait(lambda run: len(run.checkpoints()) >= 1, "a checkpoint")
    name = source.checkpoints()[0]
    directory = Path(source.paths.checkpoint(name))
    train = json.loads((directory / records.TRAIN).read_text())
    train["reference_losses"]["losses"][0] *= 1.01
    (directory / records.TRAIN).write_text(json.dumps(train))
    forge_manifest(directory)
    moved = midstream(
        "--fleet", fleet, "--migrate", "r", "--to", "two", "--mode", "cold",
        "--checkpoint", str(step_of(name)), "--yes", "--json",
    )  # fmt: skip
    assert moved.code == 5, (moved.stderr, moved.stdout)
    claims = {claim["name"]: claim["verdict"] for claim in moved.result["certificate"]["claims"]}
    assert (claims["state"], claims["reference losses"]) == ("verified", "failed")
    assert not target.running
    # The source continues from the checkpoint of its stop: no step is lost.
    source.wait(lambda run: run.attempt == 3 and run.running, "the source's new attempt")
    stopped_at = source.rows(1)[-1]["global_step"] + 1
    source.wait_step(stopped_at + 2)
    assert source.rows(3)[0]["global_step"] == stopped_at
    assert_one_lineage(source)


def forge_manifest(directory: Path) -> None:
    """Make the manifest match an edited train.json."""
    import hashlib

    manifest = json.loads((directory / records.MANIFEST).read_text())
    data = (directory / records.TRAIN).read_bytes()
    for entry in manifest["objects"]:
        if entry["path"] == records.TRAIN:
            entry.update(size=len(data), sha256=hashlib.sha256(data).hexdigest(), crc32c="")
    (directory / records.MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.slow
def test_rollback_with_unreachable_target_is_continued(lab: Lab, runs: Callable[..., Run]) -> None:
    """The target may be training: the source starts only with evidence that it is not."""
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
    assert target.running
    assert not source.running
    two.start()
    again = midstream("--continue", directory.migration, "--json")
    assert directory.view().state == "rolled back", again.stderr
    assert not target.running
    assert source.running
    assert_one_lineage(source)


@pytest.mark.slow
def test_unwritable_source_and_competing_operators(
    lab: Lab, runs: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = lab.local("one", devices=2), lab.local("two", devices=4), lab.local("three", devices=1)
    fleet = lab.fleet_file(one=one, two=two, three=three)
    source = runs(one.root, "r")
    launched(fleet, source, "one")

    # The checkpoints' directory cannot be written, as on a disk that is full or read-only.
    checkpoints = Path(source.paths.checkpoints)
    checkpoints.rmdir()
    checkpoints.symlink_to(tmp_path / "nowhere")
    refused = midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--json", timeout=120)
    assert refused.code == 1, (refused.stdout, refused.stderr)
    assert refused.result["outcome"] == "rolled back"
    assert "one cannot save the state to migrate: step" in refused.result["message"]
    assert (source.attempt, source.running, source.fence.epoch) == (1, True, 1)
    status = source.status()
    assert status is not None
    source.wait_step(status.step + 2)
    checkpoints.unlink()
    checkpoints.mkdir()

    # Two operators, each with a state directory of their own.
    operators = {}
    for target in ("two", "three"):
        monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / target))
        operators[target] = start_midstream(
            "--fleet", fleet, "--migrate", "r", "--to", target, "--mode", "cold", "--healthy-steps", "3", "--json"
        )
    outputs = {target: operator.communicate(timeout=200) for target, operator in operators.items()}
    codes = {target: operator.returncode for target, operator in operators.items()}
    (winner,) = [target for target, code in codes.items() if code == 0]
    (loser,) = {"two", "three"} - {winner}
    assert codes[loser] in (1, 3), outputs[loser]
    result = json.loads(outputs[loser][0].splitlines()[-1])
    why = result.get("message") or result["error"]
    assert winner in why or "moved" in why, why
    targets = {"two": runs(two.root, "r"), "three": runs(three.root, "r")}
    assert source.attempt == 1, "the source was not restarted"
    assert not source.running
    assert source.fence == targets[winner].fence
    assert (source.fence.epoch, source.fence.owner) == (2, winner)
    assert targets[winner].running
    assert targets[loser].attempt == 0
    assert_one_lineage(targets[winner])


@pytest.mark.slow
def test_rollback_undoes_stop_and_target_start(lab: Lab, runs: Callable[..., Run]) -> None:
    """Kill the operator after the source's stop, then at the target's start."""
    fleet, source, target = two_hosts(lab, runs, 2, 4)
    launched(fleet, source, "one", "--trainer.checkpointer.keep", "[{every: 5}]")
    source.wait(lambda run: len(run.checkpoints()) >= 1, "a checkpoint")
    step = str(step_of(source.checkpoints()[0]))

    migrate = ("--fleet", fleet, "--migrate", "r", "--to", "two", "--mode", "cold", "--yes", "--json")
    follower = start_midstream(*migrate, "--checkpoint", step)
    directory = wait_command("command: save, stop")
    kill_operator(directory)
    assert ended(follower) == 4
    back = midstream("--rollback", directory.migration, "--json")
    assert back.code == 0, (back.stdout, back.stderr)
    assert source.running
    epoch = source.fence.epoch
    assert epoch in (1, 3), "3: the kill came after the seal"
    assert_one_lineage(source)
    refused = midstream("--rollback", directory.migration)
    assert (refused.code, "rolled back already" in refused.stderr) == (2, True)

    follower = start_midstream(*migrate)
    directory = wait_command("start attempt")
    kill_operator(directory)
    assert ended(follower) == 4
    back = midstream("--rollback", directory.migration, "--yes", "--json")
    assert back.code == 0, (back.stdout, back.stderr)
    assert source.running
    assert not target.running
    assert source.handed_over == target.handed_over
    assert (source.fence.epoch, source.fence.owner) == (epoch + 2, "one")
    assert source.attempt > target.attempt, "no number is used twice"
    assert_one_lineage(source)
    assert midstream("--continue", directory.migration).code == 2


@pytest.mark.slow
def test_cut_link_reconnects_and_killed_target_restarts(lab: Lab, runs: Callable[..., Run]) -> None:
    one, two = lab.host("one", devices=2), lab.local("two", devices=4)
    fleet = lab.fleet_file(one=one.config, two=two)
    source, target = runs(one.root, "r"), runs(two.root, "r")
    launched(fleet, source, "one", "--trainer.checkpointer.keep", "[{every: 5}]")
    follower = start_midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--healthy-steps", "100000", "--json")
    wait_command("command: save, seal")
    one.drop_connections()
    directory = wait_event("finish", "started", 200)
    assert not any(event.phase == "rollback" for event in directory.view().events)
    certificate = directory.certificate_file.read_bytes()
    sealed = json.loads(certificate)["step"]
    target.wait(lambda run: step_of(run.checkpoints()[-1]) > sealed, "a checkpoint of the target's own")
    target.kill()
    out, _ = follower.communicate(timeout=60)
    assert follower.returncode == 4
    message = json.loads(out.splitlines()[-1])["message"]
    for line in (f"midstream --continue {directory.migration}", f"midstream --rollback {directory.migration} --yes"):
        assert line in message
    assert not source.running

    follower = start_midstream("--continue", directory.migration, "--json")
    target.wait(lambda run: run.attempt == 3 and bool(run.rows(3)), "the target's second attempt")
    assert target.rows(3)[0]["global_step"] > sealed, "it continues from the target's checkpoint"
    assert target.fence.epoch == 2
    assert directory.certificate_file.read_bytes() == certificate
    assert_one_lineage(target)
    # A stopped run ends the migration's wait for healthy steps.
    assert midstream("--stop", "r", "--fleet", fleet, "--json").code == 0
    assert ended(follower) == 4
    stopped = midstream("--stop", "r", "--fleet", fleet)
    assert stopped.code == 2
    assert "does not run" in stopped.stderr


@pytest.mark.slow
def test_killed_and_finished_runs_are_migrated(lab: Lab, runs: Callable[..., Run]) -> None:
    one, two = lab.local("one", devices=2), lab.local("two", devices=1)
    fleet = lab.fleet_file(one=one, two=two)
    source, target = runs(one.root, "r"), runs(two.root, "r")
    flags = (*SLOWER, "--trainer.num_train_steps", "40", "--trainer.checkpointer.keep", "[{every: 10}]")
    assert midstream("--fleet", fleet, "--launch", TINY, "--on", "one", "--run-id", "r", "--", *flags).code == 0
    source.wait(lambda run: len(run.checkpoints()) >= 1, "a checkpoint")
    source.kill()
    newest = step_of(source.checkpoints()[-1])
    last_step = source.rows(1)[-1]["time"]

    moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--yes", "--healthy-steps", "1", "--json")
    assert moved.code == 0, (moved.stdout, moved.stderr)
    assert moved.result["certificate"]["step"] == newest
    downtime = moved.result["downtime"]
    assert downtime["last_step_ended"] > last_step
    assert sum(downtime["measured"].values()) == pytest.approx(downtime["total"])
    target.wait(lambda run: (status := run.status()) is not None and status.state == "finished", "the end")
    assert sorted(target.spliced()) == list(range(40))

    back = midstream("--fleet", fleet, "--migrate", "r", "--to", "one", "--yes", "--json")
    assert back.code == 0, (back.stdout, back.stderr)
    claims = {claim["name"]: claim["verdict"] for claim in back.result["certificate"]["claims"]}
    assert (claims["state"], claims["data"], claims["reference losses"]) == ("verified", "verified", "verified")
    assert sorted(source.spliced()) == list(range(40))
    assert source.fence.epoch == 3


@pytest.mark.slow  # two minutes
def test_source_unreachable_after_seal_command(lab: Lab, runs: Callable[..., Run]) -> None:
    """A partition hides the source's seal: the target does not start before its end."""
    one, two = lab.host("one", devices=2), lab.local("two", devices=2)
    fleet = lab.fleet_file(one=one.config, two=two)
    source, target = runs(one.root, "r"), runs(two.root, "r")
    launched(fleet, source, "one")
    follower = start_midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--healthy-steps", "2", "--json")
    directory = wait_command("command: save, seal")
    one.stop()
    source.wait(lambda run: run.fence.epoch == 2 and not run.running, "the hidden seal")
    deadline = time.monotonic() + 60
    while not any("losing contact is not losing the run" in e.message for e in read_events(directory.journal_file)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    status = target.status(2)
    assert status is not None
    assert (status.state, status.epoch, target.rows(2)) == ("waiting", 0, [])
    one.start()
    out, errors = follower.communicate(timeout=240)
    assert follower.returncode == 0, (out, errors)
    assert target.running
    assert source.handed_over == target.handed_over
    assert_one_lineage(target)
