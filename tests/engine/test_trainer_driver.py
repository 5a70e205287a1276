"""The driver of another trainer's run: it keeps the fence, stops without a loss, and leaves no process behind."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import midstream_engine
from midstream.remote.trainers import travelling_files
from midstream.trainers.run_file_parser import as_text, parse_run_file
from midstream_engine import records
from midstream_engine.foreign.attempt.attempt_group import AttemptGroup
from midstream_engine.foreign.attempt.attempt_place import AttemptPlace
from midstream_engine.foreign.marked_processes import marked
from support.trainers.script_trainer import write_node_script, write_script

TIMEOUT = 120.0


class Driver:
    """A driver in a root of its own, started without a launcher."""

    def __init__(self, root: Path, file: Path, **changes: Any) -> None:
        parsed = parse_run_file(file.read_text(), file).run
        found = travelling_files.snapshot(str(root), str(file.parent), ["*.py"])
        self.run = dataclasses.replace(parsed, files_digest=found.digest, **changes)
        self.root, self.paths = root, records.RunPaths(str(root), "r")
        self.number = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.processes: list[subprocess.Popen[bytes]] = []
        os.makedirs(self.paths.attempts)
        Path(self.paths.config).write_text(as_text(self.run))

    def start(self, *flags: str, epoch: int = 1, command: records.Command | None = None) -> None:
        self.number += 1
        os.makedirs(self.files.dir)
        self.process = self.start_node(0, *flags, epoch=epoch, command=command)

    def start_node(
        self, node: int, *flags: str, epoch: int = 1, command: records.Command | None = None
    ) -> subprocess.Popen[bytes]:
        """Start the driver of a node of the attempt."""
        if command is not None:
            command.write(self.files.command_file)
        environment = {
            **os.environ, "PYTHONPATH": str(Path(midstream_engine.__file__).parents[1]), "RUN_ID": "r",
            "MIDSTREAM_ROOT": str(self.root), "MIDSTREAM_ATTEMPT": str(self.number), "MIDSTREAM_EPOCH": str(epoch),
            "MIDSTREAM_TARGET": "here",
        }  # fmt: skip
        with open(self.files.log(node), "ab") as log:
            started = subprocess.Popen(
                [sys.executable, "-m", "midstream_engine.foreign.driver", "--python", sys.executable, *flags],
                env=environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.processes.append(started)
        return started

    @property
    def files(self) -> records.AttemptPaths:
        return self.paths.attempt(self.number)

    @property
    def status(self) -> records.Status:
        found = records.Status.read_or_none(self.files.status())
        assert found is not None
        return found

    def rows(self) -> list[dict[str, Any]]:
        path = Path(self.files.metrics)
        return records.parse_metrics(path.read_text().splitlines()) if path.exists() else []

    def checkpoints(self) -> list[str]:
        return sorted(path.parent.name for path in Path(self.paths.checkpoints).glob(f"*/{records.MANIFEST}"))

    def trainers(self, node: int = 0) -> set[int]:
        return marked(f"{self.files.dir}#{node}")

    def wait(self, what: str, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline, f"{what}\n{Path(self.files.log()).read_text()[-2000:]}"
            time.sleep(0.05)

    def send(self, action: str, sequence: int = 1, **fields: Any) -> None:
        records.Command(action, sequence=sequence, **fields).write(self.files.command_file)

    def ended(self) -> int:
        assert self.process is not None
        return self.process.wait(TIMEOUT)

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Factory of drivers of the script trainer; what still runs is killed."""
    made: list[Driver] = []

    def driver(file: Path | None = None, changes: dict[str, Any] | None = None, **script: Any) -> Driver:
        file = file or write_script(tmp_path / f"code{len(made)}", **{"steps": 20000, "every": 25, **script})
        made.append(Driver(tmp_path / f"root{len(made)}", file, **(changes or {})))
        return made[-1]

    yield driver
    for each in made:
        each.kill()
        each.wait("the trainer's end", lambda each=each: not each.trainers(0) and not each.trainers(1))


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


