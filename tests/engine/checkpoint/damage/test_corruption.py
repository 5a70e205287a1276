"""Corruption of checkpoints is found by restore and verify, which name the object."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import SingleDeviceSharding

from midstream_core.attempt.errors import CheckpointError
from midstream_core.records import RunPaths
from midstream_engine.checkpoint.__main__ import main
from midstream_engine.checkpoint.errors import CheckpointCorruptError
from midstream_engine.checkpoint.loading.restore import restore_checkpoint
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from support.checkpoints.checkpoint_states import plain_state, save

CELL = "arrays/model/wide/c/0/1"
OTHER = "arrays/model/wide/c/0/0"
OBJECTS = [CELL, "arrays/model/half/zarr.json", "small.safetensors", "train.json"]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    paths = RunPaths(str(tmp_path_factory.mktemp("pristine")), "run")
    return Path(paths.checkpoint(save(paths, plain_state()).name))


@pytest.fixture
def checkpoint(pristine: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(pristine, tmp_path / pristine.name))


def restore(directory: Path) -> None:
    restore_checkpoint(str(directory), plain_state(), SingleDeviceSharding(jax.devices()[0]))


def expect(directory: Path, *named: str) -> None:
    """Check that restore and verify refuse the checkpoint, with all of ``named`` in the messages."""
    with pytest.raises(CheckpointCorruptError) as caught:
        restore(directory)
    for words in named:
        assert words in str(caught.value)
    assert str(directory) in str(caught.value)
    assert "\n" not in str(caught.value)
    try:
        report = verify_checkpoint(str(directory), deep=True)
    except CheckpointCorruptError as error:
        flaws = str(error)
    else:
        assert not report.sound
        flaws = "\n".join(report.flaws)
    for words in named:
        assert words in flaws


def edit_manifest(directory: Path, change: Callable[[dict], None]) -> None:
    path = directory / "manifest.json"
    manifest = json.loads(path.read_bytes())
    change(manifest)
    path.write_text(json.dumps(manifest))


def wide(manifest: dict) -> dict:
    return next(entry for entry in manifest["arrays"] if entry["name"] == "model/wide")


def rehash(directory: Path, *paths: str) -> None:
    """Rewrite the manifest's object entries to agree with the files, as an attacker would."""

    def change(manifest: dict) -> None:
        for entry in manifest["objects"]:
            if entry["path"] in paths:
                data = (directory / entry["path"]).read_bytes()
                entry |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "crc32c": ""}

    edit_manifest(directory, change)


def test_intact_copy_passes(checkpoint: Path) -> None:
    restore(checkpoint)
    assert verify_checkpoint(str(checkpoint), deep=True).sound


@pytest.mark.parametrize("path", OBJECTS)
def test_flipped_bit_is_found(checkpoint: Path, path: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    data = bytearray((checkpoint / path).read_bytes())
    chosen = random.Random(seed)
    data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
    (checkpoint / path).write_bytes(data)
    expect(checkpoint, f"object {path}: SHA-256", "differs from the manifest's")


@pytest.mark.parametrize("path", OBJECTS)
@pytest.mark.parametrize("kept", [0, -1])
def test_truncated_object_is_found(checkpoint: Path, path: str, kept: int) -> None:
    data = (checkpoint / path).read_bytes()
    (checkpoint / path).write_bytes(data[:kept])
    expect(checkpoint, f"object {path}: truncated: {len(data[:kept])} bytes, the manifest says {len(data)}")


@pytest.mark.parametrize("path", OBJECTS)
def test_extra_bytes_are_found(checkpoint: Path, path: str) -> None:
    data = (checkpoint / path).read_bytes()
    (checkpoint / path).write_bytes(data + b"\0")
    expect(checkpoint, f"object {path}: too long: {len(data) + 1} bytes, the manifest says {len(data)}")


@pytest.mark.parametrize("path", OBJECTS)
def test_missing_object_is_found(checkpoint: Path, path: str) -> None:
    (checkpoint / path).unlink()
    expect(checkpoint, f"object {path}: missing")


def test_directory_in_place_of_object_is_found(checkpoint: Path) -> None:
    (checkpoint / CELL).unlink()
    (checkpoint / CELL).mkdir()
    with pytest.raises(CheckpointCorruptError, match=f"object {CELL}"):
        restore(checkpoint)


def test_swapped_objects_are_found(checkpoint: Path) -> None:
    os.rename(checkpoint / CELL, checkpoint / "aside")
    os.rename(checkpoint / OTHER, checkpoint / CELL)
    os.rename(checkpoint / "aside", checkpoint / OTHER)
    with pytest.raises(CheckpointCorruptError, match=r"wide/c/0/[01]: SHA-256.*it is another chunk under this path"):
        restore(checkpoint)
    flaws = verify_checkpoint(str(checkpoint)).flaws
    assert len(flaws) == 2
    assert OTHER in flaws[0]
    assert CELL in flaws[1]


def test_edited_training_state_is_found(checkpoint: Path) -> None:
    train = json.loads((checkpoint / "train.json").read_bytes())
    train["state"]["step"] = 8
    (checkpoint / "train.json").write_text(json.dumps(train, indent=1, sort_keys=True) + "\n")
    expect(checkpoint, "object train.json: SHA-256")


def test_edited_training_state_with_hash_fails_root_digest(checkpoint: Path) -> None:
    train = json.loads((checkpoint / "train.json").read_bytes())
    train["state"]["step"] = 8
    (checkpoint / "train.json").write_text(json.dumps(train))
    rehash(checkpoint, "train.json")
    expect(checkpoint, "root digest", "differs from the manifest's")


def test_edited_chunk_with_hash_fails_crc32c(checkpoint: Path) -> None:
    data = bytearray((checkpoint / CELL).read_bytes())
    data[0] ^= 1
    (checkpoint / CELL).write_bytes(data)
    rehash(checkpoint, CELL)
    with pytest.raises(CheckpointCorruptError, match=f"object {CELL}: the crc32c at its end does not match its data"):
        restore(checkpoint)


def test_array_description_must_match_manifest(checkpoint: Path) -> None:
    path = checkpoint / "arrays/model/wide/zarr.json"
    path.write_text(path.read_text().replace('"float32"', '"int32"'))
    rehash(checkpoint, "arrays/model/wide/zarr.json")
    expect(checkpoint, "object arrays/model/wide/zarr.json: data_type is 'int32', the manifest says 'float32'")


def test_changed_provenance_is_found_outside_root_digest(checkpoint: Path) -> None:
    train = json.loads((checkpoint / "train.json").read_bytes())
    train["provenance"]["devices"] = 3
    (checkpoint / "train.json").write_text(json.dumps(train))
    expect(checkpoint, "object train.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m["objects"].pop(0), "is not listed"),
        (lambda m: m["objects"].append(m["objects"][0]), "lists an object twice"),
        (lambda m: m["arrays"].append(wide(m)), "lists an array twice"),
        (lambda m: m["arrays"].remove(wide(m)), "belongs to no array"),
        (lambda m: m["objects"].append(dict(m["objects"][0], path="arrays/stray")), "arrays/stray belongs to no array"),
        (lambda m: wide(m).update(objects=wide(m)["objects"][::-1]), "are not those of its grid"),
        (lambda m: wide(m).update(grid=[3, 1]), "does not divide the shape"),
        (lambda m: wide(m).update(dtype="complex64"), "is not a type of elements"),
        (lambda m: m["objects"][0].update(path="../../outside"), "leaves the directory"),
        (lambda m: m.update(version=3), "version 3 is newer than this midstream reads (2)"),
        (lambda m: m.update(version=1), "version 1 is older than this midstream reads (2)"),
        (lambda m: m.update(format="other"), "format 'other' is not"),
        (lambda m: m.pop("root_digest"), "lacks root_digest"),
        (lambda m: m.update(root_digest="0" * 64), "root digest"),
    ],
)
def test_contradictory_manifest_is_refused(checkpoint: Path, change: Callable[[Any], object], words: str) -> None:
    edit_manifest(checkpoint, lambda manifest: (change(manifest), None)[1])
    expect(checkpoint, words)


