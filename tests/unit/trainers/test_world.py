"""Processes of another trainer on a target: its global batch stays, or the counts that work are named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from midstream.errors import Exit, MidstreamError
from midstream.fleet.fleet import Target
from midstream.trainers.run_file_parser import parse_run_file
from midstream.trainers.world import check_group, check_world, world_of
from midstream_engine.foreign.run_file import World

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
    with pytest.raises(MidstreamError, match="48 does not divide over 5 processes") as raised:
        world_of(RUN, 1, 5)
    assert "4, 6" in raised.value.hint


def test_command_without_devices_is_one_process() -> None:
    run = parse_run_file("trainer: huggingface\ncommand: python t.py", Path("run.yaml")).run
    assert world_of(run, 1, 8).size == 1


def test_nodes_multiply_the_processes() -> None:
    assert world_of(RUN, 2, 8) == World(2, 8, 3, 1)


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
    fixed = dataclasses.replace(RUN, checkpoints=dataclasses.replace(RUN.checkpoints, reshards=False, rule="deepspeed"))
    check_world(fixed, 4, World(1, 4))
    with pytest.raises(MidstreamError) as raised:
        check_world(fixed, 4, World(1, 8))
    assert "count that works: 4" in raised.value.hint
    assert "ds_to_universal" in raised.value.hint


def test_batch_that_nothing_keeps_stays_at_its_count() -> None:
    run = parse_run_file("trainer: huggingface\ncommand: torchrun --nproc_per_node {devices} t.py", Path("a")).run
    check_world(run, 2, World(1, 2))
    with pytest.raises(MidstreamError, match="nothing keeps the global batch"):
        check_world(run, 2, World(1, 4))
