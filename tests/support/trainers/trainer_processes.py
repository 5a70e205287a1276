"""Programs of tests/trainers as processes: started, followed by the steps that they print, and signalled."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from support.paths import REPOSITORY, TESTS

PROGRAMS = TESTS / "trainers"
PYTHON = os.environ.get("MIDSTREAM_TRAINERS_PYTHON") or str(REPOSITORY / ".venv" / "trainers" / "bin" / "python")
LEVANTER_PYTHON = os.environ.get("MIDSTREAM_LEVANTER_PYTHON") or str(
    REPOSITORY / ".venv" / "levanter" / "bin" / "python"
)
STEP_TIMEOUT = 240.0  # seconds: the libraries take half a minute to import on a busy machine
EXIT_TIMEOUT = 120.0  # seconds
HUNG = 20.0  # seconds in which a process that saves on a signal would have ended by far
_LINE = re.compile(r"rank=(\d+) step=(\d+) loss=(\S+) batch=([\d,]*)")

needs_trainers = pytest.mark.skipif(
    not os.access(PYTHON, os.X_OK), reason="no environment of other trainers: make test-trainers"
)
TITAN_PYTHON = os.environ.get("MIDSTREAM_TORCHTITAN_PYTHON") or (
    PYTHON if (REPOSITORY / ".venv" / "trainers" / ".torchtitan").exists() else ""
)
needs_torchtitan = pytest.mark.skipif(
    not os.access(TITAN_PYTHON, os.X_OK), reason="no environment of torchtitan: make test-torchtitan"
)
MAXTEXT_PYTHON = os.environ.get("MIDSTREAM_MAXTEXT_PYTHON") or str(REPOSITORY / ".venv" / "maxtext" / "bin" / "python")
needs_maxtext = pytest.mark.skipif(
    not os.access(MAXTEXT_PYTHON, os.X_OK), reason="no environment of MaxText: make test-maxtext"
)
needs_levanter = pytest.mark.skipif(
    not os.access(LEVANTER_PYTHON, os.X_OK), reason="no environment of Levanter: make test-levanter"
)


def children_of(pid: int) -> list[int]:
    """Process ids of the children of a running process."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Step(NamedTuple):
    """A step that a program printed: exact loss, indices of its batch."""

    rank: int
    number: int
    loss: float
    batch: tuple[int, ...]


class TrainerProcess:
    """A program of tests/trainers that runs in ``directory``, alone or under torchrun."""

    def __init__(self, directory: Path, program: str, *arguments: str, ranks: int = 0, pause: float = 0.0) -> None:
        """``ranks``: processes under torchrun, 0 without it. ``pause``: seconds after each step."""
        directory.mkdir(exist_ok=True)
        self.log = directory / f"output-{time.monotonic_ns()}.log"
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "STEP_SECONDS": str(pause),
            "ACCELERATE_USE_CPU": "true",
        }  # fmt: skip
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                [PYTHON, *launcher, str(PROGRAMS / program), *arguments],
                cwd=directory, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
            )  # fmt: skip

    def steps(self, rank: int = 0) -> dict[int, Step]:
        """Steps that a rank has printed so far, by their number."""
        found = [_LINE.search(line) for line in self.log.read_text().splitlines()]
        steps = [
            Step(int(each[1]), int(each[2]), float.fromhex(each[3]), tuple(map(int, each[4].split(","))))
            for each in found
            if each
        ]
        return {each.number: each for each in steps if each.rank == rank}

    def wait_for_step(self, number: int) -> None:
        """Wait until a step was printed. Raises AssertionError where the program ends before it."""
        until = time.monotonic() + STEP_TIMEOUT
        while max(self.steps(), default=-1) < number:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < until, self.log.read_text()[-3000:]
            time.sleep(0.05)

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Signal the program, or torchrun where it runs under it."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end; return the exit status as a shell shows it: 143 where SIGTERM ended it."""
        code = self.process.wait(EXIT_TIMEOUT)
        return 128 - code if code < 0 else code

    def ranks(self) -> list[int]:
        """Process ids of the ranks under torchrun."""
        return children_of(self.process.pid)

    def close(self) -> None:
        """End the program and its ranks."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def running(
    directory: Path, program: str, *arguments: str, ranks: int = 0, pause: float = 0.0
) -> Iterator[TrainerProcess]:
    """A program that is ended at the end of the block."""
    process = TrainerProcess(directory, program, *arguments, ranks=ranks, pause=pause)
    try:
        yield process
    finally:
        children = process.ranks() if process.process.poll() is None else []
        process.close()
        for rank in children:  # torchrun starts each in a session of its own
            with suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)


def finished(directory: Path, program: str, *arguments: str, ranks: int = 0) -> dict[int, Step]:
    """Steps of a program that ran to its end. Raises AssertionError where it failed."""
    with running(directory, program, *arguments, ranks=ranks) as process:
        assert process.wait() == 0, process.log.read_text()[-3000:]
        return process.steps()
