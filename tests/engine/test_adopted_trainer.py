"""A trainer that runs already, and was started by a user: the driver that adopts it."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midstream_core import records
from support.trainers.trainer_drivers import TIMEOUT, Driver, drivers, their_trainer


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    with drivers(tmp_path) as factory:
        yield factory


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


def test_adopted_trainer_of_another_machine_is_not_doubled(make: Callable[..., Driver], tmp_path: Path) -> None:
    with their_trainer(tmp_path / "theirs") as (file, theirs):
        driver = make(file, {"directory": str(file.parent)})
        driver.start("--attach", str(theirs.pid))
        driver.wait("a checkpoint", driver.checkpoints)
        driver.kill()
    path = Path(driver.files.dir) / "adopted.json"
    dataclasses.replace(records.ProcessIdentity.read(str(path)), boot_id="another", machine="other").write(str(path))
    driver.start()
    assert driver.ended() == records.EXIT_FAILED
    assert f"nothing proves that it has ended: remove {path} when it has" in driver.status.message
    path.unlink()
    driver.start()
    driver.wait("training", lambda: os.path.exists(driver.files.status()) and driver.status.state == records.TRAINING)


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
        driver.wait("the line", lambda: "has passed to there (ownership 2): process" in log.read_text())
