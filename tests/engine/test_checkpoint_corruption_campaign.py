"""Checkpoints that are spoiled at random: restoring and verifying find every damage and name the object."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import SingleDeviceSharding

from checkpoint_states import plain_state, save
from midstream.remote import tree
from midstream_engine.checkpoint.errors import CheckpointCorrupt
from midstream_engine.checkpoint.restore import restore_checkpoint
from midstream_engine.checkpoint.verify import verify_checkpoint
from midstream_engine.records import MANIFEST, RunPaths

WAYS = ("flip", "truncate", "lengthen", "swap", "remove", "zero")
SAMPLE = 24


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    paths = RunPaths(str(tmp_path_factory.mktemp("pristine")), "run")
    return Path(paths.checkpoint(save(paths, plain_state()).name))


def spoil(directory: Path, way: str, drawn: random.Random) -> list[str]:
    """Spoil one object, or two; returns their paths."""
    objects = sorted(
        str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file() and path.name != MANIFEST
    )
    chosen = drawn.choice(objects)
    file, data = directory / chosen, bytearray((directory / chosen).read_bytes())
    if way == "flip":
        for _ in range(drawn.choice([1, 1, 1, 8])):
            data[drawn.randrange(len(data))] ^= 1 << drawn.randrange(8)
        if bytes(data) == file.read_bytes():  # the same bit twice
            data[0] ^= 1
        file.write_bytes(data)
    elif way == "truncate":
        os.truncate(file, drawn.randrange(len(data)))
    elif way == "lengthen":
        file.write_bytes(data + drawn.randbytes(drawn.randint(1, 64)))
    elif way == "zero":  # a page that a disk lost
        start = drawn.randrange(len(data))
        lost = data[start : start + 4096]
        data[start : start + 4096] = bytes(len(lost))
        if not any(lost):
            data[start] = 1
        file.write_bytes(data)
    elif way == "remove":
        file.unlink()
    else:
        others = [path for path in objects if path != chosen and (directory / path).read_bytes() != bytes(data)]
        other = drawn.choice(others)
        file.write_bytes((directory / other).read_bytes())
        (directory / other).write_bytes(data)
        return [chosen, other]
    return [chosen]


def check(pristine: Path, directory: Path, seed: str) -> dict[str, Any]:
    """AssertionError where the damage that follows from ``seed`` is overlooked."""
    drawn = random.Random(seed)
    way = drawn.choice(WAYS)
    shutil.copytree(pristine, directory)
    spoilt = spoil(directory, way, drawn)
    with pytest.raises(CheckpointCorrupt) as caught:
        restore_checkpoint(str(directory), plain_state(), SingleDeviceSharding(jax.devices()[0]))
    assert any(f"object {path}" in str(caught.value) for path in spoilt), f"{seed}: {way} {spoilt}: {caught.value}"
    flaws = verify_checkpoint(str(directory)).flaws
    assert all(any(f"object {path}" in flaw for flaw in flaws) for path in spoilt), f"{seed}: {way} {spoilt}: {flaws}"
    # What the operator's --verify runs on the host, with the standard library alone.
    _, _, objects = tree.read_manifest(str(directory), MANIFEST)
    found = sorted(entry["path"] for entry, wrong in tree.checked(str(directory), objects) if wrong is not None)
    assert found == sorted(spoilt), f"{seed}: {way} {spoilt}: {found}"
    shutil.rmtree(directory)
    return {"way": way, "spoilt": spoilt}


def test_damage_at_random_is_found_and_named(pristine, tmp_path):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    for number in range(SAMPLE):
        check(pristine, tmp_path / "case", f"{seed}/{number}")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_whole_campaign_of_damage(pristine, tmp_path):
    ways = [check(pristine, tmp_path / "case", f"1/{number}")["way"] for number in range(600)]
    assert set(ways) == set(WAYS)
