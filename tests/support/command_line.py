"""Run the command line as a process, as a user would."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from midstream_core import records
from support.migrations.spliced_rows import splice
from support.paths import CONFIGS

TINY = CONFIGS / "gpt2_tiny.yaml"
# Steps of some 50 ms: slow enough to be moved in the middle, quick enough for a test.
COMPILED = tempfile.mkdtemp(prefix="midstream-compiled-")  # what one engine has compiled, the next need not
# Removes it when this process has exited, for any reason: its standard input ends then.
_REMOVER = subprocess.Popen(
    ["sh", "-c", 'trap "" INT TERM HUP; read -r _; exec rm -rf "$0"', COMPILED],
    stdin=subprocess.PIPE,
    start_new_session=True,
)
SLOWER = (
    "--model.seq_len", "64", "--trainer.train_batch_size", "32", "--trainer.jax_compilation_cache_dir", COMPILED,
)  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a command."""

    code: int
    events: list[dict[str, Any]]
    stdout: str
    stderr: str

    @property
    def result(self) -> dict[str, Any]:
        return next(event for event in reversed(self.events) if event.get("event") == "result")

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("event") == kind]


def midstream(*arguments: str | Path, timeout: float = 540.0) -> Ended:
    """Run a command to its end."""
    from pages.json_lines import problem_of  # `support.paths` makes it importable, also where a campaign is a program

    done = subprocess.run(
        [sys.executable, "-m", "midstream", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ,
        stdin=subprocess.DEVNULL,
    )
    events = []
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            events.append(json.loads(line))
            assert "event" not in events[-1] or not problem_of(events[-1]), problem_of(events[-1])
    return Ended(done.returncode, events, done.stdout, done.stderr)


def refused(ended: Ended, code: int, *words: str) -> str:
    """Assert that a command failed with ``code`` and one line that contains all ``words``; return the line."""
    assert ended.code == code, (ended.code, ended.stdout, ended.stderr)
    line = ended.stderr.strip().splitlines()[-1]
    assert line.startswith("midstream: "), ended.stderr
    assert "Traceback" not in ended.stderr
    for word in words:
        assert word in line, line
    return line


def step_of(checkpoint: str) -> int:
    """Return the step of a checkpoint's name: ``"step-30-a001"`` -> 30."""
    parsed = records.parse_checkpoint_name(checkpoint)
    assert parsed is not None, checkpoint
    return parsed[0]


class Run:
    """A run on a host of this machine, read from its files."""

    def __init__(self, root: Path, run_id: str) -> None:
        self.paths = records.RunPaths(str(root), run_id)

    @property
    def attempt(self) -> int:
        directory = Path(self.paths.attempts)
        return max((int(each.name) for each in directory.iterdir()), default=0) if directory.is_dir() else 0

    def status(self, attempt: int = 0) -> records.Status | None:
        return records.Status.read_or_none(self.paths.attempt(attempt or self.attempt).status())

    @property
    def running(self) -> bool:
        status = self.status()
        return status is not None and records.is_running(status.identity)

    @property
    def fence(self) -> records.Fence:
        return records.Fence.read(self.paths.fence)

    @property
    def handed_over(self) -> records.Fence:
        """The fence as the last hand-over left it, without the starts that the new owner has made since."""
        fence = self.fence
        earlier = [each for each in fence.starts if each["epoch"] < fence.epoch]
        return dataclasses.replace(fence, start=0, starts=earlier)

    def rows(self, attempt: int = 0) -> list[dict[str, Any]]:
        path = Path(self.paths.attempt(attempt or self.attempt).metrics)
        return records.parse_metrics(path.read_text().splitlines()) if path.exists() else []

    def spliced(self) -> dict[int, dict[str, Any]]:
        attempts = {int(each.name): self.rows(int(each.name)) for each in Path(self.paths.attempts).iterdir()}
        rows = splice(attempts, records.Lineage.read(self.paths.lineage), self.fence)
        return {row["global_step"]: row for row in rows if "train/loss" in row}

    def checkpoints(self) -> list[str]:
        """Return the names of the complete checkpoints, sorted by step."""
        names = [manifest.parent.name for manifest in Path(self.paths.checkpoints).glob(f"*/{records.MANIFEST}")]
        found = [(parsed, name) for name in names if (parsed := records.parse_checkpoint_name(name))]
        return [name for _, name in sorted(found)]

    def manifest(self, name: str) -> records.Manifest:
        return records.Manifest.read(f"{self.paths.checkpoint(name)}/{records.MANIFEST}")

    def wait(self, predicate: Callable[[Run], bool], what: str, timeout: float = 120.0) -> None:
        deadline = time.monotonic() + timeout
        while not predicate(self):
            if time.monotonic() > deadline:
                log = Path(self.paths.attempt(self.attempt).log())
                pytest.fail(f"{what}: not within {timeout} s\n" + (log.read_text()[-2000:] if log.exists() else ""))
            time.sleep(0.05)

    def wait_step(self, step: int, timeout: float = 120.0) -> None:
        self.wait(lambda run: (status := run.status()) is not None and status.step >= step, f"step {step}", timeout)

    def kill(self) -> None:
        """Kill the newest attempt's process, if it runs."""
        status = self.status()
        if status is not None and records.is_running(status.identity):
            os.kill(status.pid, signal.SIGKILL)


def start_midstream(*arguments: str | Path) -> subprocess.Popen[str]:
    """Start a command in the background."""
    return subprocess.Popen(
        [sys.executable, "-m", "midstream", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str], timeout: float = 60.0) -> int:
    """Wait for a command in the background, and return its exit code."""
    process.communicate(timeout=timeout)
    return process.returncode


@pytest.fixture
def runs() -> Iterator[Callable[[Path | str, str], Run]]:
    """Factory ``runs(root, run_id)`` of runs, whose engines are killed after the test."""
    known: list[Run] = []

    def make(root: Path | str, run_id: str) -> Run:
        known.append(Run(Path(root), run_id))
        return known[-1]

    yield make
    for run in known:
        run.kill()
