"""A trainer that is adopted: its number of processes, of which checkpoints have a file each, and its end."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from midstream.launch.adopt_process import world_flags
from midstream.launch.run_file_draft import Evidence, draft
from midstream_core import records
from midstream_host.driver.trainer_process import Adopted
from midstream_host.trainers.processes import TrainerDirectory, TrainingProcess


def process(pid: int, parent: int, **distributed: str) -> TrainingProcess:
    return TrainingProcess(pid, 1, parent, ["python"], "/usr/bin/python", "/train", [], distributed)


@pytest.mark.parametrize(
    ("launcher", "worker", "devices", "processes"),
    [
        ({}, {"WORLD_SIZE": "8", "RANK": "0"}, 8, 8),  # torchrun in a shell
        ({"WORLD_SIZE": "4"}, {}, 4, 4),
        ({"NPROC_PER_NODE": "2"}, {"RANK": "0"}, 2, 2),
        ({"WORLD_SIZE": "1"}, {"WORLD_SIZE": "2"}, 2, 2),
        ({}, {}, 8, 1),  # one process, which sees all devices of the host
        ({"WORLD_SIZE": "1"}, {}, 8, 1),
        ({"WORLD_SIZE": "all"}, {"WORLD_SIZE": "0"}, 8, 1),
        ({"CUDA_VISIBLE_DEVICES": "2,5"}, {}, 2, 1),
        ({"CUDA_VISIBLE_DEVICES": ""}, {}, 1, 1),
    ],
)
def test_workers_have_the_number_of_processes(
    launcher: dict[str, str], worker: dict[str, str], devices: int, processes: int
) -> None:
    first = process(7, 0, **launcher)
    found = world_flags(first, [first, process(8, 7, **worker)], 8, 0)
    assert found == ("--devices", str(devices), "--processes", str(processes))


def test_run_file_says_how_many_devices_are_used() -> None:
    """A script of nanoGPT on a host with eight GPUs uses one of them."""
    first = process(7, 0)
    assert world_flags(first, [first], 8, 1) == ("--devices", "1", "--processes", "1")


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("accelerate launch t.py --a", "accelerate launch --num_processes {world} t.py --a"),
        ("accelerate launch --num_processes 2 t.py", "accelerate launch --num_processes {world} t.py"),
        ("/v/bin/deepspeed t.py --deepspeed z.json", "/v/bin/deepspeed --num_gpus {devices} t.py --deepspeed z.json"),
        ("deepspeed --num_gpus=2 t.py", "deepspeed --num_gpus={devices} t.py"),
        ("torchrun --nproc-per-node 2 t.py", "torchrun --nproc_per_node {devices} t.py"),
    ],
)
def test_described_command_gets_the_devices_of_each_host(line: str, command: str) -> None:
    started = TrainingProcess(7, 1, 0, line.split(), "/x", "/train", [], {"CUDA_VISIBLE_DEVICES": "1,3"})
    text = draft(Evidence(TrainerDirectory("/train", [started], ["t.py"], ["accelerate"], None), started)).text
    assert f"command: {json.dumps(command)}" in text
    assert "# it had CUDA_VISIBLE_DEVICES=1,3  # devices: [1,3] of the host in the fleet file" in text
    assert not [line for line in text.splitlines() if "resume" in line and "launch t.py" in line]


def test_trainer_that_ends_before_its_signal_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as theirs:
        identity = records.identify(theirs.pid)
        assert identity is not None
        theirs.communicate()
    monkeypatch.setattr(records, "is_running", lambda _: True)  # it was, a moment ago
    Adopted(identity).signal("SIGTERM")
