"""Two starts of one attempt save the same step to a bucket; the older one's manifest arrives late."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from midstream_core.attempt import start_number
from midstream_core.attempt.errors import CheckpointError
from midstream_core.attempt.save_fence import SupersededError
from midstream_core.records import MANIFEST, Fence, Manifest, RunPaths, first_fence
from midstream_engine.attempt import resume
from midstream_engine.checkpoint.loading.checkpoint_list import list_checkpoints, newest_complete
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.checkpoint.saving import commit, retention
from midstream_engine.checkpoint.saving.retention import Retention
from midstream_engine.checkpoint.saving.save import begin_save
from midstream_engine.checkpoint.saving.snapshot import Copy
from midstream_engine.checkpoint.stores import bucket_fence
from midstream_engine.config.keep_policy import KeepPolicy
from simulators.object_stores.bucket import BucketServer
from support.checkpoints.checkpoint_states import plain_state, save

STORE = "gs://runs/lab"
CHECKPOINTS = "lab/runs/run/checkpoints/"
POLICY = KeepPolicy(save_interval=1.0, keep=())


@pytest.fixture
def hosts(tmp_path: Path, bucket: BucketServer) -> tuple[RunPaths, RunPaths]:
    """Create two hosts of one run: a job is started again on the second, under the same attempt."""
    del bucket
    found = tuple(RunPaths(str(tmp_path / name), "run", STORE) for name in ("old", "new"))
    for paths in found:
        os.makedirs(paths.dir)
        first_fence("lab").write(paths.fence)
    return found[0], found[1]


def take(paths: RunPaths) -> Fence:
    taken = start_number.take(paths, 1, lambda fence: newest_complete(paths, fence), bucket=bucket_fence)
    assert taken is not None
    return taken


def late_commit(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Have something happen between the next commit's look at the fence and its manifest."""
    real = bucket_fence.check_fence
    pending = [happens]

    def check(*arguments: Any) -> None:
        real(*arguments)
        if pending:
            pending.pop()()

    monkeypatch.setattr(commit.bucket_fence, "check_fence", check)


@pytest.mark.parametrize("same_state", [True, False])
@pytest.mark.parametrize("newer_first", [True, False])
def test_late_manifest_of_an_older_start_changes_nothing(
    hosts: tuple[RunPaths, RunPaths],
    bucket: BucketServer,
    monkeypatch: pytest.MonkeyPatch,
    newer_first: bool,
    same_state: bool,
) -> None:
    old, new = hosts
    assert take(old).order == (1, 1)
    save(old, plain_state(), step=5, start=1)
    state, other = plain_state(), plain_state() if same_state else plain_state(seed=1)

    def start() -> None:
        assert take(new).order == (1, 2)

    def start_and_save() -> None:
        start()
        save(new, other, step=8, start=2)

    late_commit(monkeypatch, start_and_save if newer_first else start)
    save(old, state, step=8, start=1)  # its look at the fence came before the newer start
    if not newer_first:
        assert newest_complete(new, Fence.read(new.fence)) == "step-5-a001"
        save(new, other, step=8, start=2)
    fence = bucket_fence.newest_fence(new, Fence.read(new.fence))
    assert newest_complete(new, fence) == "step-8-a001-s2"
    assert verify_checkpoint(new.checkpoint("step-8-a001-s2")).sound
    assert [found.name for found in list_checkpoints(new)] == ["step-5-a001", "step-8-a001", "step-8-a001-s2"]
    with pytest.raises(SupersededError):
        save(old, state, step=9, start=1)
    for name in list(bucket.blobs("runs", "lab/runs/run/pins/")):
        bucket.delete("runs", name, {})  # of the checkpoint that the newer start continues from
    assert Retention(POLICY, 0.0).prune(old, own=(1, 1)) == []
    assert Retention(POLICY, 0.0).prune(new, own=(1, 2)) == ["step-5-a001"]
    assert [found.name for found in list_checkpoints(new) if found.complete] == ["step-8-a001", "step-8-a001-s2"], (
        "nothing removes a checkpoint of another start"
    )
    run = bucket_fence.run_prefix(new)
    assert resume._resolve(run, "trainer.initialize_from") == new.checkpoint("step-8-a001-s2")


