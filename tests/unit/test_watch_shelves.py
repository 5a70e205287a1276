"""Runs that keep their checkpoints in a bucket: shown like others, and a bucket that is silent holds nothing up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from midstream.cli import main
from midstream.errors import Exit
from midstream.fleet.fleet import Fleet, LocalHost
from midstream.hosts.host_pool import Hosts
from midstream.tui.actions import FleetActions
from midstream.watch.snapshot import Snapshot
from midstream.watch.snapshot_store import Store
from midstream.watch.watcher import Watch, look_once
from midstream_engine import records
from simulators.bucket import BucketServer, Fault
from support.run_directory import RunDirectory
from support.watching import PATIENCE, run_of, seen

URL = "gs://runs/lab"
PREFIX = "lab/runs/run"


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """One host, with a run that trains and keeps its checkpoints in the bucket."""
    run = RunDirectory(tmp_path)
    run.fence(1)
    run.lineage({"attempt": 1, "epoch": 1})
    run.status(1, records.TRAINING, 7)
    run.rows(1, 0)
    records.Store(URL + "/").write(run.paths.store_file)
    return Fleet(hosts={"here": LocalHost(root=str(tmp_path))})


def put(bucket: BucketServer, step: int) -> str:
    """A checkpoint of no arrays, in the bucket."""
    name = records.checkpoint_name(step, 1)
    train = json.dumps({"state": {"step": step}}).encode()
    entry = {"path": records.TRAIN, "size": len(train), "sha256": hashlib.sha256(train).hexdigest()}
    manifest = records.Manifest(
        format=records.FORMAT,
        version=records.FORMAT_VERSION,
        run_id="run",
        step=step,
        attempt=1,
        epoch=1,
        created=1000.0 + step,
        root_digest=records.root_digest([], {}, {"step": step}),
        arrays=[],
        objects=[entry],
    )
    bucket.put("runs", f"{PREFIX}/checkpoints/{name}/{records.TRAIN}", train)
    bucket.put("runs", f"{PREFIX}/checkpoints/{name}/{records.MANIFEST}", json.dumps(manifest.to_json()).encode())
    return name


def paths_of(root: Path) -> records.RunPaths:
    return records.RunPaths(str(root), "run")


def change_status(root: Path, **changes: Any) -> None:
    file = paths_of(root).attempt(1).status()
    records.Status.from_json({**records.Status.read(file).to_json(), **changes}).write(file, durable=False)


def names(snapshot: Snapshot) -> list[str]:
    run = run_of(snapshot)
    return [point.name for point in run.checkpoints] if run else []


@pytest.fixture
def watch(fleet: Fleet) -> Iterator[tuple[Watch, list[Any]]]:
    """A running watch, and all that its store was told."""
    told: list[Any] = []
    hosts = Hosts(fleet)
    watch = Watch(fleet, hosts, interval=0.05, heard=lambda *words: told.append(json.loads(json.dumps(words))))
    yield watch, told
    watch.stop()
    hosts.close()


def test_they_are_shown_as_they_are_saved_and_a_recording_shows_them_too(
    bucket: BucketServer, fleet: Fleet, watch: tuple[Watch, list[Any]], tmp_path: Path
) -> None:
    watching, told = watch
    first = put(bucket, 5)
    watching.start()
    run = run_of(seen(watching, lambda now: names(now) == [first]))
    assert run is not None
    assert (run.store, run.checkpoints[0].complete, run.checkpoints[0].accepted) == (URL, True, True)
    second = put(bucket, 9)
    change_status(tmp_path, checkpoint=second)
    now = seen(watching, lambda now: names(now) == [first, second])
    manifests = [path for _, path in bucket.requests if "manifest.json" in path]
    assert sum("step-5-a001" in path for path in manifests) == 1, "one that has not changed is not read again"
    again = Store(told[0][1])
    for what, *words in told[1:]:
        getattr(again, what)(*words)
    assert names(again.snapshot()) == names(now)


def test_a_bucket_that_is_silent_holds_nothing_up(
    bucket: BucketServer, watch: tuple[Watch, list[Any]], tmp_path: Path
) -> None:
    watching, _ = watch
    name = put(bucket, 5)
    with bucket.lock:  # whoever asks has to wait
        watching.start()
        run = run_of(seen(watching, lambda now: (run := run_of(now)) is not None and run.step == 7))
        assert run is not None
        assert (run.listed, run.checkpoints, run.trouble) == (False, (), "")
        change_status(tmp_path, step=8)
        seen(watching, lambda now: (run := run_of(now)) is not None and run.step == 8)
    run = run_of(seen(watching, lambda now: names(now) == [name]))
    assert run is not None
    assert run.listed


def test_why_they_are_not_known_is_one_line_and_what_was_known_stands(
    bucket: BucketServer, watch: tuple[Watch, list[Any]], tmp_path: Path
) -> None:
    watching, _ = watch
    name = put(bucket, 5)
    watching.start()
    seen(watching, lambda now: names(now) == [name])
    bucket.faults.append(Fault("GET", "checkpoints", 403, times=1000, message="storage.objects.list is denied"))
    records.Fence(2, "here", None, []).write(paths_of(tmp_path).fence, durable=False)  # news: it is listed again
    run = run_of(
        seen(watching, lambda now: (run := run_of(now)) is not None and "lacks storage.objects.list" in run.trouble)
    )
    assert run is not None
    assert URL in run.trouble
    assert "\n" not in run.trouble
    assert [point.name for point in run.checkpoints] == [name]


def test_one_look_has_them_and_what_does_not_answer_in_time_is_said(
    bucket: BucketServer, fleet: Fleet, watch: tuple[Watch, list[Any]]
) -> None:
    watching, _ = watch
    name = put(bucket, 5)
    hosts = Hosts(fleet)
    try:
        assert names(look_once(fleet, hosts, PATIENCE)) == [name]
    finally:
        hosts.close()
    with bucket.lock:
        watching.start()
        seen(watching, run_of)
        watching.give_up("no answer within 15 s")
        run = run_of(watching.snapshot())
    assert run is not None
    assert (run.listed, run.trouble) == (True, f"its checkpoints in {URL} are not known: no answer within 15 s")


def test_flags_show_them(
    bucket: BucketServer, fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = put(bucket, 5)
    file = tmp_path / "fleet.yaml"
    file.write_text(f"hosts:\n  here: {{type: local, root: {tmp_path}}}\n")
    assert main(["--fleet", str(file), "--status", "--json"]) == Exit.DONE
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (run,) = [line for line in lines if line["event"] == "run"]
    assert run["store"] == URL
    assert [point["name"] for point in run["checkpoints"]] == [name]
    bucket.faults.append(Fault("GET", "checkpoints", 403, times=1000, message="storage.objects.list is denied"))
    assert main(["--fleet", str(file), "--checkpoints", "run"]) == Exit.FAILED
    assert "lacks storage.objects.list" in capsys.readouterr().err


def test_the_screen_verifies_and_compares_them(bucket: BucketServer, fleet: Fleet) -> None:
    first, second = put(bucket, 5), put(bucket, 9)
    hosts = Hosts(fleet)
    try:
        run = run_of(look_once(fleet, hosts, PATIENCE))
        assert run is not None
        actions = FleetActions(fleet, hosts)
        assert actions.verify(run, first) == []
        assert actions.compare(run, first, second) == []
        bucket.put("runs", f"{PREFIX}/checkpoints/{first}/{records.TRAIN}", b"flipped")
        (problem,) = actions.verify(run, first)
        assert problem.startswith(records.TRAIN)
    finally:
        hosts.close()
