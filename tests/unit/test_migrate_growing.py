"""A checkpoint that is looked at while it is written: what is whole is named, the rest is not, the manifest decides."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from midstream.remote import growing
from midstream_engine import records

SIZES = {"a": 4, "b/c": 4, "train.json": 9}


def run_with(root: Path, *names: str) -> records.RunPaths:
    """A run whose attempt 1 lives (it is this process), with these checkpoint directories."""
    paths = records.RunPaths(str(root), "r")
    Path(paths.attempt(1).dir).mkdir(parents=True)
    state(paths, records.TRAINING)
    for name in names:
        Path(paths.checkpoint(name)).mkdir(parents=True)
    records.first_fence("here").write(paths.fence)
    return paths


def state(paths: records.RunPaths, name: str, **fields: Any) -> None:
    identity = records.this_process().to_json()
    status = records.Status(state=name, step=9, process=0, heartbeat=0.0, attempt=1, **identity, **fields)
    status.write(paths.attempt(1).status())


def look(paths: records.RunPaths, sent: tuple[str, ...] = (), lot: int = 1, since: int = 5) -> dict:
    return growing.look(paths.root, "r", 1, 3, since, SIZES, list(sent), lot, patience=0.4)


def test_objects_are_named_once_they_have_all_their_bytes(tmp_path: Path):
    paths = run_with(tmp_path, "step-4-a001", "step-9-a001", "step-9-a002")
    directory = Path(paths.checkpoint("step-9-a001"))
    (directory / "a").write_bytes(b"1234")
    (directory / "b").mkdir()
    (directory / "b/c").write_bytes(b"12")
    found = look(paths)
    assert (found["answered"], found["name"]) == (False, "step-9-a001")
    assert found["objects"] == [{"path": "a", "size": 4, "sha256": hashlib.sha256(b"1234").hexdigest()}]
    assert json.loads((directory / found["manifest"]).read_text())["objects"] == found["objects"]
    (directory / "b/c").write_bytes(b"1234")
    again = look(paths, ("step-9-a001", "a"), lot=2)
    assert [entry["path"] for entry in again["objects"]] == ["b/c"]
    assert again["manifest"] != found["manifest"]
    assert [entry["path"] for entry in look(paths, ("step-8-a001", "a"))["objects"]] == ["a", "b/c"]
    assert look(paths, since=10)["name"] is None


@pytest.mark.parametrize(("name", "refused"), [(records.STOPPED, 0), (records.TRAINING, 3), (records.FAILED, 0)])
def test_an_answer_ends_the_look_and_brings_how_the_run_lies_there(tmp_path: Path, name: str, refused: int):
    paths = run_with(tmp_path)
    state(paths, name, refused=refused)
    found = look(paths)
    assert found["answered"]
    assert found["described"]["fence"]["epoch"] == 1
    assert found["mover"] is None


def test_the_manifest_decides_what_is_left_and_is_written_last(tmp_path: Path):
    source, target = tmp_path / "source", tmp_path / "target"
    objects = []
    for directory in (source, target):
        directory.mkdir()
        for name in ("a", "b"):
            (directory / name).write_bytes(name.encode() * 4)
    for name in ("a", "b"):
        objects.append({"path": name, "size": 4, "sha256": hashlib.sha256(name.encode() * 4).hexdigest()})
    manifest = records.Manifest(records.FORMAT, 1, "r", 9, 1, 1, 0.0, "d", [], objects)
    manifest.write(str(source / records.MANIFEST))
    arrived = {"a": objects[0]["sha256"], "b": "stale"}
    rest = growing.rest(str(source), arrived, 2)
    assert [entry["path"] for entry in rest["objects"]] == ["b"]
    assert growing.rest(str(source), {entry["path"]: entry["sha256"] for entry in objects}, 3)["manifest"] == ""
    (target / "b").write_bytes(b"bb")
    with pytest.raises(records.RecordError, match="not 4 bytes"):
        growing.commit(str(target), rest["text"])
    assert not (target / records.MANIFEST).exists()
    (target / "b").write_bytes(b"bbbb")
    (target / rest["manifest"]).write_text("{}")
    growing.commit(str(target), rest["text"])
    assert (target / records.MANIFEST).read_text() == (source / records.MANIFEST).read_text()
    growing.tidy(str(source))
    assert sorted(os.listdir(source)) == sorted(os.listdir(target)) == ["a", "b", records.MANIFEST]
