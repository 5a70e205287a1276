"""Where a side of a move keeps its checkpoints: the same answers from a disk and from a bucket."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet, LocalHost
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts.host_pool import Hosts
from midstream.hosts.local_host import LocalMachine
from midstream.migrate.checkpoint_store import (
    BucketStore,
    DirectoryStore,
    checkpoint_store_of,
    in_the_way,
    same_bucket,
    way,
)
from midstream.migrate.execution import migration_directory
from midstream.migrate.execution.journal import Journal
from midstream.migrate.execution.migration import Migration
from midstream.migrate.model import Request
from midstream.migrate.phases.seal import seal
from midstream.migrate.phases.streamed_copy import Streamed
from midstream.migrate.planning.plan import make_plan
from midstream.stores.bucket_access import Access
from midstream.transfer import copy_tree
from midstream.watch.watcher import Watch, look_once
from midstream_engine import records
from simulators.bucket import BucketServer
from support.run_directory import RunDirectory, dead_process
from support.trees import write_checkpoint

STORE = "gs://runs/ours"
NAMES = ("step-10-a001", "step-20-a001", "step-30-a001")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """At epoch 2, sealed at step 20: step 30 of epoch 1 is not accepted any more."""
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
def host(run: RunDirectory) -> LocalMachine:
    return LocalMachine("here", LocalHost(root=run.paths.root))


def described(host: LocalMachine) -> dict:
    return host.call("runs.run_state.describe", root=host.root, run_id="r")


def test_a_bucket_tells_of_a_run_what_a_disk_tells(bucket: BucketServer, run: RunDirectory, host: LocalMachine) -> None:
    disk, stored = DirectoryStore(host, "r"), BucketStore(host, "r", STORE, Access())
    for name in NAMES:
        copy_tree(disk.endpoint(name), stored.endpoint(name))
    assert stored.points(described(host)) == disk.points(described(host))
    assert [point["name"] for point in disk.points(described(host)) if point["accepted"]] == list(NAMES[:2])
    assert stored.newest_state() == disk.newest_state()
    for name in NAMES:
        assert stored.manifest(name) == disk.manifest(name)
        assert stored.data_digests(name) == disk.data_digests(name)
        assert stored.verify(name) == disk.verify(name)
    assert not stored.has("step-40-a001")
    with pytest.raises(MidstreamError, match="no complete checkpoint"):
        stored.manifest("step-40-a001")

    for shelf in (disk, stored):
        point = shelf.pin_newest("m", time.time() + 60)
        assert point is not None
        assert point["name"] == NAMES[1]
        assert [each["name"] for each in shelf.points(described(host)) if each["pinned"]] == [NAMES[1]]
        shelf.pin("m", NAMES[0], time.time() + 60)
        assert [each["name"] for each in shelf.points(described(host)) if each["pinned"]] == [NAMES[0]]
        assert shelf.pin_newest("m", time.time() + 60, "step-40-a001") is None
        shelf.unpin("m")
        shelf.unpin("m")
        assert not [each for each in shelf.points(described(host)) if each["pinned"]]


def test_a_fence_in_the_bucket_that_is_newer_counts(
    bucket: BucketServer, run: RunDirectory, host: LocalMachine
) -> None:
    stored = BucketStore(host, "r", STORE, Access())
    for name in NAMES:
        copy_tree(DirectoryStore(host, "r").endpoint(name), stored.endpoint(name))
    newer = records.Fence(3, "elsewhere", 10, [records.Seal(1, 10).to_json(), records.Seal(2, 10).to_json()])
    stored._run()._bucket.put("fence.json", records.canonical_json(newer.to_json()))
    assert [point["name"] for point in stored.points(described(host)) if point["accepted"]] == [NAMES[0]]
    why, hint = in_the_way(host, "other", BucketStore(host, "other", STORE, Access()), 1)
    assert (why, hint) == ("", "")
    why, hint = in_the_way(LocalMachine("new", LocalHost(root=f"{host.root}/new")), "r", stored, 2)
    assert "has a run r of its own: held by elsewhere under epoch 3" in why


def test_damage_in_a_bucket_is_found(bucket: BucketServer, run: RunDirectory, host: LocalMachine) -> None:
    stored = BucketStore(host, "r", STORE, Access())
    copy_tree(DirectoryStore(host, "r").endpoint(NAMES[0]), stored.endpoint(NAMES[0]))
    entry = stored.manifest(NAMES[0]).object_entries[0]
    bucket.put("runs", f"ours/runs/r/checkpoints/{NAMES[0]}/{entry.path}", b"x" * entry.size)
    report = stored.verify(NAMES[0])
    assert not report.ok
    assert report.problems[0][0] == entry.path


def test_what_stands_in_the_way_of_a_store_is_named(
    bucket: BucketServer, run: RunDirectory, host: LocalMachine
) -> None:
    fleet = Fleet()
    disk, stored = checkpoint_store_of(fleet, host, "r", ""), checkpoint_store_of(fleet, host, "r", STORE)
    assert in_the_way(host, "r", disk, 1) == ("", "")
    why, hint = in_the_way(host, "r", stored, 1)
    assert why.startswith("r was on here before, with its checkpoints in /")
    assert "take store: out for here" in hint
    records.Store("gs://other").write(run.paths.store_file)
    for shelf, wanted in ((disk, "its own disk"), (stored, STORE)):
        assert f"in gs://other, and would have them on {wanted} now" in in_the_way(host, "r", shelf, 1)[0]
    records.Store(STORE).write(run.paths.store_file)
    assert in_the_way(host, "r", stored, 1) == ("", "")
    nowhere = checkpoint_store_of(fleet, host, "r", "gs://no-such-bucket")
    records.Store("gs://no-such-bucket").write(run.paths.store_file)
    assert in_the_way(host, "r", nowhere, 1)[0] == "there is no bucket no-such-bucket"


def test_the_way_of_a_move_is_told(host: LocalMachine) -> None:
    there = LocalMachine("there", LocalHost(root="/nowhere"))
    disk, stored = DirectoryStore(host, "r"), BucketStore(there, "r", STORE, Access())
    assert way(disk, stored, host, there) == "here -> this machine -> gs://runs over HTTPS"
    assert way(stored, disk, there, host) == "gs://runs -> this machine -> here over HTTPS"
    assert same_bucket(stored, BucketStore(host, "r", STORE, Access()))
    assert way(stored, stored, there, host) == f"none: both sides read {STORE}"


def test_what_a_lost_machine_left_in_its_bucket_is_what_moves(
    bucket: BucketServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path / "state"))
    run = RunDirectory(tmp_path / "gpu", "r")
    Path(run.paths.config).write_text("trainer: {train_batch_size: 8, num_train_steps: 100}\n")
    run.status(1, records.STOPPED, 20, dead_process())
    run.checkpoint(20)
    run.fence(2, "cloud", 20, [records.Seal(1, 20).to_json()])
    there = RunDirectory(tmp_path / "lost", "r")  # as the machine that is lost had it, but for its bucket
    saved = there.checkpoint(40, attempt=2, epoch=2)
    Path(there.paths.checkpoint(saved), records.TRAIN).write_text('{"state": {"data_digest": ""}}')
    for path in Path(there.paths.checkpoint(saved)).iterdir():
        bucket.put("runs", f"ours/runs/r/checkpoints/{saved}/{path.name}", path.read_bytes())
    fleet = parse_fleet(
        f"hosts:\n  gpu: {{type: local, root: {tmp_path}/gpu, devices: 1}}\n"
        f"  cloud: {{type: local, root: {tmp_path}/cloud, devices: 1, store: {STORE}}}\n"
        f"  other: {{type: local, root: {tmp_path}/other, devices: 1, store: {STORE}}}\n"
    )
    hosts = Hosts(fleet)
    seen = look_once(fleet, hosts)
    with pytest.raises(MidstreamError, match=f"handed to cloud .*--source-lost goes on from what it left in {STORE}"):
        make_plan(fleet, hosts, seen, Request("r", "other", mode="cold"))
    plan = make_plan(fleet, hosts, seen, Request("r", "other", mode="cold", source_lost=True))
    assert (plan.source, plan.source_store, plan.target_store, plan.checkpoint) == ("gpu", STORE, STORE, saved)
    assert plan.target_flags[-2:] == ("--trainer.checkpointer.base_path", STORE)
    assert plan.route == f"none: both sides read {STORE}"
    back = make_plan(fleet, hosts, seen, Request("r", "gpu", mode="cold", source_lost=True))
    assert (back.source, back.target, back.source_store, back.target_store) == ("gpu", "gpu", STORE, "")
    with pytest.raises(MidstreamError, match=f"--mode cold brings what lies in {STORE} there"):
        make_plan(fleet, hosts, seen, Request("r", "gpu", source_lost=True))

    place = migration_directory.create(plan, fleet.text)
    move = Migration(plan, place, Journal(place.journal_file), fleet, hosts, Watch(fleet, hosts))
    sealed = seal(move, Streamed())
    assert (sealed["checkpoint"], sealed["step"], sealed["attempt"]) == (saved, 40, 2)
    fence = records.Fence.read(run.paths.fence)
    assert (fence.epoch, fence.owner, fence.sealed_step) == (3, "other", 40)
    assert fence.accepts(2, 40)
    assert not fence.accepts(2, 41), "should the lost machine come back, what it does is in no lineage"
    hosts.close()
