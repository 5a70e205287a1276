"""Part of a machine: the GPUs that CUDA_VISIBLE_DEVICES leaves visible are those that count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from midstream_core.visible_devices import limit_devices, select_visible, visible_devices
from midstream_host.machine.accelerators import Accelerators
from midstream_host.machine.nvidia import Nvidia
from support.simulated_gpus import KIND, uuid, write_nvidia_smi

OTHERS = 4711  # a process on GPU 0
OURS = 4712  # one on GPU 2
MIG = ("MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", "MIG-GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77/1/0")
FOUR = [{"index": index, "uuid": uuid(index)} for index in range(4)]


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("2", [2]),
        ("3,1", [3, 1]),  # in this order
        (" 2 , 1 ", [2, 1]),
        ("0,2,-1,1", [0, 2]),  # as CUDA's documentation has it
        ("0,9,1", [0]),
        ("GPU-22", [2]),
        ("GPU-2222,0", [2, 0]),
        ("gpu-2222", []),
        ("GPU-", []),  # of all four
        ("NoDevFiles", []),
    ],
)
def test_cuda_rules_select_the_gpus(value: str | None, seen: list[int]) -> None:
    entries = visible_devices({} if value is None else {"CUDA_VISIBLE_DEVICES": value})
    assert [each["index"] for each in select_visible(FOUR, entries)] == seen


@pytest.mark.parametrize(
    ("environment", "count", "expected"),
    [
        ({}, 2, {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ({"CUDA_VISIBLE_DEVICES": "5,GPU-3,1"}, 2, {"CUDA_VISIBLE_DEVICES": "5,GPU-3"}),
        ({"CUDA_VISIBLE_DEVICES": ""}, 2, {"CUDA_VISIBLE_DEVICES": ""}),
        (
            {"CUDA_VISIBLE_DEVICES": "0", "XLA_FLAGS": "--a --xla_force_host_platform_device_count=8 --b"},
            3,
            {"CUDA_VISIBLE_DEVICES": "0", "XLA_FLAGS": "--a --xla_force_host_platform_device_count=3 --b"},
        ),
    ],
)
def test_trainer_is_limited_to_the_first_devices(
    environment: dict[str, str], count: int, expected: dict[str, str]
) -> None:
    limit_devices(environment, count)
    assert environment == expected


def look(tmp_path: Path, visible: list[str] | None, **parts: Any) -> tuple[Nvidia, list[tuple[int, str, list[int]]]]:
    program = write_nvidia_smi(tmp_path, 4, {uuid(0): [OTHERS], uuid(2): [OURS], MIG[1]: [OURS]}, **parts)
    smi = Nvidia(str(program), visible=visible)
    return smi, [(each["index"], each["kind"], each["pids"]) for each in smi.look()]


def test_only_visible_gpus_and_their_processes_are_reported(tmp_path: Path) -> None:
    smi, found = look(tmp_path, ["2", "GPU-33"])
    assert found == [(2, KIND, [OURS]), (3, KIND, [])]
    assert (smi.missing, smi.unattributed) == ([], [])
    assert len(look(tmp_path, None)[1]) == 4


def test_gpu_that_is_not_there_is_named(tmp_path: Path) -> None:
    smi, found = look(tmp_path, ["1", "7", "2"])
    assert [index for index, _, _ in found] == [1]
    assert smi.missing == ["7", "2"]


def test_mig_device_is_counted_with_its_own_processes(tmp_path: Path) -> None:
    """A process that the driver reports for the complete GPU may be on another of its devices."""
    parts = {0: [("1g.10gb", MIG[0]), ("2g.20gb", MIG[1])]}
    smi, found = look(tmp_path, [MIG[1]], parts=parts)
    assert found == [(0, f"{KIND} MIG 2g.20gb", [OURS])]
    assert smi.unattributed == [OTHERS]
    assert look(tmp_path, ["MIG-none"], parts=parts)[0].missing == ["MIG-none"]


def test_watch_polls_the_visible_gpus_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_nvidia_smi(tmp_path, 4, {uuid(0): [OTHERS], uuid(2): [OURS]})
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = Accelerators(devices=None, visible=["2"])
    assert [each["index"] for each in found.latest(wait=20.0)] == [2]
    assert [user["pid"] for user in found.facts()["users"]] == [OURS]
