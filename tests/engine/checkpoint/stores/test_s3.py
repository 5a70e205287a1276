"""Checkpoints, text and compile caches in S3: the same bytes and rules as on a disk and in Google's buckets."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from midstream_core.attempt.errors import CheckpointError
from midstream_core.attempt.save_fence import FenceRejectedError
from midstream_core.object_store import retries
from midstream_core.records import MANIFEST, Fence, Manifest, Pin, RunPaths
from midstream_engine.checkpoint.errors import CheckpointCorruptError
from midstream_engine.checkpoint.loading.checkpoint_list import list_checkpoints
from midstream_engine.checkpoint.loading.restore import restore_checkpoint
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.checkpoint.saving import save as saving
from midstream_engine.checkpoint.saving.commit import manifest_text
from midstream_engine.checkpoint.saving.retention import Retention
from midstream_engine.checkpoint.stores.bucket_objects import BucketObjects
from midstream_engine.config.keep_policy import KeepEvery, KeepPolicy
from midstream_engine.data.sources import bucket as sources
from midstream_engine.data.sources.formats import open_source
from midstream_engine.runtime.program_files import ProgramBucket, ProgramFiles
from simulators.object_stores.s3_server import IGNORED, REFUSED, S3Server
from simulators.planted_faults import Fault
from support.checkpoints.checkpoint_states import plain_state, save
from support.command_line import midstream

URL = "s3://my-bucket/bucket/lab"  # names that contain the word "bucket"
CHECKPOINTS = "bucket/lab/runs/run/checkpoints/"


@pytest.fixture
def server(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.01)
    s3.create("my-bucket")
    return s3


@pytest.fixture
def paths(tmp_path: Path, server: S3Server) -> RunPaths:
    os.makedirs(tmp_path / "root/runs/run")
    return RunPaths(str(tmp_path / "root"), "run", URL)


def names(paths: RunPaths) -> list[str]:
    return [found.name for found in list_checkpoints(paths) if found.complete]


def device() -> SingleDeviceSharding:
    return SingleDeviceSharding(jax.devices()[0])


def test_s3_has_the_same_bytes_as_directory_and_restores(paths: RunPaths, server: S3Server) -> None:
    server.faults += [Fault("PUT", "wide", 503), Fault("PUT", "half", "close"), Fault("PUT", "manifest", 429)]
    there, local = save(paths, plain_state()), RunPaths(paths.root, "run")
    here = save(local, plain_state())
    prefix = f"{CHECKPOINTS}{there.name}/"
    stored = {name.removeprefix(prefix): blob.data for name, blob in server.blobs("my-bucket", prefix).items()}
    for entry in here.object_entries:
        assert stored[entry.path] == Path(local.checkpoint(here.name), entry.path).read_bytes(), entry.path
    assert stored.keys() == {entry.path for entry in here.object_entries} | {MANIFEST}
    server.faults += [Fault("GET", "wide", "truncate"), Fault("GET", "half", 503), Fault("GET", "small", "garble")]
    restored = restore_checkpoint(paths.checkpoint(there.name), plain_state(), device())
    assert restored.root_digest == here.root_digest
    for found, wanted in zip(jax.tree.leaves(restored.tree), jax.tree.leaves(plain_state()), strict=True):
        assert np.asarray(found).tobytes() == np.asarray(wanted).tobytes()
    assert [fault for fault in server.faults if fault.times] == []


def test_verify_decodes_arrays_in_s3(paths: RunPaths, server: S3Server) -> None:
    saved = save(paths, plain_state())
    url = paths.checkpoint(saved.name)
    server.faults += [Fault("GET", "/arrays/", 503), Fault("GET", "/arrays/", "truncate")]
    found = midstream("--verify", url, "--deep", "--json")
    assert found.code == 0, found.stderr
    assert (found.result["checkpoint"], found.result["root_digest"]) == (url, saved.root_digest)
    assert {event["name"] for event in found.events if event["event"] == "array"} == {
        each["name"] for each in saved.arrays
    }
    assert [fault for fault in server.faults if fault.times] == []


def test_s3_damage_is_named(paths: RunPaths, server: S3Server) -> None:
    saved = save(paths, plain_state())
    prefix = f"{CHECKPOINTS}{saved.name}/arrays/model/wide/c/0/"
    blob = server.blobs("my-bucket", prefix)[f"{prefix}1"]
    server.put("my-bucket", blob.name, blob.data[:-9] + b"x" + blob.data[-8:])
    server.delete("my-bucket", f"{prefix}0", {})
    flaws = verify_checkpoint(paths.checkpoint(saved.name)).flaws
    assert any("c/0/0: missing" in flaw for flaw in flaws)
    assert any("c/0/1: SHA-256" in flaw for flaw in flaws)
    with pytest.raises(CheckpointCorruptError, match="object arrays/model/wide/c/0"):
        restore_checkpoint(paths.checkpoint(saved.name), plain_state(), device())


def test_s3_object_that_changed_before_the_commit_is_found(paths: RunPaths, server: S3Server) -> None:
    store = BucketObjects(paths.checkpoint("step-1-a001"))
    store.prepare(0)
    store.write("a", [memoryview(b"what was meant")])
    server.late = 1
    store.sync()
    (name,) = server.blobs("my-bucket", CHECKPOINTS)
    server.put("my-bucket", name, b"what was meanT")
    with pytest.raises(CheckpointCorruptError, match="object a: the bucket has 14 bytes with ETag"):
        store.sync()
    with pytest.raises(CheckpointError, match="object a exists with other content"):
        store.write("a", [memoryview(b"what was meant")])
    server.delete("my-bucket", name, {})
    with pytest.raises(CheckpointError, match="object a is missing: another process removed it"):
        store.sync()


def test_s3_manifest_race_has_exactly_one_winner(paths: RunPaths, server: S3Server) -> None:
    url = paths.checkpoint("step-1-a001")
    barrier, raised = threading.Barrier(4), list[BaseException | None]([None] * 4)

    def commit(number: int) -> None:
        barrier.wait(30)
        try:
            BucketObjects(url).commit(MANIFEST, b"%d" % number)
        except OSError as error:
            raised[number] = error

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    winners = [number for number, error in enumerate(raised) if error is None]
    assert len(winners) == 1
    assert {type(error) for error in raised} == {type(None), FileExistsError}
    assert BucketObjects(url).get(MANIFEST) == b"%d" % winners[0]


def test_s3_fence_and_retention(paths: RunPaths, server: S3Server) -> None:
    Fence(1, "source").write(paths.fence)
    for step in (10, 20, 30):
        save(paths, plain_state(), step=step)
    pin = json.dumps(Pin("step-10-a001", time.time() + 60).to_json()).encode()
    server.put("my-bucket", "bucket/lab/runs/run/pins/m.json", pin)
    keep = Retention(KeepPolicy(900.0, (KeepEvery(30),)), 0.0)
    assert keep.prune(paths) == ["step-20-a001"]
    assert names(paths) == ["step-10-a001", "step-30-a001"]
    newer = json.dumps(Fence(1, "source").sealed(2, "target", 30).to_json()).encode()
    server.put("my-bucket", "bucket/lab/runs/run/fence.json", newer)
    with pytest.raises(FenceRejectedError, match="owned by target under ownership 2, sealed at step 30"):
        save(paths, plain_state(), step=40)
    assert names(paths) == ["step-10-a001", "step-30-a001"]


def test_s3_without_conditions_says_what_is_not_promised(
    paths: RunPaths, server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.writes = REFUSED
    with caplog.at_level(logging.WARNING):
        saved = save(paths, plain_state())
    assert verify_checkpoint(paths.checkpoint(saved.name)).sound
    assert "the service has no conditional writes" in caplog.text
    with pytest.raises(CheckpointError, match="never overwritten"):
        save(paths, plain_state(seed=1))


@pytest.mark.parametrize("writes", [IGNORED, REFUSED])
def test_s3_without_conditions_processes_of_a_host_commit_once(
    paths: RunPaths, server: S3Server, monkeypatch: pytest.MonkeyPatch, writes: str
) -> None:
    """The run's lock on the host keeps them apart: of savers of the same bytes, one writes the manifest."""
    server.writes = writes
    earlier = save(paths, plain_state())
    server.delete("my-bucket", f"{CHECKPOINTS}{earlier.name}/{MANIFEST}", {})
    barrier, committed, refused = threading.Barrier(4), list[Manifest](), list[str]()
    write = saving.write

    def write_and_wait(*arguments: Any) -> Any:
        written = write(*arguments)
        barrier.wait(30)  # each has found no manifest
        return written

    monkeypatch.setattr(saving, "write", write_and_wait)

    def commit(_: int) -> None:
        try:
            committed.append(save(paths, plain_state()))
        except CheckpointError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(committed) == 1, refused
    assert len(refused) == 3
    (stored,) = (blob.data for name, blob in server.blobs("my-bucket", CHECKPOINTS).items() if name.endswith(MANIFEST))
    assert stored == manifest_text(committed[0])
    assert verify_checkpoint(paths.checkpoint(committed[0].name)).sound


