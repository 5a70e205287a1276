"""The number of processes of a trainer that is adopted: its checkpoints have a file of each."""

from __future__ import annotations

import pytest

from midstream.foreign.adopt_process import world_flags
from midstream.remote.trainers.processes import TrainingProcess


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
