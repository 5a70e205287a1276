"""Migrations that are killed, cut and lied to: never two lineages, nothing lost, and a line that says how to go on."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from midstream.migrate.execution.journal import read_events
from midstream.migrate.execution.migration_directory import MigrationDirectory, migration_ids
from midstream_engine import records
from simulators.sshd import Lab
from support.command_line import SLOWER, TINY, Run, ended, midstream, start_midstream, step_of

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


def wait_command(words: str, timeout: float = 120.0) -> MigrationDirectory:
    """Until the command log of the migration that is under way has a line with these words."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if migration_ids():
            directory = newest_migration()
            done = any(event.event == "command" and words in event.message for event in directory.view().events)
            if done and directory.is_locked():
                return directory
        time.sleep(0.01)
    pytest.fail(f"{words!r} was not done within {timeout} s")


def kill_operator(directory: MigrationDirectory) -> None:
    """End the process that carries the migration out, at once."""
    pid = int((directory.path / ".lock").read_text())
    with contextlib.suppress(ProcessLookupError):  # it ended by itself a moment ago
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while directory.is_locked() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not directory.is_locked()


def assert_one_lineage(run: Run) -> None:
    """Every step once, none missing, each in the accepted lineage."""
    spliced = run.spliced()
    assert sorted(spliced) == list(range(max(spliced) + 1))


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["prepare", "cutover", "relaunch", "finish"])
def test_a_migration_whose_process_is_killed_is_continued(phase: str, lab: Lab, runs):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    one, two = lab.local("one", devices=2), lab.local("two", devices=4)
    fleet = lab.fleet_file(one=one, two=two)
    source, target = runs(one.root, "r"), runs(two.root, "r")
    launched(fleet, source, "one")
    follower = start_midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--healthy-steps", "60")
    directory = wait_event(phase, "started")
    time.sleep(random.Random(seed).uniform(0.0, 1.5))
    kill_operator(directory)
    _, talk = follower.communicate(timeout=60)
    if "completed" not in talk and follower.returncode != 0:
        assert follower.returncode == 4, talk
        assert f"midstream --continue {directory.migration}" in talk
    status = target.status() if target.attempt >= 2 else None
    assert not (source.alive and target.alive and status is not None and status.epoch > 0), "one of them trains"

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
    follower = start_midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--mode", "cold", "--json")
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_source_that_cannot_save_says_so_and_trains_on_and_of_two_operators_one_moves_it(
    lab: Lab, runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one, two, three = lab.local("one", devices=2), lab.local("two", devices=4), lab.local("three", devices=1)
    fleet = lab.fleet_file(one=one, two=two, three=three)
    source = runs(one.root, "r")
    launched(fleet, source, "one")

    # Where checkpoints would go, nothing can be written, as on a disk that is full or read-only.
    checkpoints = Path(source.paths.checkpoints)
    checkpoints.rmdir()
    checkpoints.symlink_to(tmp_path / "nowhere")
    refused = midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--json", timeout=120)
    assert refused.code == 1, (refused.stdout, refused.stderr)
    assert refused.result["outcome"] == "rolled back"
    assert "one cannot save what is to be moved: step" in refused.result["message"]
    assert (source.attempt, source.alive, source.fence.epoch) == (1, True, 1)
    status = source.status()
    assert status is not None
    source.wait_step(status.step + 2)
    checkpoints.unlink()
    checkpoints.mkdir()

    # Two people, each with a state directory of their own.
    operators = {}
    for target in ("two", "three"):
        monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / target))
        operators[target] = start_midstream(
            "--fleet", fleet, "--migrate", "r", "--to", target, "--mode", "cold", "--healthy-steps", "3", "--json"
        )
    said = {target: operator.communicate(timeout=200) for target, operator in operators.items()}
    codes = {target: operator.returncode for target, operator in operators.items()}
    (winner,) = [target for target, code in codes.items() if code == 0]
    (loser,) = {"two", "three"} - {winner}
    assert codes[loser] in (1, 3), said[loser]
    result = json.loads(said[loser][0].splitlines()[-1])
    why = result.get("message") or result["error"]
    assert winner in why or "moved" in why, why
    places = {"two": runs(two.root, "r"), "three": runs(three.root, "r")}
    assert source.attempt == 1, "nobody started the source again"
    assert not source.alive
    assert source.fence == places[winner].fence
    assert (source.fence.epoch, source.fence.owner) == (2, winner)
    assert places[winner].alive
    assert places[loser].attempt == 0
    assert_one_lineage(places[winner])


@pytest.mark.slow
def test_whatever_was_begun_is_taken_back_and_the_source_runs(lab: Lab, runs):
    """The operator's process dies after the source has stopped unsealed, and again while the target's engine starts."""
    one, two = lab.local("one", devices=2), lab.local("two", devices=4)
    fleet = lab.fleet_file(one=one, two=two)
    source, target = runs(one.root, "r"), runs(two.root, "r")
    launched(fleet, source, "one", "--trainer.checkpointer.keep", "[{every: 5}]")
    source.wait(lambda run: len(run.checkpoints()) >= 1, "a checkpoint")
    step = str(step_of(source.checkpoints()[0]))

    move = ("--fleet", fleet, "--migrate", "r", "--to", "two", "--mode", "cold", "--yes", "--json")
    follower = start_midstream(*move, "--checkpoint", step)
    directory = wait_command("order: save, stop")
    kill_operator(directory)
    assert ended(follower) == 4
    back = midstream("--rollback", directory.migration, "--json")
    assert back.code == 0, (back.stdout, back.stderr)
    assert source.alive
    epoch = source.fence.epoch
    assert epoch in (1, 3), "3: the kill came after the seal"
    assert_one_lineage(source)
    refused = midstream("--rollback", directory.migration)
    assert (refused.code, "rolled back already" in refused.stderr) == (2, True)

    follower = start_midstream(*move)
    directory = wait_command("start attempt")
    kill_operator(directory)
    assert ended(follower) == 4
    back = midstream("--rollback", directory.migration, "--yes", "--json")
    assert back.code == 0, (back.stdout, back.stderr)
    assert source.alive
    assert not target.alive
    assert source.fence == target.fence
    assert (source.fence.epoch, source.fence.owner) == (epoch + 2, "one")
    assert source.attempt > target.attempt, "no number is used twice"
    assert_one_lineage(source)
    assert midstream("--continue", directory.migration).code == 2


