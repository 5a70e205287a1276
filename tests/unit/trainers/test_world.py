"""Devices and processes of another trainer on a target: its global batch stays, or the counts that work are named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from midstream.errors import Exit, MidstreamError
from midstream.fleet.fleet import Target
from midstream.trainers.run_file_parser import parse_run_file
from midstream.trainers.world import check_group, check_world, world_of
from midstream_host.driver.run_file import RunFile, World

OWN = "resume: a {checkpoint}\nmetrics: {source: jsonl, path: a}\n"
SCRIPT = "trainer: script\n" + OWN
CHECKPOINTS = "checkpoints: {rule: glob, pattern: a}\n"
RUN = parse_run_file(
    "trainer: huggingface\ncommand: torchrun --nproc_per_node {devices} t.py {accumulation} {per_device}\n"
    "batch: {sequences: 48, per_device: 6}",
    Path("run.yaml"),
).run


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 6, 8, 12, 16, 24, 48])
def test_global_batch_stays_on_every_count_that_divides(devices: int) -> None:
    world = world_of(RUN, 1, devices)
    assert world.size * world.per_device * world.accumulation == 48
    assert world.per_device <= 6


def test_count_that_does_not_divide_names_those_that_work() -> None:
    with pytest.raises(MidstreamError, match="48 does not divide over 5 devices") as raised:
        world_of(RUN, 1, 5)
    assert "4, 6" in raised.value.hint


def described(text: str) -> RunFile:
    return parse_run_file(text, Path("run.yaml")).run


def test_nodes_multiply_the_processes() -> None:
    assert world_of(RUN, 2, 8) == World(2, 8, 3, 1, 8)


@pytest.mark.parametrize(
    ("text", "devices", "processes"),
    [
        # A process a device, where a launcher gets the number, or midstream starts them.
        ("trainer: torchrun\ncommand: torchrun --nproc_per_node {devices} t.py\n" + OWN, 8, 8),
        ("trainer: huggingface\ncommand: accelerate launch --num_processes {world} t.py", 8, 8),
        ("trainer: huggingface\ncommand: python t.py\nlauncher: false", 8, 8),
        ("trainer: lightning\ncommand: python t.py", 8, 8),  # devices="auto"
        # One process with all devices: DataParallel, and programs in jax.
        ("trainer: huggingface\ncommand: python t.py", 8, 1),
        ("trainer: maxtext\ncommand: python -m maxtext ici_fsdp_parallelism={devices}", 8, 1),
        ("trainer: levanter\ncommand: python t.py --trainer.model_axis_size {devices}", 8, 1),
        (f"{SCRIPT}command: python t.py --mesh {{devices}}\ncheckpoints: {{rule: orbax}}", 8, 1),
        # What the run file says.
        (f"{SCRIPT}command: python t.py --mesh {{devices}}\n{CHECKPOINTS}processes: node", 8, 1),
        (f"{SCRIPT}command: python t.py --gpus {{devices}}\n{CHECKPOINTS}", 8, 8),
        (f"{SCRIPT}command: python t.py\n{CHECKPOINTS}processes: device", 8, 8),
        (f"{SCRIPT}command: python t.py\n{CHECKPOINTS}devices: 2", 2, 1),
        ("trainer: maxtext\ncommand: srun python -m maxtext a={devices}\nprocesses: device", 8, 8),
    ],
)
def test_processes_and_devices_are_two_numbers(text: str, devices: int, processes: int) -> None:
    world = world_of(described(text), 1, 8)
    assert (world.devices, world.node_processes) == (devices, processes)
    assert world.limited == (devices < 8)


def test_batch_of_one_process_is_divided_over_its_devices() -> None:
    run = described("trainer: huggingface\ncommand: python t.py {per_device} {accumulation}\nbatch: {sequences: 64}")
    world = world_of(run, 1, 2)
    assert (world.size, world.per_device, world.accumulation) == (1, 32, 1)


def test_command_without_devices_gets_as_many_as_before() -> None:
    run = described("trainer: huggingface\ncommand: python t.py")
    before, after = world_of(run, 1, 1), world_of(run, 1, 2, trained_on=1)
    assert (after.devices, after.limited) == (1, True)
    assert check_world(run, before, after) == ""
    assert after.flags()[-1] == "--limit-devices"


def test_fewer_devices_are_refused_where_all_are_used() -> None:
    run = described("trainer: huggingface\ncommand: python t.py")
    after = world_of(run, 1, 1, trained_on=2)
    with pytest.raises(MidstreamError, match="nothing keeps the global batch of this run: 2 devices -> 1"):
        check_world(run, world_of(run, 1, 2), after)


def test_fewer_devices_are_agreed_to_where_use_is_unknown() -> None:
    run = described(f"{SCRIPT}command: python t.py\n{CHECKPOINTS}")
    line = check_world(run, world_of(run, 1, 2), world_of(run, 1, 1, trained_on=2))
    assert line.startswith("the global batch changes if script uses all devices that it sees: 2 devices -> 1")


def test_run_file_with_more_devices_than_a_host_is_refused() -> None:
    run = described("trainer: huggingface\ncommand: python t.py\ndevices: 4")
    with pytest.raises(MidstreamError, match="says devices: 4, and each host has 2 devices"):
        world_of(run, 1, 2)


def test_group_without_common_directory_is_refused() -> None:
    check_group(RUN, Target("one", ("a",)))
    with pytest.raises(MidstreamError, match="the hosts of pair share no directory") as raised:
        check_group(RUN, Target("pair", ("a", "b")))
    assert raised.value.hint.startswith("shared_root: of pair")
    assert raised.value.code == Exit.REFUSED


def test_command_that_is_the_same_on_each_host_is_refused() -> None:
    pair = Target("pair", ("a", "b"), "/nfs")
    with pytest.raises(MidstreamError, match="the same on each host of pair") as raised:
        check_group(RUN, pair)
    assert "{rank}" in raised.value.hint
    check_group(dataclasses.replace(RUN, launcher=False), pair)
    joined = ["torchrun", "--nnodes", "{nodes}", "--rdzv_endpoint", "{master}:{port}", "t.py"]
    check_group(dataclasses.replace(RUN, command=joined), pair)


def test_checkpoints_that_do_not_reshard_stay_at_their_count() -> None:
    fixed = dataclasses.replace(RUN, checkpoints=dataclasses.replace(RUN.checkpoints, reshards=False, rule="glob"))
    check_world(fixed, World(1, 4), World(1, 4))
    with pytest.raises(MidstreamError) as raised:
        check_world(fixed, World(1, 4), World(1, 8))
    assert "count that works: 4" in raised.value.hint


def test_batch_that_nothing_keeps_stays_at_its_count() -> None:
    run = parse_run_file("trainer: huggingface\ncommand: torchrun --nproc_per_node {devices} t.py", Path("a")).run
    check_world(run, World(1, 2), World(1, 2))
    with pytest.raises(MidstreamError, match="nothing keeps the global batch"):
        check_world(run, World(1, 2), World(1, 4))