def test_flipped_manifest_bit_is_found_or_not_digested(checkpoint: Path) -> None:
    path = checkpoint / "manifest.json"
    original = path.read_bytes()
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    for _ in range(150):
        data = bytearray(original)
        place = chosen.randrange(len(data))
        data[place] ^= 1 << chosen.randrange(8)
        path.write_bytes(data)
        try:
            report = verify_checkpoint(str(checkpoint))
        except CheckpointCorruptError:
            continue
        if report.sound:
            assert digested(json.loads(data)) == digested(json.loads(original)), f"byte {place}"


def digested(manifest: dict) -> list:
    """Return the digested part of a manifest: all but writer, time and epoch."""
    objects = [(entry["path"], entry["size"], entry["sha256"]) for entry in manifest["objects"]]
    fields = ("name", "axes", "shape", "dtype", "grid", "objects")
    arrays = [[array[field] for field in fields] for array in manifest["arrays"]]
    return [manifest["format"], manifest["version"], manifest["root_digest"], arrays, objects]


def test_wrong_hash_of_packed_array_is_found(checkpoint: Path) -> None:
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_bytes())
    array = next(array for array in manifest["arrays"] if not array["grid"] and array["shape"])
    array["sha256"] = "0" * 64
    path.write_text(json.dumps(manifest))
    (flaw,) = verify_checkpoint(str(checkpoint)).flaws
    assert flaw == f"object small.safetensors: {array['name']} has another SHA-256 than in the manifest"


def test_directory_without_manifest_is_no_checkpoint(checkpoint: Path) -> None:
    (checkpoint / "manifest.json").unlink()
    expect(checkpoint, "is no checkpoint: it has no manifest.json")


def test_unreadable_object_is_not_reported_corrupt(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_self: object, _path: str) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("midstream_engine.checkpoint.stores.directory_objects.DirectoryObjects.size", denied)
    with pytest.raises(CheckpointError, match=r"train\.json cannot be opened: Permission denied") as caught:
        restore(checkpoint)
    assert not isinstance(caught.value, CheckpointCorruptError)


def test_verify_command_shows_arrays_and_verdict(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(checkpoint), "--deep"]) == 0
    output = capsys.readouterr()
    assert "2 chunks of 2,097,152" in output.out
    assert "[dim_0=512, dim_1=2048]  float32  4,194,304 bytes" in output.out
    assert output.err.startswith("sound: root digest ")
    (checkpoint / CELL).unlink()
    (checkpoint / "note.txt").write_text("mine")
    assert main([str(checkpoint)]) == 1
    errors = capsys.readouterr().err
    assert "note: note.txt does not belong to the checkpoint" in errors
    assert f"CORRUPT object {CELL}: missing" in errors
    assert main([str(checkpoint / "arrays")]) == 1
    assert "is no checkpoint" in capsys.readouterr().err


def test_verify_command_runs_without_jax(checkpoint: Path) -> None:
    code = (
        "import sys; sys.modules['jax'] = None; from midstream_engine.checkpoint.__main__ import main; sys.exit(main())"
    )
    outcome = subprocess.run([sys.executable, "-c", code, str(checkpoint), "--deep"], capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stderr.startswith("sound: root digest ")