@pytest.mark.slow
def test_a_cut_link_is_made_anew_and_a_target_that_dies_later_is_started_again(lab: Lab, runs):
    one, two = lab.host("one", devices=2), lab.local("two", devices=4)
    fleet = lab.fleet_file(one=one.config, two=two)
    source, target = runs(one.root, "r"), runs(two.root, "r")
    launched(fleet, source, "one", "--trainer.checkpointer.keep", "[{every: 5}]")
    follower = start_midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--healthy-steps", "100000", "--json")
    wait_command("order: save, seal")
    one.drop_connections()
    directory = wait_event("finish", "started", 200)
    assert not any(event.phase == "rollback" for event in directory.view().events)
    proof = directory.certificate_file.read_bytes()
    sealed = json.loads(proof)["step"]
    target.wait(lambda run: step_of(run.checkpoints()[-1]) > sealed, "a checkpoint of the target's own")
    target.kill()
    out, _ = follower.communicate(timeout=60)
    assert follower.returncode == 4
    message = json.loads(out.splitlines()[-1])["message"]
    for line in (f"midstream --continue {directory.migration}", f"midstream --rollback {directory.migration} --yes"):
        assert line in message
    assert not source.alive

    follower = start_midstream("--continue", directory.migration, "--json")
    target.wait(lambda run: run.attempt == 3 and bool(run.rows(3)), "the target's second attempt")
    assert target.rows(3)[0]["global_step"] > sealed, "it goes on from what the target had saved"
    assert target.fence.epoch == 2
    assert directory.certificate_file.read_bytes() == proof
    assert_one_lineage(target)
    # Whoever moves it on finishes the move before: there is nothing left to wait for, and no way back to the source.
    assert midstream("--stop", "r", "--fleet", fleet, "--json").code == 0
    assert ended(follower) == 4
    stopped = midstream("--stop", "r", "--fleet", fleet)
    assert stopped.code == 2
    assert "does not run" in stopped.stderr


@pytest.mark.slow
def test_a_run_that_died_and_one_that_has_finished_are_moved_from_what_they_left(lab: Lab, runs):
    one, two = lab.local("one", devices=2), lab.local("two", devices=1)
    fleet = lab.fleet_file(one=one, two=two)
    source, target = runs(one.root, "r"), runs(two.root, "r")
    flags = (*SLOWER, "--trainer.num_train_steps", "40", "--trainer.checkpointer.keep", "[{every: 10}]")
    assert midstream("--fleet", fleet, "--launch", TINY, "--on", "one", "--run-id", "r", "--", *flags).code == 0
    source.wait(lambda run: len(run.checkpoints()) >= 1, "a checkpoint")
    source.kill()
    newest = step_of(source.checkpoints()[-1])
    died = source.rows(1)[-1]["time"]

    moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--yes", "--healthy-steps", "1", "--json")
    assert moved.code == 0, (moved.stdout, moved.stderr)
    assert moved.result["certificate"]["step"] == newest
    ledger = moved.result["downtime"]
    assert ledger["last_step_ended"] > died
    assert sum(ledger["measured"].values()) == pytest.approx(ledger["downtime"])
    target.wait(lambda run: (status := run.status()) is not None and status.state == "finished", "the end")
    assert sorted(target.spliced()) == list(range(40))

    back = midstream("--fleet", fleet, "--migrate", "r", "--to", "one", "--yes", "--json")
    assert back.code == 0, (back.stdout, back.stderr)
    claims = {claim["name"]: claim["verdict"] for claim in back.result["certificate"]["claims"]}
    assert (claims["state"], claims["data"], claims["reference losses"]) == ("verified", "verified", "verified")
    assert sorted(source.spliced()) == list(range(40))
    assert source.fence.epoch == 3


@pytest.mark.slow  # two minutes
def test_a_source_that_falls_silent_once_it_was_told_to_seal_is_waited_for(lab: Lab, runs):
    """A partition: the seal was written, and nobody can say so. The target is not started on a guess."""
    one, two = lab.host("one", devices=2), lab.local("two", devices=2)
    fleet = lab.fleet_file(one=one.config, two=two)
    source, target = runs(one.root, "r"), runs(two.root, "r")
    launched(fleet, source, "one")
    follower = start_midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--healthy-steps", "2", "--json")
    directory = wait_command("order: save, seal")
    one.stop()
    source.wait(lambda run: run.fence.epoch == 2 and not run.alive, "the seal, which nobody sees")
    deadline = time.monotonic() + 60
    while not any("losing contact is not losing the run" in e.message for e in read_events(directory.journal_file)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    status = target.status(2)
    assert status is not None
    assert (status.state, status.epoch, target.rows(2)) == ("waiting", 0, [])
    one.start()
    out, talk = follower.communicate(timeout=240)
    assert follower.returncode == 0, (out, talk)
    assert target.alive
    assert source.fence == target.fence
    assert_one_lineage(target)
