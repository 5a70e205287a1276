"""Checkpoint stores of a migration: a directory and a bucket are equivalent."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet, LocalHostConfig
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts.host_pool import HostPool
from midstream.hosts.local_host import LocalHost
from midstream.migrate.checkpoint_store import (
    BucketStore,
    DirectoryStore,
    checkpoint_store_of,
    copy_route,
    same_bucket,
    store_conflict,
)
from midstream.migrate.journal import migration_directory
from midstream.migrate.journal.journal import Journal
from midstream.migrate.journal.request import Request
from midstream.migrate.phases.seal import seal
from midstream.migrate.planning.planner import make_plan
from midstream.migrate.steps.migration import Migration
from midstream.migrate.steps.streamed_copy import StreamedCopy
from midstream.stores.bucket_access import Access
from midstream.transfer.copy_tree import copy_tree
from midstream.watch.watcher import Watcher, take_snapshot
from midstream_core import records
from midstream_host.runs import run_state
from simulators.object_stores.bucket import BucketServer
from support.checkpoints.trees import write_checkpoint
from support.run_directory import RunDirectory, dead_process

STORE = "gs://runs/ours"
NAMES = ("step-10-a001", "step-20-a001", "step-30-a001")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Create a run at ownership 2, sealed at step 20; step 30 is not accepted."""
    found = RunDirectory(tmp_path / "root", "r")
    for name in NAMES:
        directory = Path(found.paths.checkpoint(name))
        write_checkpoint(directory, random.Random(name), size=9_000)
        manifest = records.Manifest.read(str(directory / records.MANIFEST))
        step = (records.parse_checkpoint_name(name) or (0, 0))[0]
        replace(manifest, run_id="r", step=step).write(str(directory / records.MANIFEST))
    found.fence(2, "there", 20, [records.Seal(1, 20).to_json()])
    return found


@pytest.fixture
def host(run: RunDirectory) -> LocalHost:
    return LocalHost("here", LocalHostConfig(root=run.paths.root))


def described(host: LocalHost) -> run_state.RunDescription:
    return host.call(run_state.describe)(root=host.root, run_id="r")


@pytest.mark.usefixtures("bucket", "run")
def test_bucket_store_equals_directory_store(host: LocalHost) -> None:
    disk, stored = DirectoryStore(host, "r"), BucketStore(host, "r", STORE, Access())
    for name in NAMES:
        copy_tree(disk.endpoint(name), stored.endpoint(name))
    assert stored.checkpoints(described(host)) == disk.checkpoints(described(host))
    assert [checkpoint.name for checkpoint in disk.checkpoints(described(host)) if checkpoint.accepted] == list(
        NAMES[:2]
    )
    assert stored.newest_state() == disk.newest_state()
    for name in NAMES:
        assert stored.manifest(name) == disk.manifest(name)
        assert stored.data_digests(name) == disk.data_digests(name)
        assert stored.verify(name) == disk.verify(name)
    assert not stored.has("step-40-a001")
    with pytest.raises(MidstreamError, match="no complete checkpoint"):
        stored.manifest("step-40-a001")

    for store in (disk, stored):
        checkpoint = store.pin_newest("m", time.time() + 60)
        assert checkpoint is not None
        assert checkpoint.name == NAMES[1]
        assert [each.name for each in store.checkpoints(described(host)) if each.pinned] == [NAMES[1]]
        store.pin("m", NAMES[0], time.time() + 60)
        assert [each.name for each in store.checkpoints(described(host)) if each.pinned] == [NAMES[0]]
        assert store.pin_newest("m", time.time() + 60, "step-40-a001") is None
        store.unpin("m")
        store.unpin("m")
        assert not [each for each in store.checkpoints(described(host)) if each.pinned]


@pytest.mark.usefixtures("bucket", "run")
def test_newer_fence_in_bucket_counts(host: LocalHost) -> None:
    stored = BucketStore(host, "r", STORE, Access())
    for name in NAMES:
        copy_tree(DirectoryStore(host, "r").endpoint(name), stored.endpoint(name))
    newer = records.Fence(3, "elsewhere", 10, [records.Seal(1, 10).to_json(), records.Seal(2, 10).to_json()])
    stored._run()._bucket.put("fence.json", records.canonical_json(newer.to_json()))
    assert [checkpoint.name for checkpoint in stored.checkpoints(described(host)) if checkpoint.accepted] == [NAMES[0]]
    problem, hint = store_conflict(host, "other", BucketStore(host, "other", STORE, Access()), 1)
    assert (problem, hint) == ("", "")
    problem, hint = store_conflict(LocalHost("new", LocalHostConfig(root=f"{host.root}/new")), "r", stored, 2)
    assert "has another run r: owned by elsewhere under ownership 3" in problem


@pytest.mark.usefixtures("run")
def test_damage_in_bucket_is_found(bucket: BucketServer, host: LocalHost) -> None:
    stored = BucketStore(host, "r", STORE, Access())
    copy_tree(DirectoryStore(host, "r").endpoint(NAMES[0]), stored.endpoint(NAMES[0]))
    entry = stored.manifest(NAMES[0]).object_entries[0]
    bucket.put("runs", f"ours/runs/r/checkpoints/{NAMES[0]}/{entry.path}", b"x" * entry.size)
    report = stored.verify(NAMES[0])
    assert not report.ok
    assert report.problems[0][0] == entry.path


