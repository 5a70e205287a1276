"""A checkpoint followed while it is written: complete objects, then the manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.host import Process
from midstream.hosts.local_host import LocalHost
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.rpc.remote_program import reports
from midstream_core import records
from midstream_host.copy import growing_checkpoint
from support.checkpoints.trees import cell, files

SIZES = {"a": 4, "b/c": 4, "train.json": 9}


def run_with(root: Path, *names: str) -> records.RunPaths:
    """Create a run with these checkpoint directories, whose attempt 1 is this process."""
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
    """Follow attempt 1 and command 3 of the run; yields the program's lines."""
    host = LocalHost("here", LocalHostConfig(root=str(tmp_path)))
    started: list[Process] = []

    def follow(since: int = 5, sizes: Mapping[str, int] = SIZES) -> Iterator[dict[str, Any]]:
        arguments = {
            "root": str(tmp_path),
            "run_id": "r",
            "attempt": 1,
            "sequence": 3,
            "since": since,
            "sizes": dict(sizes),
        }
        started.append(start_program(host, growing_checkpoint.follow)(**arguments))
        return reports(started[-1])

    yield follow
    for process in started:
        process.close()


def test_objects_are_reported_once_complete(tmp_path: Path, follow: Callable[..., Any]) -> None:
    paths = run_with(tmp_path, "step-4-a001", "step-9-a001", "step-9-a002")
    directory = Path(paths.checkpoint("step-9-a001"))
    (directory / "a").write_bytes(b"1234")
    (directory / "b").mkdir()
    (directory / "b/c").write_bytes(b"12")
    lines = follow()
    assert next(lines) == {"event": "named", "name": "step-9-a001"}
    complete = {"path": "a", "size": 4, "sha256": hashlib.sha256(b"1234").hexdigest()}
    assert next(lines) == {"event": "complete", "name": "step-9-a001", "objects": [complete]}
    (directory / "b/c").write_bytes(b"1234")
    assert [entry["path"] for entry in next(lines)["objects"]] == ["b/c"]
    newer = Path(paths.checkpoint("step-10-a001"))  # a second save; the first was abandoned
    newer.mkdir()
    (newer / "a").write_bytes(b"5678")
    assert next(lines)["name"] == "step-10-a001"
    assert next(lines)["objects"][0]["sha256"] == hashlib.sha256(b"5678").hexdigest()
    state(paths, records.STOPPED)
    assert next(lines)["event"] == "answered"
    assert list(lines) == []


@pytest.mark.parametrize(("name", "rejected"), [(records.STOPPED, 0), (records.TRAINING, 3), (records.FAILED, 0)])
def test_follow_ends_with_the_engines_answer(
    tmp_path: Path, follow: Callable[..., Any], name: str, rejected: int
) -> None:
    paths = run_with(tmp_path, "step-9-a001")
    state(paths, name, rejected=rejected)
    (found,) = follow(since=10)
    assert (found["event"], found["running"]) == ("answered", True)
    assert found["described"]["fence"]["epoch"] == 1
    assert found["migration_lock"] is None


def test_manifest_decides_the_rest_and_is_written_last(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    objects = []
    for directory in (source, target):
        directory.mkdir()
        for name in ("a", "b"):
            (directory / cell(name)).parent.mkdir(parents=True)
            (directory / cell(name)).write_bytes(name.encode() * 4)
    for name in ("a", "b"):
        objects.append({"path": cell(name), "size": 4, "sha256": hashlib.sha256(name.encode() * 4).hexdigest()})
    manifest = records.Manifest(records.FORMAT, records.FORMAT_VERSION, "r", 9, 1, 1, 0.0, "d", [], objects)
    manifest.write(str(source / records.MANIFEST))
    rest = growing_checkpoint.rest(str(source), {cell("a"): objects[0]["sha256"], cell("b"): "stale"})
    assert [entry.path for entry in rest.objects] == [cell("b")]
    assert growing_checkpoint.rest(str(source), {entry["path"]: entry["sha256"] for entry in objects}).objects == []
    (target / cell("b")).write_bytes(b"bb")
    with pytest.raises(ValueError, match="no longer 4 bytes"):
        growing_checkpoint.commit(str(target), rest.text)
    assert not (target / records.MANIFEST).exists()
    (target / cell("b")).write_bytes(b"bbbb")
    growing_checkpoint.commit(str(target), rest.text)
    assert (target / records.MANIFEST).read_text() == (source / records.MANIFEST).read_text()
    assert sorted(files(target)) == [cell("a"), cell("b"), records.MANIFEST]
