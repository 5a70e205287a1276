"""`--clean --yes` and `--repair --yes` act on what they have printed, and on nothing else."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midstream.cli import main
from midstream_core import records
from simulators.object_stores.bucket import BucketServer
from support.local_fleet import stopped_run
from support.ownership.run_bucket import BUCKET, PREFIX, STORE
from support.run_directory import RunDirectory, dead_process

HOUR = 3600.0


class Reader(io.StringIO):
    """Standard output whose reader acts on each event as soon as it is printed."""

    def __init__(self, act: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self.act = act
        self.events: list[dict[str, Any]] = []

    def write(self, text: str) -> int:
        for line in text.splitlines():
            self.events.append(json.loads(line))
            self.act(self.events[-1])
        return len(text)


def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Reader, roots: dict[str, Path], *arguments: str
) -> list[dict[str, Any]]:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))
    lines = [f'  {name}: {{type: local, devices: 2, root: "{root}"}}' for name, root in roots.items()]
    file = tmp_path / "fleet.yaml"
    file.write_text("\n".join(["hosts:", *lines]) + "\n")
    monkeypatch.setattr(sys, "stdout", reader)
    assert main(["--fleet", str(file), "--json", *arguments]) == 0, reader.events
    monkeypatch.undo()
    return reader.events


def aged(directory: Path) -> None:
    for path in [directory, *directory.rglob("*")]:
        os.utime(path, (time.time() - HOUR, time.time() - HOUR), follow_symlinks=False)


def test_clean_removes_on_a_host_what_it_has_printed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the old code it removed first, and printed afterwards."""
    run = RunDirectory(tmp_path / "here")
    run.status(1, records.STOPPED, 20, dead_process())
    listed, changed = (Path(run.paths.checkpoint(run.checkpoint(step, complete=False))) for step in (4, 8))
    (changed / "a").write_text("half")
    aged(tmp_path / "here")
    seen: set[str] = set()

    def act(event: dict[str, Any]) -> None:
        if event["event"] != "removing":
            return
        assert Path(run.paths.dir, event["path"]).is_dir(), "it is printed before it is removed"
        seen.add(Path(event["path"]).name)
        if len(seen) == 2:
            run.checkpoint(12, complete=False)
            (changed / "b").write_text("more")
            aged(Path(run.paths.checkpoint("step-12-a001")))
            os.utime(changed / "b", (time.time() - 2 * HOUR, time.time() - 2 * HOUR))
            os.utime(changed, (time.time() - 0.9 * HOUR, time.time() - 0.9 * HOUR))

    events = command(tmp_path, monkeypatch, Reader(act), {"here": tmp_path / "here"}, "--clean", "--yes")
    assert seen == {"step-4-a001", "step-8-a001"}
    found = {Path(each["path"]).name: each for each in events if each["event"] == "leftover"}
    assert {name for name, each in found.items() if each["removed"]} == {listed.name}
    assert not listed.exists()
    for name in ("step-8-a001", "step-12-a001"):
        assert found[name]["kept"] == "it has appeared or changed since the list was shown: list them again"
        assert Path(run.paths.checkpoint(name)).is_dir()


def test_clean_removes_in_a_bucket_what_it_has_printed_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: BucketServer
) -> None:
    run = RunDirectory(tmp_path / "here")
    run.status(1, records.STOPPED, 20, dead_process())
    records.Store(STORE).write(run.paths.store_file)

    def put(step: int) -> None:
        blob = bucket.put(BUCKET, f"{PREFIX}/runs/run/checkpoints/step-{step}-a001/train.json", b"half")
        bucket.buckets[BUCKET][blob.name] = replace(blob, updated=blob.updated - HOUR)

    put(4)

    def act(event: dict[str, Any]) -> None:
        if event["event"] == "removing":
            assert bucket.blobs(BUCKET, f"{PREFIX}/runs/run/checkpoints/step-4-a001/"), "it is printed before"
            put(8)

    events = command(tmp_path, monkeypatch, Reader(act), {"here": tmp_path / "here"}, "--clean", "--yes")
    found = {each["path"].rpartition("/")[2]: each for each in events if each["event"] == "leftover"}
    assert {name: each["removed"] for name, each in found.items()} == {"step-4-a001": True, "step-8-a001": False}
    assert bucket.blobs(BUCKET, f"{PREFIX}/runs/run/checkpoints/step-8-a001/")


def test_repair_writes_what_it_has_printed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the old code each record was written first, and printed afterwards."""
    run = stopped_run(tmp_path / "here")
    before = records.read_json(run.paths.fence)
    Path(run.paths.fence).write_bytes(b"{")
    status = Path(run.attempt(1).status())

    def act(event: dict[str, Any]) -> None:
        if event["event"] == "repairing":
            assert Path(run.paths.fence).read_bytes() == b"{", "it is printed before it is written"
            assert (event["file"], event["value"]["epoch"]) == ("fence.json", before["epoch"])
            status.write_bytes(b"{")  # damaged since

    events = command(tmp_path, monkeypatch, Reader(act), {"here": tmp_path / "here"}, "--repair", "solo", "--yes")
    assert [each["file"] for each in events if each["event"] == "repairing"] == ["fence.json"]
    assert [each["file"] for each in events if each["event"] == "repair" and each["written"]] == ["fence.json"]
    assert records.read_json(run.paths.fence) == before
    assert status.read_bytes() == b"{"