@pytest.mark.usefixtures("bucket")
def test_conflicting_store_of_run_is_named(run: RunDirectory, host: LocalHost) -> None:
    fleet = Fleet()
    disk, stored = checkpoint_store_of(fleet, host, "r", ""), checkpoint_store_of(fleet, host, "r", STORE)
    assert store_conflict(host, "r", disk, 1) == ("", "")
    problem, hint = store_conflict(host, "r", stored, 1)
    assert problem.startswith("r was on here before, with its checkpoints in /")
    assert "remove store: of here" in hint
    records.Store("gs://other").write(run.paths.store_file)
    for store, expected in ((disk, "its own disk"), (stored, STORE)):
        assert f"in gs://other, and would have them on {expected} now" in store_conflict(host, "r", store, 1)[0]
    records.Store(STORE).write(run.paths.store_file)
    assert store_conflict(host, "r", stored, 1) == ("", "")
    nowhere = checkpoint_store_of(fleet, host, "r", "gs://no-such-bucket")
    records.Store("gs://no-such-bucket").write(run.paths.store_file)
    assert store_conflict(host, "r", nowhere, 1)[0] == "there is no bucket no-such-bucket"


def test_route_of_checkpoint_is_described(host: LocalHost) -> None:
    there = LocalHost("there", LocalHostConfig(root="/nowhere"))
    disk, stored = DirectoryStore(host, "r"), BucketStore(there, "r", STORE, Access())
    assert copy_route(disk, stored, host, there) == "here -> this machine -> gs://runs over HTTPS"
    assert copy_route(stored, disk, there, host) == "gs://runs -> this machine -> here over HTTPS"
    assert same_bucket(stored, BucketStore(host, "r", STORE, Access()))
    assert copy_route(stored, stored, there, host) == f"none: source and target read {STORE}"


def test_plan_uses_bucket_checkpoint_of_lost_source(
    bucket: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))
    run = RunDirectory(tmp_path / "gpu", "r")
    Path(run.paths.config).write_text("trainer: {train_batch_size: 8, num_train_steps: 100}\n")
    run.status(1, records.STOPPED, 20, dead_process())
    run.checkpoint(20)
    run.fence(2, "cloud", 20, [records.Seal(1, 20).to_json()])
    there = RunDirectory(tmp_path / "lost", "r")  # as on the lost machine, without its bucket
    saved = there.checkpoint(40, attempt=2, epoch=2)
    Path(there.paths.checkpoint(saved), records.TRAIN).write_text('{"state": {"data_digest": ""}}')
    for path in Path(there.paths.checkpoint(saved)).iterdir():
        bucket.put("runs", f"ours/runs/r/checkpoints/{saved}/{path.name}", path.read_bytes())
    fleet = parse_fleet(
        f"hosts:\n  gpu: {{type: local, root: {tmp_path}/gpu, devices: 1}}\n"
        f"  cloud: {{type: local, root: {tmp_path}/cloud, devices: 1, store: {STORE}}}\n"
        f"  other: {{type: local, root: {tmp_path}/other, devices: 1, store: {STORE}}}\n"
    )
    hosts = HostPool(fleet)
    snapshot = take_snapshot(hosts)
    with pytest.raises(
        MidstreamError, match=f"handed to cloud .*--source-lost continues from its checkpoints in {STORE}"
    ):
        make_plan(hosts, snapshot, Request("r", "other", mode="cold"))
    plan = make_plan(hosts, snapshot, Request("r", "other", mode="cold", source_lost=True))
    assert (plan.source, plan.route.source_store, plan.route.target_store, plan.checkpoint) == (
        "gpu",
        STORE,
        STORE,
        saved,
    )
    assert plan.target_flags[-2:] == ("--trainer.checkpointer.base_path", STORE)
    assert plan.route.probed == f"none: source and target read {STORE}"
    back = make_plan(hosts, snapshot, Request("r", "gpu", mode="cold", source_lost=True))
    assert (back.source, back.target, back.route.source_store, back.route.target_store) == ("gpu", "gpu", STORE, "")
    with pytest.raises(MidstreamError, match=f"--mode cold copies the checkpoints from {STORE}"):
        make_plan(hosts, snapshot, Request("r", "gpu", source_lost=True))

    directory = migration_directory.create(plan, fleet.text)
    migration = Migration(plan, directory, Journal(directory.journal_file), fleet, hosts, Watcher(fleet, hosts))
    sealed = seal(migration, StreamedCopy())
    assert (sealed.checkpoint, sealed.step, sealed.attempt) == (saved, 40, 2)
    fence = records.Fence.read(run.paths.fence)
    assert (fence.epoch, fence.owner, fence.sealed_step) == (3, "other", 40)
    assert fence.accepts(2, 40)
    assert not fence.accepts(2, 41), "steps of the lost machine are in no lineage"
    hosts.close()