def test_resolved_checkpoint_is_one_that_the_fence_accepts(
    hosts: tuple[RunPaths, RunPaths], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = hosts
    take(old)
    save(old, plain_state(), step=5, start=1)
    late_commit(monkeypatch, lambda: take(new))
    save(old, plain_state(), step=8, start=1)
    found = resume._resolve(bucket_fence.run_prefix(new), "trainer.load_checkpoint_path")
    assert found == new.checkpoint("step-5-a001")


def test_partial_save_of_an_older_start_blocks_no_newer_one(hosts: tuple[RunPaths, RunPaths]) -> None:
    old, new = hosts
    take(old)
    late = begin_save(
        old, plain_state(), {"state": {"host": "old"}}, step=8, attempt=1, epoch=1, start=1, copy=Copy.NONE
    )
    take(new)
    with pytest.raises((CheckpointError, SupersededError)):
        late.finish()  # its objects are in the bucket
    assert save(new, plain_state(seed=1), step=8, start=2).name == "step-8-a001-s2"


def test_start_continues_from_no_removed_checkpoint(hosts: tuple[RunPaths, RunPaths]) -> None:
    """The older start saves and removes between the newer one's look and its fence."""
    old, new = hosts
    take(old)
    save(old, plain_state(), step=5, start=1)
    looks: list[str | None] = []

    def newest(fence: Fence) -> str | None:
        looks.append(newest_complete(new, fence))
        if len(looks) == 1:
            save(old, plain_state(seed=1), step=8, start=1)
            assert Retention(POLICY, 0.0).prune(old, own=(1, 1)) == ["step-5-a001"]
        return looks[-1]

    taken = start_number.take(new, 1, newest, bucket=bucket_fence)
    assert looks == ["step-5-a001", "step-8-a001"]
    assert taken is not None
    assert newest_complete(new, taken) == "step-8-a001", "an acknowledged step of the older start is not lost"


def test_late_removal_leaves_what_a_start_continues(
    hosts: tuple[RunPaths, RunPaths], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older start has looked at the fence, and removes after the newer one has its number."""
    old, new = hosts
    take(old)
    save(old, plain_state(), step=5, start=1)
    late = retention.to_delete

    def late_removal(*arguments: Any) -> list[str]:
        names = late(*arguments)
        take(new)
        return [*names, "step-5-a001"]

    monkeypatch.setattr(retention, "to_delete", late_removal)
    Retention(POLICY, 0.0).prune(old, own=(1, 1))
    fence = bucket_fence.newest_fence(new, Fence.read(new.fence))
    assert fence is not None
    assert fence.order == (1, 2)
    assert newest_complete(new, fence) == "step-5-a001"


def test_names_of_an_earlier_version_stay_valid(hosts: tuple[RunPaths, RunPaths], bucket: BucketServer) -> None:
    """A version without numbered names wrote every start under the attempt's name."""
    old, _ = hosts
    take(old)
    take(old)
    saved = save(old, plain_state(), step=8, start=2)
    prefix = f"{CHECKPOINTS}{saved.name}/"
    value = {key: each for key, each in saved.to_json().items() if key != "numbered"}
    for name, blob in list(bucket.blobs("runs", prefix).items()):
        plain = name.replace(saved.name, "step-8-a001")
        bucket.put("runs", plain, json.dumps(value).encode() if name.endswith(MANIFEST) else blob.data)
        bucket.delete("runs", name, {})
    assert newest_complete(old, Fence.read(old.fence)) == "step-8-a001"
    assert verify_checkpoint(old.checkpoint("step-8-a001")).sound
    assert Manifest.from_json(value) == dataclasses.replace(saved, numbered=False)
    assert save(old, plain_state(), step=9, start=2).name == "step-9-a001-s2"
    assert newest_complete(old, Fence.read(old.fence)) == "step-9-a001-s2"
