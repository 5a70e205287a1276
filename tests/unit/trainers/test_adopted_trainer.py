"""A trainer that is adopted: its number of processes, of which checkpoints have a file each, and its end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from midstream.foreign.adopt_process import world_flags
from midstream.remote.trainers.processes import TrainingProcess
from midstream_engine import records
from midstream_engine.foreign.trainer_process import Adopted


def process(pid: int, parent: int, **distributed: str) -> TrainingProcess:
    return TrainingProcess(pid, 1, parent, ["python"], "/usr/bin/python", "/train", [], distributed)


@pytest.mark.parametrize(
    ("launcher", "worker", "expected"),
    [
        ({}, {"WORLD_SIZE": "8", "RANK": "0"}, ("--devices", "8")),  # torchrun in a shell
        ({"WORLD_SIZE": "4"}, {}, ("--devices", "4")),
        ({"NPROC_PER_NODE": "2"}, {"RANK": "0"}, ("--devices", "2")),
        ({"WORLD_SIZE": "1"}, {"WORLD_SIZE": "2"}, ("--devices", "2")),
        ({}, {}, ()),
        ({"WORLD_SIZE": "all"}, {"WORLD_SIZE": "0"}, ()),
    ],
)
def test_workers_have_the_number_of_processes(
    launcher: dict[str, str], worker: dict[str, str], expected: tuple[str, ...]
) -> None:
    first = process(7, 0, **launcher)
    assert world_flags(first, [first, process(8, 7, **worker)]) == expected


def test_trainer_that_ends_before_its_signal_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as theirs:
        identity = records.identify(theirs.pid)
        assert identity is not None
        theirs.communicate()
    monkeypatch.setattr(records, "is_running", lambda _: True)  # it was, a moment ago
    Adopted(identity).signal("SIGTERM")
