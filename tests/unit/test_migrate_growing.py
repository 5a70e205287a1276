"""A checkpoint that is looked at while it is written: what is whole is named, the rest is not, the manifest decides."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from midstream.fleet.fleet import LocalHost
from midstream.hosts.host import Process
from midstream.hosts.local_host import LocalMachine
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.rpc.remote_program import reports
from midstream.remote.copy import growing_checkpoint
from midstream_engine import records
from support.trees import cell, files

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


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., Iterator[dict[str, Any]]]]:
    """The lines of the program about attempt 1 and order 3 of the run, as they come."""
    host = LocalMachine("here", LocalHost(root=str(tmp_path)))
    started: list[Process] = []

    def follow(since: int = 5, sizes: Mapping[str, int] = SIZES) -> Iterator[dict[str, Any]]:
        words = {"root": str(tmp_path), "run_id": "r", "attempt": 1, "serial": 3, "since": since, "sizes": dict(sizes)}
        started.append(start_program(host, "copy.growing_checkpoint.follow", words))
        return reports(started[-1])

    yield follow
    for process in started:
        process.close()


def test_objects_are_named_once_they_have_all_their_bytes(tmp_path: Path, follow: Callable[..., Any]):
    paths = run_with(tmp_path, "step-4-a001", "step-9-a001", "step-9-a002")
    directory = Path(paths.checkpoint("step-9-a001"))
    (directory / "a").write_bytes(b"1234")
    (directory / "b").mkdir()
    (directory / "b/c").write_bytes(b"12")
    lines = follow()
    assert next(lines) == {"event": "named", "name": "step-9-a001"}
    whole = {"path": "a", "size": 4, "sha256": hashlib.sha256(b"1234").hexdigest()}
    assert next(lines) == {"event": "whole", "name": "step-9-a001", "objects": [whole]}
    (directory / "b/c").write_bytes(b"1234")
    assert [entry["path"] for entry in next(lines)["objects"]] == ["b/c"]
    newer = Path(paths.checkpoint("step-10-a001"))  # that save was given up
    newer.mkdir()
    (newer / "a").write_bytes(b"5678")
    assert next(lines)["name"] == "step-10-a001"
    assert next(lines)["objects"][0]["sha256"] == hashlib.sha256(b"5678").hexdigest()
    state(paths, records.STOPPED)
    assert next(lines)["event"] == "answered"
    assert list(lines) == []


@pytest.mark.parametrize(("name", "refused"), [(records.STOPPED, 0), (records.TRAINING, 3), (records.FAILED, 0)])
def test_an_answer_ends_it_and_brings_how_the_run_lies_there(
    tmp_path: Path, follow: Callable[..., Any], name: str, refused: int
):
    paths = run_with(tmp_path, "step-9-a001")
    state(paths, name, rejected=refused)
    (found,) = follow(since=10)
    assert (found["event"], found["running"]) == ("answered", True)
    assert found["described"]["fence"]["epoch"] == 1
    assert found["migration_lock"] is None


def test_the_manifest_decides_what_is_left_and_is_written_last(tmp_path: Path):
    source, target = tmp_path / "source", tmp_path / "target"
    objects = []
    for directory in (source, target):
        directory.mkdir()
        for name in ("a", "b"):
            (directory / cell(name)).parent.mkdir(parents=True)
            (directory / cell(name)).write_bytes(name.encode() * 4)
    for name in ("a", "b"):
        objects.append({"path": cell(name), "size": 4, "sha256": hashlib.sha256(name.encode() * 4).hexdigest()})
    manifest = records.Manifest(records.FORMAT, 1, "r", 9, 1, 1, 0.0, "d", [], objects)
    manifest.write(str(source / records.MANIFEST))
    rest = growing_checkpoint.rest(str(source), {cell("a"): objects[0]["sha256"], cell("b"): "stale"})
    assert rest["objects"] == [objects[1]]
    assert growing_checkpoint.rest(str(source), {entry["path"]: entry["sha256"] for entry in objects})["objects"] == []
    (target / cell("b")).write_bytes(b"bb")
    with pytest.raises(ValueError, match="not 4 bytes"):
        growing_checkpoint.commit(str(target), rest["text"])
    assert not (target / records.MANIFEST).exists()
    (target / cell("b")).write_bytes(b"bbbb")
    growing_checkpoint.commit(str(target), rest["text"])
    assert (target / records.MANIFEST).read_text() == (source / records.MANIFEST).read_text()
    assert sorted(files(target)) == [cell("a"), cell("b"), records.MANIFEST]
