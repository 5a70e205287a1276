"""The driver of another trainer's run: it keeps the fence, stops without a loss, and leaves no process behind."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midstream_core import records
from midstream_core.attempt import start_number
from midstream_host.driver import recorded_checkpoints
from midstream_host.driver.attempt_group import AttemptGroup
from midstream_host.driver.attempt_place import AttemptPlace
from support.trainers.script_trainer import write_node_script, write_script
from support.trainers.trainer_drivers import TIMEOUT, Driver, drivers


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    with drivers(tmp_path) as factory:
        yield factory


def test_stop_waits_for_the_next_checkpoint_and_seals(make: Callable[..., Driver]) -> None:
    driver = make()
    driver.start()
    driver.wait("a checkpoint", driver.checkpoints)
    driver.send(records.STOP, epoch=2, owner="there", migration="m")
    assert driver.ended() == records.EXIT_DONE
    fence = records.Fence.read(driver.paths.fence)
    assert (fence.epoch, fence.owner) == (2, "there")
    assert fence.sealed_step is not None
    assert fence.sealed_step % 25 == 0
    assert f"step-{fence.sealed_step}-a001" in driver.checkpoints()
    assert driver.status.state == records.STOPPED
    assert driver.status.step == fence.sealed_step
    assert driver.status.acknowledged == 1
    assert not driver.trainers()
    assert [row["global_step"] for row in driver.rows()][: fence.sealed_step] == list(range(fence.sealed_step))


LAST = """
import json, os, sys, time
out = sys.argv[1]
with open(os.path.join(out, "metrics.jsonl"), "a") as file:
    file.write(json.dumps({"step": 0, "loss": 1.0}) + "\\n")
while not os.path.exists(os.path.join(out, "go")):
    time.sleep(0.02)
os.makedirs(os.path.join(out, "ckpt-1"))
for name in ("model", "optimizer"):
    with open(os.path.join(out, "ckpt-1", name + ".state"), "w") as file:
        file.write(name)