@contextmanager
def their_trainer(directory: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """Context with a trainer that midstream did not start, and its run file."""
    file = write_script(directory, steps=20000, every=25)
    (directory / "out").mkdir()
    argv = [sys.executable, "train.py", "--out", "out", "--steps", "20000", "--every", "25", "--pause", "0.02"]
    with subprocess.Popen(argv, cwd=directory) as process:
        try:
            yield file, process
        finally:
            process.kill()


def test_adopted_trainer_is_followed_and_stopped(make: Callable[..., Driver], tmp_path: Path) -> None:
    with their_trainer(tmp_path / "theirs") as (file, theirs):
        driver = make(file, {"directory": str(file.parent)})
        driver.start("--attach", str(theirs.pid))
        driver.wait("a checkpoint", driver.checkpoints)
        assert driver.rows()[0]["global_step"] == 0
        driver.send(records.STOP, epoch=2, owner="there")
        assert driver.ended() == records.EXIT_DONE
        theirs.wait(TIMEOUT)
        assert not records.is_running(records.ProcessIdentity.read(f"{driver.files.dir}/adopted.json"))
        assert records.Fence.read(driver.paths.fence).sealed_step == driver.status.step


def test_later_process_of_the_same_pid_is_not_adopted(make: Callable[..., Driver], tmp_path: Path) -> None:
    with their_trainer(tmp_path / "theirs") as (file, theirs):
        identity = records.identify(theirs.pid)
        assert identity is not None
        driver = make(file, {"directory": str(file.parent)})
        driver.start("--attach", str(theirs.pid), "--attach-started", str(identity.start_ticks - 1))
        assert driver.ended() == records.EXIT_FAILED
        assert driver.status.message == f"process {theirs.pid} does not run"
        assert theirs.poll() is None
        driver.start("--attach", str(theirs.pid), "--attach-started", str(identity.start_ticks))
        driver.wait("a checkpoint", driver.checkpoints)


def test_adopted_trainer_without_its_driver_is_not_doubled(make: Callable[..., Driver], tmp_path: Path) -> None:
    with their_trainer(tmp_path / "theirs") as (file, theirs):
        driver = make(file, {"directory": str(file.parent)})
        driver.start("--attach", str(theirs.pid))
        driver.wait("a checkpoint", driver.checkpoints)
        driver.kill()
        driver.start()
        assert driver.ended() == records.EXIT_FAILED
        assert f"process {theirs.pid}, which attempt 1 had adopted, still runs" in driver.status.message
        assert theirs.poll() is None
        assert not list(file.parent.rglob("given-up-by-attempt-*"))  # what it writes stays where it writes it


def test_adopted_trainer_outlives_a_driver_that_fails(make: Callable[..., Driver], tmp_path: Path) -> None:
    with their_trainer(tmp_path / "theirs") as (file, theirs):
        driver = make(file, {"directory": str(file.parent)})
        records.first_fence("here").write(driver.paths.fence)
        os.mkdir(driver.paths.lineage)  # it cannot be written, as on a disk with errors
        driver.start("--attach", str(theirs.pid))
        assert driver.ended() == records.EXIT_FAILED
        assert f"process {theirs.pid} trains on: adopt it again" in driver.status.message
        assert theirs.poll() is None
        os.rmdir(driver.paths.lineage)
        driver.start("--attach", str(theirs.pid))
        driver.wait("a checkpoint", driver.checkpoints)


def test_second_run_in_the_same_directory_is_refused(make: Callable[..., Driver], tmp_path: Path) -> None:
    """It would take checkpoints and metrics of the first as its own."""
    with their_trainer(tmp_path / "theirs") as (file, theirs):
        first = make(file, {"directory": str(file.parent)})
        first.start("--attach", str(theirs.pid))
        first.wait("a checkpoint", first.checkpoints)
        second = make(file, {"directory": str(file.parent)})
        for flags in ((), ("--attach", str(theirs.pid))):
            second.start(*flags)
            assert second.ended() == records.EXIT_FAILED
            assert second.status.message == f"{file.parent}/out: run r trains there already"
        assert not second.checkpoints()
        assert not list(file.parent.rglob("given-up-by-attempt-*"))
        assert theirs.poll() is None
        assert first.process is not None
        assert first.process.poll() is None


def test_adopted_trainer_whose_driver_is_killed_stays_fenced(make: Callable[..., Driver], tmp_path: Path) -> None:
    """It trains on under its epoch, can be adopted again, and is ended when the run passes to another host."""
    with their_trainer(tmp_path / "theirs") as (file, theirs):
        driver = make(file, {"directory": str(file.parent)})
        for _ in range(2):  # the second one finds it by the hint of the first
            driver.start("--attach", str(theirs.pid))
            driver.wait("rows", lambda: len(driver.rows()) > 2)
            driver.kill()
        log = Path(driver.files.log())
        driver.wait("the fence is kept", lambda: "trains on, and is ended when the run passes on" in log.read_text())
        out = file.parent / "out" / "metrics.jsonl"
        rows = len(out.read_text().splitlines())
        driver.wait("further rows", lambda: len(out.read_text().splitlines()) > rows + 3)
        assert theirs.poll() is None
        records.Fence(2, "there", 0, []).write(driver.paths.fence)
        assert theirs.wait(TIMEOUT) == -signal.SIGKILL
        driver.wait("the line", lambda: "has passed to there (epoch 2): process" in log.read_text())
