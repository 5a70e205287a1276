"""Drivers of another trainer's run without a launcher, and a trainer that runs without a driver."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import midstream_engine
from midstream.trainers.run_file_parser import as_text, parse_run_file
from midstream_core import records
from midstream_host.driver.marked_processes import marked
from midstream_host.trainers import travelling_files
from support.trainers.script_trainer import write_script

TIMEOUT = 120.0  # seconds


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
                [sys.executable, "-m", "midstream_host.drive", "--python", sys.executable, *flags],
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


@contextmanager
def drivers(directory: Path) -> Iterator[Callable[..., Driver]]:
    """Give a factory of drivers of the script trainer; what still runs at the end is killed."""
    made: list[Driver] = []

    def driver(file: Path | None = None, changes: dict[str, Any] | None = None, **script: Any) -> Driver:
        file = file or write_script(directory / f"code{len(made)}", **{"steps": 20000, "every": 25, **script})
        made.append(Driver(directory / f"root{len(made)}", file, **(changes or {})))
        return made[-1]

    yield driver
    for each in made:
        each.kill()
        each.wait("the trainer's end", lambda each=each: not each.trainers(0) and not each.trainers(1))


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