@pytest.mark.parametrize(
    ("url", "fault", "said"),
    [
        ("s3://no-such-bucket/lab", None, "there is no bucket no-such-bucket"),
        (URL, Fault("PUT", "arrays", 403, 9, message="not you"), "AccessDenied: not you .*hint: the account needs s3:"),
        (URL, Fault("GET", "list-type", 403, 9), "AccessDenied: planted"),
    ],
)
def test_s3_refusal_is_one_line(paths: RunPaths, server: S3Server, url: str, fault: Fault | None, said: str) -> None:
    server.faults += [fault] if fault else []
    with pytest.raises(CheckpointError, match=said) as caught:
        save(RunPaths(paths.root, "run", url), plain_state())
    assert "\n" not in str(caught.value)
    assert not [name for name in server.blobs("my-bucket", CHECKPOINTS) if name.endswith(MANIFEST)]


def test_s3_text_is_listed_and_read(server: S3Server) -> None:
    for name, text in {"a/one.txt": b"one\ntwo\n", "a/b/two.txt": b"x" * 3_000_000, "a/other.md": b"no"}.items():
        server.put("my-bucket", name, text)
    found = sources.list_objects("s3://my-bucket/a/*.txt")
    assert [(each.path, each.size) for each in found] == [("s3://my-bucket/a/one.txt", 8)]
    deep = sources.list_objects("s3://my-bucket/a/**/*.txt")
    assert [each.name for each in deep] == ["two.txt", "one.txt"]
    with open_source(found[0]) as file:
        assert file.readlines() == [b"one\n", b"two\n"]
    with open_source(deep[0]) as file:
        file.seek(-5, os.SEEK_END)
        assert file.read() == b"xxxxx"


def test_s3_compile_cache_is_shared(server: S3Server, tmp_path: Path) -> None:
    for host in ("one", "two"):
        files = ProgramFiles(str(tmp_path / host), ProgramBucket("s3://my-bucket/cache"))
        assert files.read("step", {}) == (None if host == "one" else b"program")
        files.write("step", {}, b"program")
        assert files.bucket is not None
        files.bucket.close()
