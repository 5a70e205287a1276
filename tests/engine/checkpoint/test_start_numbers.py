"""Start numbers: of two starts of one epoch only the newer one commits and removes checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream_core.attempt import start_number
from midstream_core.attempt.save_fence import FenceRejectedError, check, seal
from midstream_core.records import Fence, RunPaths, first_fence, read_json, write_json
from midstream_engine.checkpoint.loading.checkpoint_list import list_checkpoints, newest_complete
from midstream_engine.checkpoint.saving.retention import Retention
from midstream_engine.checkpoint.saving.save import begin_save
from midstream_engine.checkpoint.saving.snapshot import Copy
from midstream_engine.config.keep_policy import KeepPolicy
from support.checkpoints.checkpoint_states import save

POLICY = KeepPolicy(save_interval=1.0, keep=())
DOCUMENT = {"state": {}}
SMALL = {"x": np.zeros(3, np.float32)}
OTHER = {"x": np.ones(3, np.float32)}


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(str(tmp_path), "run")
    os.makedirs(paths.checkpoints)
    first_fence("a").write(paths.fence)
    return paths


def take(paths: RunPaths, epoch: int = 1) -> Fence:
    taken = start_number.take(paths, epoch, lambda fence: newest_complete(paths, fence))
    assert taken is not None
    return taken


def names(paths: RunPaths) -> list[str]:
    return [found.name for found in list_checkpoints(paths)]


def test_superseded_start_commits_nothing_and_removes_nothing(paths: RunPaths) -> None:
    assert take(paths).order == (1, 1)
    save(paths, SMALL, step=5, start=1)
    late = begin_save(paths, SMALL, DOCUMENT, step=8, attempt=1, epoch=1, start=1, copy=Copy.NONE)
    assert take(paths).order == (1, 2)
    save(paths, OTHER, step=8, start=2)  # the name that the late save has, too
    with pytest.raises(FenceRejectedError, match="a later start has replaced start 1"):
        begin_save(paths, SMALL, DOCUMENT, step=9, attempt=1, epoch=1, start=1, copy=Copy.NONE)
    assert Retention(POLICY, 0.0).prune(paths, own=(1, 1)) == []
    assert names(paths) == ["step-5-a001", "step-8-a001"]
    with pytest.raises(Exception, match="never overwritten"):
        late.finish()
    with pytest.raises(FenceRejectedError, match="cannot seal"):
        seal(paths, epoch=2, owner="b", step=9, start=1)
    assert Retention(POLICY, 0.0).prune(paths, own=(1, 2)) == ["step-5-a001"]


def test_rejected_save_leaves_the_directory_of_the_newer_start(paths: RunPaths) -> None:
    take(paths)
    late = begin_save(paths, SMALL, DOCUMENT, step=8, attempt=1, epoch=1, start=1, copy=Copy.NONE)
    take(paths)
    with pytest.raises(FenceRejectedError):
        late.finish()
    assert os.path.isdir(paths.checkpoint("step-8-a001")), "the newer start may be writing there"
    assert newest_complete(paths, Fence.read(paths.fence)) is None


def test_run_without_start_numbers_continues(paths: RunPaths) -> None:
    save(paths, SMALL, step=5)
    for path in (paths.fence, os.path.join(paths.checkpoint("step-5-a001"), "manifest.json")):
        value = read_json(path)
        write_json(path, {key: value[key] for key in value if key not in ("start", "starts")})  # as written before
    assert newest_complete(paths, Fence.read(paths.fence)) == "step-5-a001"
    check(paths, 1, 6)
    fence = take(paths)
    assert fence.accepts(1, 5)
    assert not fence.accepts(1, 6), "the version without start numbers is closed at its newest checkpoint"
    assert newest_complete(paths, fence) == "step-5-a001"


ACTIONS = st.lists(st.tuples(st.sampled_from(["start", "commit", "late", "seal", "back"]), st.integers(0, 9)))


@given(ACTIONS)
def test_accepted_checkpoints_form_one_lineage(actions: list[tuple[str, int]]) -> None:
    """A checkpoint's lineage is what its start continued from, and so on: accepted ones are one chain.

    ``late``: a superseded writer's manifest arrives between another's check and its write, as in a bucket.
    """
    fence = first_fence("a")
    origins: dict[tuple[int, int], tuple[int, int, int] | None] = {}  # of each start: the checkpoint it continued from
    committed: list[tuple[int, int, int]] = []  # epoch, start, step
    steps: dict[tuple[int, int], int] = {}

    def newest(fence: Fence) -> tuple[int, int, int] | None:
        found = [each for each in committed if fence.accepts(each[0], each[2], each[1])]
        return max(found, key=lambda each: each[2], default=None)

    def begin() -> None:
        nonlocal fence
        found = newest(fence)
        fence = fence.started(found[2] if found else fence.sealed_step)
        origins[fence.order] = found
        steps[fence.order] = found[2] if found else 0

    begin()
    for action, number in actions:
        if action == "start":
            begin()
        elif action in ("commit", "late"):
            writer = fence.order if action == "commit" else sorted(origins)[number % len(origins)]
            steps[writer] += 1 + number
            committed.append((*writer, steps[writer]))
        elif action == "seal":
            found = newest(fence)
            if found is not None:
                fence = fence.sealed(fence.epoch + 1, "b", found[2])
                begin()
        elif fence.sealed_step is not None and fence.seals and not fence.seals[-1].get("alone"):
            fence = fence.rolled_back("a", fence.sealed_step)
            begin()
    accepted = sorted(
        (each for each in committed if fence.accepts(each[0], each[2], each[1])), key=lambda each: each[2]
    )
    chain, at = set[tuple[int, int, int]](), newest(fence)
    while at is not None:
        epoch, start, step = at
        chain |= {each for each in committed if each[:2] == (epoch, start) and each[2] <= step}
        at = origins[epoch, start]
    assert set(accepted) <= chain, (accepted, fence)
