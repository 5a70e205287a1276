"""Random damage to checkpoints: restore and verify find it and name the object.

    python tests/engine/checkpoint/damage/test_corruption_campaign.py [--cases 600] [--seed 1] [--results FILE]

Results are appended, one line per case; an interrupted campaign continues after its last case.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))  # as a script

from jax.sharding import SingleDeviceSharding

from midstream_core.records import MANIFEST, RunPaths
from midstream_engine.checkpoint.errors import CheckpointCorruptError
from midstream_engine.checkpoint.loading.restore import restore_checkpoint
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_host.verify.objects import checked
from midstream_host.verify.tree import read_manifest
from support.checkpoints.checkpoint_states import plain_state, save
from support.paths import REPOSITORY

RESULTS = REPOSITORY / "docs/campaigns/checkpoint-damage.jsonl"
WAYS = ("flip", "truncate", "lengthen", "swap", "remove", "zero")
SAMPLE = 6


def make_pristine(room: Path) -> Path:
    paths = RunPaths(str(room), "run")
    return Path(paths.checkpoint(save(paths, plain_state()).name))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pristine(tmp_path_factory.mktemp("pristine"))


def spoil(directory: Path, way: str, drawn: random.Random) -> list[str]:
    """Damage one object or two; return their paths."""
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
    """Damage a copy by ``seed``; raise AssertionError if the damage is not found."""
    drawn = random.Random(seed)
    way = drawn.choice(WAYS)
    shutil.copytree(pristine, directory)
    spoilt = spoil(directory, way, drawn)
    with pytest.raises(CheckpointCorruptError) as caught:
        restore_checkpoint(str(directory), plain_state(), SingleDeviceSharding(jax.devices()[0]))
    assert any(f"object {path}" in str(caught.value) for path in spoilt), f"{seed}: {way} {spoilt}: {caught.value}"
    flaws = verify_checkpoint(str(directory)).flaws
    assert all(any(f"object {path}" in flaw for flaw in flaws) for path in spoilt), f"{seed}: {way} {spoilt}: {flaws}"
    # What the operator's --verify runs on the host, with the standard library alone.
    _, _, objects = read_manifest(str(directory), MANIFEST)
    found = sorted(entry["path"] for entry, wrong in checked(str(directory), objects) if wrong is not None)
    assert found == sorted(spoilt), f"{seed}: {way} {spoilt}: {found}"
    shutil.rmtree(directory)
    return {"way": way, "damaged": spoilt}


def campaign(seed: int, cases: range, pristine: Path, room: Path, results: Path | None) -> list[dict[str, Any]]:
    """Run the cases of this seed that ``results`` lacks; seed and number determine a case."""
    done: dict[int, dict[str, Any]] = {}
    if results is not None and results.exists():
        rows = [json.loads(line) for line in results.read_text().splitlines()]
        done = {row["case"]: row for row in rows if row["seed"] == seed}
    found = []
    for number in cases:
        row = done.get(number)
        if row is None:
            row = {"seed": seed, "case": number, **check(pristine, room / "case", f"{seed}/{number}"), "found": True}
            if results is not None:
                with results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        found.append(row)
    return found


def test_random_damage_is_found_and_named(pristine: Path, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    assert len(campaign(seed, range(SAMPLE), pristine, tmp_path, None)) == SAMPLE


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_damage_campaign(pristine: Path, tmp_path: Path) -> None:
    rows = campaign(1, range(600), pristine, tmp_path, tmp_path / "damage.jsonl")
    assert {row["way"] for row in rows} == set(WAYS)


def test_committed_damage_campaign_is_complete() -> None:
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    assert len({(row["seed"], row["case"]) for row in rows}) == len(rows) >= 200
    assert {row["way"] for row in rows} == set(WAYS)
    assert all(row["found"] for row in rows)


def main() -> None:
    flags = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    flags.add_argument("--cases", type=int, default=600)
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--results", type=Path, default=RESULTS)
    options = flags.parse_args()
    with tempfile.TemporaryDirectory(prefix="damage-") as name:
        rows = campaign(options.seed, range(options.cases), make_pristine(Path(name)), Path(name), options.results)
    print(f"{len(rows)} cases, every damage found and named")


if __name__ == "__main__":
    main()
