"""Engines in containers of their own that podman restarts, or that are replaced while they live, as pods are."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from midstream_core import records
from simulators.clusters.podman import IMAGE, Podman, podman, program_mounts
from support.engines.committing_engine import Commits, write_committing_engine

__all__ = ["podman"]
pytestmark = [pytest.mark.drawn, pytest.mark.system]
DEADLINE = 120.0  # seconds
RESTART = 20.0  # seconds in which podman restarts a container


class Containers:
    """Containers that start the engine of one attempt, each with processes of its own."""

    def __init__(self, podman: Podman, directory: Path) -> None:
        self._podman = podman
        self.paths = records.RunPaths(str(directory / "root"), "r")
        self.commits = Commits(self.paths)
        package = write_committing_engine(directory / "package")
        variables = {"MIDSTREAM_ROOT": self.paths.root, "RUN_ID": "r", "MIDSTREAM_ATTEMPT": "1",
                     "MIDSTREAM_EPOCH": "1", "MIDSTREAM_TARGET": "lab", "PYTHONPATH": str(package)}  # fmt: skip
        os.makedirs(self.paths.attempt(1).dir)
        mounts = [*program_mounts(), str(directory) + ":" + str(directory)]
        self._words = [*(f"--volume={each}" for each in mounts), *(f"--env={k}={v}" for k, v in variables.items())]

    def start(self, *flags: str) -> str:
        """Start a container and return its id."""
        command = [sys.executable, "-m", "midstream_engine.train"]
        done = self._podman.run("run", "--detach", "--network=host", *flags, *self._words, IMAGE, *command)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def show(self, container: str, field: str) -> str:
        """Return a field of a container's state."""
        return self._podman.run("inspect", "--format", f"{{{{.State.{field}}}}}", container).stdout.strip()

    def wait(self, reached: Callable[[records.Status], bool], *containers: str) -> None:
        """Wait until the attempt's status is as expected."""
        end = time.monotonic() + DEADLINE
        while True:
            status = records.Status.read_or_none(self.paths.attempt(1).status(0))
            self.commits.notice(status)
            if status is not None and reached(status):
                return
            logs = [self._podman.run("logs", each).stdout[-500:] for each in containers]
            assert time.monotonic() < end, (status, logs)
            time.sleep(0.2)

    def trains(self, start: int, *containers: str) -> None:
        """Wait until a start of the attempt has committed."""
        self.wait(lambda _: any(row["start"] == start for row in self.commits.rows()), *containers)


def test_container_that_its_runtime_restarts_is_the_next_start(podman: Podman, tmp_path: Path) -> None:
    containers = Containers(podman, tmp_path)
    container = containers.start("--restart=always")
    containers.trains(1, container)
    killed = containers.show(container, "Pid")
    os.kill(int(killed), signal.SIGKILL)
    end = time.monotonic() + RESTART
    while containers.show(container, "Pid") in (killed, "0") and time.monotonic() < end:
        time.sleep(0.2)
    if containers.show(container, "Pid") in (killed, "0"):  # podman's own restart was lost, which is no matter here
        podman.run("start", container)
    containers.trains(2, container)
    podman.run("rm", "--force", "--time=0", container)
    containers.commits.check()
    assert {row["start"] for row in containers.commits.rows()} == {1, 2}


def freeze(pid: int, lock: str) -> None:
    """Stop a process at a moment at which it does not hold the run's lock."""
    with open(lock) as file:
        for _ in range(100):
            os.kill(pid, signal.SIGSTOP)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.01)
            else:
                return
    raise AssertionError("the process held the lock each time")


@pytest.mark.parametrize("frozen", [False, True])
def test_replaced_container_that_runs_ends_itself(podman: Podman, tmp_path: Path, frozen: bool) -> None:
    """``frozen``: the first one runs again after its successor has committed."""
    containers = Containers(podman, tmp_path)
    first = containers.start()
    containers.trains(1, first)
    pid = int(containers.show(first, "Pid"))
    if frozen:
        freeze(pid, containers.paths.lock)
    second = containers.start()
    containers.trains(2, first, second)
    if frozen:
        os.kill(pid, signal.SIGCONT)
    end = time.monotonic() + DEADLINE
    while containers.show(first, "Status") == "running":
        assert time.monotonic() < end
        time.sleep(0.2)
    assert containers.show(first, "ExitCode") == str(records.EXIT_FENCED), podman.run("logs", first).stdout
    containers.wait(lambda at: at.state == records.TRAINING and at.start == 2, first, second)
    podman.run("rm", "--force", "--time=0", first, second)
    containers.commits.check()
    assert {row["start"] for row in containers.commits.rows()} == {1, 2}
