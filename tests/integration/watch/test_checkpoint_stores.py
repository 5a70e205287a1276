"""Runs with checkpoints in a bucket; an unresponsive bucket blocks nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from midstream.cli import main
from midstream.errors import Exit
from midstream.fleet.fleet import Fleet, LocalHostConfig
from midstream.hosts.host_pool import HostPool
from midstream.stores.bucket_run import BucketRun
from midstream.stores.bucket_writers import BucketWriters
from midstream.tui.actions import Actions
from midstream.watch.snapshot import Snapshot
from midstream.watch.snapshot_store import SnapshotStore
from midstream.watch.watcher import Watcher, take_snapshot
from midstream_core import records
from simulators.object_stores.bucket import BucketServer
from simulators.planted_faults import Fault
from support.run_directory import RunDirectory
from support.watching import PATIENCE, run_of, seen

URL = "gs://runs/lab"
PREFIX = "lab/runs/run"


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Create a fleet with a training run whose checkpoints are in the bucket."""
    run = RunDirectory(tmp_path)
    run.fence(1)
    run.lineage({"attempt": 1, "epoch": 1})
    run.status(1, records.TRAINING, 7)
    run.rows(1, 0)
    records.Store(URL + "/").write(run.paths.store_file)
    return Fleet(hosts={"here": LocalHostConfig(root=str(tmp_path))})


def put(bucket: BucketServer, step: int) -> str:
    """Write a checkpoint without arrays into the bucket."""
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
    return [checkpoint.name for checkpoint in run.checkpoints] if run else []


@pytest.fixture
def watch(fleet: Fleet) -> Iterator[tuple[Watcher, list[Any]]]:
    """Create a watcher, and a list of the calls that its listener gets."""
    calls: list[Any] = []
    hosts = HostPool(fleet)
    watch = Watcher(
        fleet, hosts, interval=0.05, listener=lambda *arguments: calls.append(json.loads(json.dumps(arguments)))
    )
    yield watch, calls
    watch.stop()
    hosts.close()


def test_markers_of_folders_and_stray_files_are_no_checkpoints(bucket: BucketServer) -> None:
    name = put(bucket, 5)
    for path in ("checkpoints/", f"checkpoints/{name}/", "checkpoints/.DS_Store", "pins/"):
        bucket.put("runs", f"{PREFIX}/{path}", b"")
    run = BucketRun(URL, "run")
    assert [(each.name, each.complete, each.pinned) for each in run.checkpoints()] == [(name, True, False)]
    assert run.leftovers(BucketWriters()) == []


def test_bucket_checkpoints_are_shown_and_recorded(
    bucket: BucketServer, watch: tuple[Watcher, list[Any]], tmp_path: Path
) -> None:
    watching, calls = watch
    first = put(bucket, 5)
    watching.start()
    run = run_of(seen(watching, lambda now: names(now) == [first]))
    assert run is not None
    assert (run.store, run.checkpoints[0].complete, run.checkpoints[0].accepted) == (URL, True, True)
    second = put(bucket, 9)
    change_status(tmp_path, checkpoint=second)
    now = seen(watching, lambda now: names(now) == [first, second])
    manifests = [path for _, path in bucket.requests if "manifest.json" in path]
    assert sum("step-5-a001" in path for path in manifests) == 1, "an unchanged manifest is not read again"
    replayed = SnapshotStore(calls[0][1])
    for method, *arguments in calls[1:]:
        getattr(replayed, method)(*arguments)
    assert names(replayed.snapshot()) == names(now)


def test_unresponsive_bucket_blocks_nothing(
    bucket: BucketServer, watch: tuple[Watcher, list[Any]], tmp_path: Path
) -> None:
    watching, _ = watch
    name = put(bucket, 5)
    with bucket.lock:  # all requests wait
        watching.start()
        run = run_of(seen(watching, lambda now: (run := run_of(now)) is not None and run.step == 7))
        assert run is not None
        assert (run.checkpoints_listed, run.checkpoints, run.problem) == (False, (), "")
        change_status(tmp_path, step=8)
        seen(watching, lambda now: (run := run_of(now)) is not None and run.step == 8)
    run = run_of(seen(watching, lambda now: names(now) == [name]))
    assert run is not None
    assert run.checkpoints_listed


def test_bucket_error_is_one_line_and_keeps_the_last_list(
    bucket: BucketServer, watch: tuple[Watcher, list[Any]], tmp_path: Path
) -> None:
    watching, _ = watch
    name = put(bucket, 5)
    watching.start()
    seen(watching, lambda now: names(now) == [name])
    bucket.faults.append(Fault("GET", "checkpoints", 403, times=1000, message="storage.objects.list is denied"))
    records.Fence(2, "here", None, []).write(
        paths_of(tmp_path).fence, durable=False
    )  # a change: the bucket is listed again
    run = run_of(
        seen(watching, lambda now: (run := run_of(now)) is not None and "storage.objects.list is denied" in run.problem)
    )
    assert run is not None
    assert URL in run.problem
    assert "\n" not in run.problem
    assert [checkpoint.name for checkpoint in run.checkpoints] == [name]


def test_snapshot_lists_bucket_or_names_the_timeout(
    bucket: BucketServer, fleet: Fleet, watch: tuple[Watcher, list[Any]]
) -> None:
    watching, _ = watch
    name = put(bucket, 5)
    hosts = HostPool(fleet)
    try:
        assert names(take_snapshot(hosts, PATIENCE)) == [name]
    finally:
        hosts.close()
    with bucket.lock:
        watching.start()
        seen(watching, run_of)
        watching.mark_unanswered("no answer within 15 s")
        run = run_of(watching.snapshot())
    assert run is not None
    assert (run.checkpoints_listed, run.problem) == (
        True,
        f"its checkpoints in {URL} are unknown: no answer within 15 s",
    )


@pytest.mark.usefixtures("fleet")
def test_status_and_checkpoints_flags_list_the_bucket(
    bucket: BucketServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = put(bucket, 5)
    file = tmp_path / "fleet.yaml"
    file.write_text(f"hosts:\n  here: {{type: local, root: {tmp_path}}}\n")
    assert main(["--fleet", str(file), "--status", "--json"]) == Exit.DONE
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (run,) = [line for line in lines if line["event"] == "run"]
    assert run["store"] == URL
    assert [checkpoint["name"] for checkpoint in run["checkpoints"]] == [name]
    bucket.faults.append(Fault("GET", "checkpoints", 403, times=1000, message="storage.objects.list is denied"))
    assert main(["--fleet", str(file), "--checkpoints", "run"]) == Exit.FAILED
    assert "storage.objects.list is denied" in capsys.readouterr().err


def test_fleet_actions_verify_and_compare_bucket_checkpoints(bucket: BucketServer, fleet: Fleet) -> None:
    first, second = put(bucket, 5), put(bucket, 9)
    hosts = HostPool(fleet)
    try:
        run = run_of(take_snapshot(hosts, PATIENCE))
        assert run is not None
        actions = Actions(fleet, hosts)
        assert actions.verify(run, first) == []
        assert actions.compare(run, first, second) == ["all arrays are equal; the training state in train.json differs"]
        bucket.put("runs", f"{PREFIX}/checkpoints/{first}/{records.TRAIN}", b"flipped")
        (problem,) = actions.verify(run, first)
        assert problem.startswith(records.TRAIN)
    finally:
        hosts.close()