"""


def test_trainer_that_ends_during_a_stop_loses_nothing(make: Callable[..., Driver], tmp_path: Path) -> None:
    """Its last checkpoint is a directory, by which nothing shows that it is complete; its exit code does."""
    file = write_script(tmp_path / "last")
    (file.parent / "last.py").write_text(LAST)
    text = file.read_text().replace("ckpt-*.json", "ckpt-*")
    file.write_text(re.sub(r"(?m)^(command: ).*$", r'\1"{python} last.py {out}"', text))
    driver = make(file)
    driver.start()
    driver.wait("a row", driver.rows)
    driver.send(records.STOP, epoch=2, owner="there")
    driver.wait("the stop is read", lambda: "waiting for the next checkpoint" in driver.status.message)
    Path(driver.paths.dir, "work", "out", "go").touch()
    assert driver.ended() == records.EXIT_DONE
    assert driver.checkpoints() == ["step-1-a001"]
    assert records.Fence.read(driver.paths.fence).sealed_step == 1


def test_trainer_that_saves_on_a_signal_is_stopped_at_once(make: Callable[..., Driver]) -> None:
    driver = make(saves=True, every=15000)
    driver.start()
    driver.wait("ten rows", lambda: len(driver.rows()) > 10)
    assert not driver.checkpoints()
    assert driver.process is not None
    driver.process.send_signal(signal.SIGTERM)
    assert driver.ended() == records.EXIT_DONE
    (name,) = driver.checkpoints()
    assert driver.status.step == len(driver.rows()) == int(name.split("-")[1])


def test_second_sigterm_gives_up_no_step_and_sigint_does(make: Callable[..., Driver]) -> None:
    """A user who types `--stop` twice sends two SIGTERM."""
    driver = make(every=200, pause=0.03)
    driver.start()
    driver.wait("a row", driver.rows)
    assert driver.process is not None
    for _ in range(2):
        driver.process.send_signal(signal.SIGTERM)
        driver.wait("the wait", lambda: "waiting for the next checkpoint" in driver.status.message)
    assert driver.ended() == records.EXIT_DONE
    assert driver.status.step == 200
    driver.start()
    driver.wait("further rows", lambda: driver.rows() and driver.status.step > 205)
    driver.process.send_signal(signal.SIGTERM)
    driver.wait("the wait", lambda: "waiting for the next checkpoint" in driver.status.message)
    driver.process.send_signal(signal.SIGINT)
    assert driver.ended() == records.EXIT_DONE
    assert driver.status.step == 200


def test_withdrawn_stop_lets_the_trainer_train_on(make: Callable[..., Driver]) -> None:
    driver = make(every=200, pause=0.03)
    driver.start()
    driver.wait("a row", driver.rows)
    driver.send(records.STOP, epoch=2, owner="there")
    driver.wait("the stop is read", lambda: "waiting for the next checkpoint" in driver.status.message)
    driver.send(records.SAVE, sequence=2)
    driver.wait("the save", lambda: driver.status.acknowledged == 2)
    driver.wait("further rows", lambda: len(driver.rows()) > 210)
    assert records.Fence.read(driver.paths.fence).epoch == 1


def test_killed_driver_leaves_no_trainer(make: Callable[..., Driver]) -> None:
    driver = make()
    driver.start()
    driver.wait("a row", driver.rows)
    assert driver.trainers()
    driver.kill()
    driver.wait("the trainer's end", lambda: not driver.trainers())


def test_trainer_ends_when_the_run_passes_to_another_epoch(make: Callable[..., Driver]) -> None:
    driver = make()
    driver.start()
    driver.wait("a row", driver.rows)
    records.Fence(2, "there", 0, []).write(driver.paths.fence)
    assert driver.ended() == records.EXIT_FENCED
    assert driver.status.state == records.FAILED
    assert "passed to there" in driver.status.message
    assert not driver.trainers()


def test_every_process_of_a_run_without_launcher_is_stopped(make: Callable[..., Driver]) -> None:
    """A signal goes to all ranks: one that is left alone would wait for the others for good."""
    driver = make(changes={"launcher": False}, saves=True, flags="--own-directory")
    driver.start("--devices", "2")
    driver.wait("two processes", lambda: len(driver.trainers()) >= 2 and len(driver.rows()) > 5)
    environments = [Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in driver.trainers()]
    ranks = {each for variables in environments for each in variables if each.startswith(b"RANK=")}
    assert ranks == {b"RANK=0", b"RANK=1"}
    assert driver.process is not None
    driver.process.send_signal(signal.SIGTERM)
    driver.ended()
    said = Path(driver.files.log()).read_text()
    assert said.count("saved on a signal") == 2, said
    assert not driver.trainers()


def test_trainer_that_outlives_node_0_is_ended_and_recorded(make: Callable[..., Driver], tmp_path: Path) -> None:
    """The script of node 0 ends at its last step; that of node 1 never does."""
    driver = make(write_node_script(tmp_path / "nodes", steps=40, every=20))
    group = ("--nodes", "2", "--port", "29400", "--left-after", "0.5")
    driver.start(*group)
    other = driver.start_node(1, *group, "--node", "1")
    driver.wait("the trainer of node 1", lambda: driver.trainers(1))
    assert driver.ended() == records.EXIT_DONE
    assert driver.status.state == records.FINISHED
    assert other.wait(TIMEOUT) == records.EXIT_DONE
    status = records.Status.read(driver.files.status(1))
    assert (status.state, status.step) == (records.STOPPED, 40)
    assert status.message == "node 0 has ended, and the trainer here is ended with it"
    assert not driver.trainers(1)
    assert status.message in Path(driver.files.log(1)).read_text()
    [entry] = records.Lineage.read(driver.paths.lineage).entries
    assert (entry.attempt, entry.last_step) == (1, 40), "node 0 alone writes the lineage"


def test_trainer_has_its_grace_after_the_end_of_node_0(tmp_path: Path) -> None:
    place = AttemptPlace(records.RunPaths(str(tmp_path), "r"), 1, 1, "pair", "")
    os.makedirs(place.files.dir)
    groups = [AttemptGroup(place, 1, 2, left_after=seconds) for seconds in (3600, 0)]
    first = records.Status(records.TRAINING, 5, 0, "boot", 7, 1, 1.0)
    for state, expected in ((records.TRAINING, [False, False]), (records.FINISHED, [False, True])):
        dataclasses.replace(first, state=state).write(place.files.status(0))
        for group in groups:
            group._looked = 0.0
            group.check()
        assert [group.was_left() for group in groups] == expected


def test_checkpoint_with_other_bytes_is_not_resumed_from(make: Callable[..., Driver]) -> None:
    driver = make()
    driver.start()
    driver.wait("a checkpoint", driver.checkpoints)
    assert driver.process is not None
    driver.process.send_signal(signal.SIGTERM)
    driver.ended()
    name = driver.checkpoints()[-1]
    (file,) = Path(driver.paths.checkpoint(name), "files").glob("ckpt-*.json")
    os.chmod(file, 0o644)
    content = json.loads(file.read_text())
    file.unlink()
    file.write_text(json.dumps({**content, "position": 0}))
    driver.start()
    assert driver.ended() == records.EXIT_FAILED
    assert "root digest" in driver.status.message
    assert f"{driver.paths.checkpoint(name)} is damaged; move it away" in driver.status.message
    assert not driver.rows()


def test_given_up_steps_are_set_aside_and_trained_again(make: Callable[..., Driver]) -> None:
    driver = make(every=50)
    driver.start()
    driver.wait("rows past a checkpoint", lambda: driver.checkpoints() and len(driver.rows()) % 50 > 20)
    driver.kill()
    driver.wait("the trainer's end", lambda: not driver.trainers())
    newest = int(driver.checkpoints()[-1].split("-")[1])
    before = {row["global_step"]: row["train/loss"] for row in driver.rows()}
    driver.start()
    driver.wait("the same steps", lambda: len(driver.rows()) > 20)
    again = {row["global_step"]: row["train/loss"] for row in driver.rows()}
    assert min(again) == newest
    assert {step: before[step] for step in again if step in before} == {
        step: again[step] for step in again if step in before
    }
    assert list(Path(driver.paths.dir, "work", "out").glob("given-up-by-attempt-2/ckpt-*.json"))
    assert records.Restore.read(driver.files.restore).step == newest


def test_superseded_driver_ends_its_trainer(make: Callable[..., Driver]) -> None:
    """Another machine of a shared root starts the attempt again: it takes the next number in the fence."""
    driver = make()
    driver.start()
    driver.wait("a checkpoint", driver.checkpoints)
    assert records.Fence.read(driver.paths.fence).order == (1, 1)
    taken = start_number.take(driver.paths, 1, lambda fence: recorded_checkpoints.newest(driver.paths, fence))
    assert taken is not None
    assert driver.ended() == records.EXIT_FENCED
    assert not driver.trainers()
    closed = taken.starts[-1]["step"]
    newest = recorded_checkpoints.usable(driver.paths)[-1]
    assert (newest.step, newest.start) == (closed, 1)
    driver.start_node(0)  # as a requeued job does
    driver.wait("a checkpoint of the newest start", lambda: recorded_checkpoints.usable(driver.paths)[-1].start == 3)
    assert records.Fence.read(driver.paths.fence).order == (1, 3)
    starts = [row["start_number"] for row in records.parse_metrics(Path(driver.files.metrics).read_text().splitlines())]
    assert (starts[0], starts[-1]) == (1, 3), "each row names the start that wrote it"


def test_second_driver_on_the_same_machine_is_refused(make: Callable[..., Driver]) -> None:
    driver = make()
    driver.start()
    driver.wait("a checkpoint", driver.checkpoints)
    second = driver.start_node(0)
    assert second.wait(TIMEOUT) == records.EXIT_FAILED
    assert "writes its log and metrics" in Path(driver.files.log()).read_text()
    assert driver.trainers(), "the first one's trainer trains on"
    assert driver.process is not None
    assert driver.process.poll() is None


@pytest.mark.parametrize("stated", [True, False])
def test_names_of_the_time_are_no_steps(make: Callable[..., Driver], tmp_path: Path, *, stated: bool) -> None:
    """Ray Train's names: their last number was the step, and a migration sealed there."""
    file = write_script(tmp_path / "timed", steps=20000, every=25)
    script = file.parent / "train.py"
    name = 'time.strftime("ckpt-%Y-%m-%d_%H-%M-%S.") + "%06d.json" % (time.time() % 1 * 1e6)'
    text = script.read_text().replace('"ckpt-%d.json" % state["step"]', name)
    if not stated:
        text = text.replace("json.dump(state, file)", 'json.dump({"inner": state}, file)')
    script.write_text(text)
    driver = make(file)
    driver.start()
    if stated:
        driver.wait("two checkpoints", lambda: len(driver.checkpoints()) > 1)
        steps = [int(each.split("-")[1]) for each in driver.checkpoints()]
        assert [step for step in steps if step % 25] == [], steps
        assert max(steps) <= len(driver.rows()) + 25
    else:
        driver.wait("a row", driver.rows)
        driver.wait("what is unknown", lambda: "nothing shows its step" in driver.status.message)
        assert 'save the number of updates as "step" in it' in driver.status.message
        assert driver.checkpoints() == []
