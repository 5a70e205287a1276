"""Keep policy and retention: a function of steps and times; pins block deletion."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream_core.attempt.errors import CheckpointError
from midstream_core.listed_checkpoint import ListedCheckpoint
from midstream_core.records import Fence, Pin, RunPaths, checkpoint_name
from midstream_engine.checkpoint.loading.checkpoint_list import list_checkpoints, newest_complete
from midstream_engine.checkpoint.saving import retention as module
from midstream_engine.checkpoint.saving.retention import Retention, to_delete
from midstream_engine.checkpoint.stores.checkpoint_store import TRASH
from midstream_engine.config.keep_policy import KeepEvery, KeepPolicy
from support.checkpoints.checkpoint_states import save

GUIDE = [{"every": 1000, "until": 10000}, {"every": 5000, "until": 40000}, {"every": 10000}]
NONE = KeepPolicy(save_interval=1.0, keep=())
SMALL = {"x": np.zeros(3, np.float32)}


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(str(tmp_path), "run")


def policy_of(save_interval: float, keep: list[dict[str, int]]) -> KeepPolicy:
    return KeepPolicy(float(save_interval), tuple(KeepEvery(**rule) for rule in keep))


def names(paths: RunPaths) -> list[str]:
    return [found.name for found in list_checkpoints(paths)]


def pin(paths: RunPaths, name: str, expires: float, migration: str = "m1") -> None:
    os.makedirs(paths.pins, exist_ok=True)
    Pin(name, expires).write(os.path.join(paths.pins, f"{migration}.json"))


def test_keep_policy_of_levanter_guide_keeps_as_documented() -> None:
    policy = policy_of(900, GUIDE)
    kept = [step for step in range(0, 70_001, 500) if policy.is_permanent(step)]
    assert kept == [*range(1000, 10_001, 1000), *range(15_000, 40_001, 5000), *range(50_000, 70_001, 10_000)]


def test_keep_policy_keeps_nothing_after_last_until() -> None:
    policy = policy_of(900, [{"every": 10, "until": 30}])
    assert [step for step in range(100) if policy.is_permanent(step)] == [10, 20, 30]


def test_keep_policy_default_is_10000_steps_and_15_minutes() -> None:
    assert KeepPolicy() == policy_of(900, [{"every": 10_000}])


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        ([{"every": 0}], r"keep\[0\]: every is 0; it has to be at least 1 step"),
        ([{"every": 1}, {"every": 2}], r"keep\[0\]: only the last rule may leave out 'until'"),
        (
            [{"every": 1, "until": 10}, {"every": 2, "until": 10}],
            r"keep\[1\]: until is 10, .* already reach to step 10",
        ),
        ([{"every": 1, "until": 0}], r"keep\[0\]: until is 0"),
    ],
)
def test_keep_policy_refuses_invalid_rules(keep: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        policy_of(900, keep)


def test_keep_policy_refuses_invalid_interval() -> None:
    with pytest.raises(ValueError, match=r"save_interval is 0\.0 seconds"):
        policy_of(0, [])


def test_temporary_saves_follow_time_and_permanent_reset_it() -> None:
    retention = Retention(KeepPolicy(save_interval=10.0, keep=(KeepEvery(7),)), started=100.0)
    made = []
    for step in range(0, 30):
        now = 100.0 + 2.0 * step  # two seconds a step
        kind = retention.decide(step, now)
        if kind is not None:
            retention.saved(now)
            made.append((step, kind))
    assert made == [
        (5, "temporary"),
        (7, "permanent"),
        (12, "temporary"),
        (14, "permanent"),
        (19, "temporary"),
        (21, "permanent"),
        (26, "temporary"),
        (28, "permanent"),
    ]


@st.composite
def histories(draw: st.DrawFn) -> list[ListedCheckpoint]:
    made = draw(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 3)), unique=True, max_size=25))
    return [
        ListedCheckpoint(checkpoint_name(step, attempt), step, attempt, True, True, epoch=attempt)
        for step, attempt in made
    ]


@given(
    histories(), st.integers(1, 20), st.sampled_from([None, Fence(3, "x", 20, [{"epoch": 2, "step": 20}])]), st.data()
)
def test_retention_keeps_permanent_pinned_newest_and_foreign(
    history: Any, every: int, fence: Any, data: st.DataObject
) -> None:
    policy = KeepPolicy(save_interval=1.0, keep=(KeepEvery(every),))
    pinned = {entry.name for entry in history if data.draw(st.booleans())}
    to_remove = to_delete(policy, history, fence, pinned)
    accepted = [entry for entry in history if fence is None or fence.accepts(entry.epoch, entry.step)]
    newest = max(accepted, key=lambda entry: (entry.step, entry.attempt), default=None)
    for entry in history:
        stays = entry.step % every == 0 or entry.name in pinned or entry == newest or entry not in accepted
        assert (entry.name in to_remove) == (not stays)
    remaining = [entry for entry in history if entry.name not in to_remove]
    assert to_delete(policy, remaining, fence, pinned) == []  # nothing more to do
    assert to_delete(policy, history[::-1], fence, pinned) == to_remove  # in any order of the directory listing


def test_pruning_keeps_permanent_and_newest(paths: RunPaths) -> None:
    retention = Retention(KeepPolicy(save_interval=1.0, keep=(KeepEvery(10),)), started=0.0)
    for step in (5, 10, 15, 18):
        save(paths, SMALL, step)
    os.makedirs(paths.checkpoint("step-12-a001"))  # a running or killed save
    assert retention.prune(paths) == ["step-15-a001", "step-5-a001"]
    assert names(paths) == ["step-10-a001", "step-12-a001", "step-18-a001"]
    assert retention.prune(paths) == []


def test_pruning_keeps_newest_temporary(paths: RunPaths) -> None:
    save(paths, SMALL, 5)
    assert Retention(NONE, started=0.0).prune(paths) == []
    assert newest_complete(paths, None) == "step-5-a001"


def test_pruning_leaves_checkpoints_outside_the_fence(paths: RunPaths) -> None:
    for step in (5, 10, 15):
        save(paths, SMALL, step)
    Fence(2, "other", 10, [{"epoch": 1, "step": 10}]).write(paths.fence)
    assert Retention(NONE, started=0.0).prune(paths) == ["step-5-a001"]
    assert names(paths) == ["step-10-a001", "step-15-a001"]


def test_pin_protects_until_it_expires(paths: RunPaths) -> None:
    for step in (5, 10):
        save(paths, SMALL, step)
    pin(paths, "step-5-a001", expires=1000.0)
    retention = Retention(NONE, started=0.0)
    assert retention.prune(paths, now=999.0) == []
    assert retention.prune(paths, now=1001.0) == ["step-5-a001"]
    assert names(paths) == ["step-10-a001"]


def test_unreadable_pin_blocks_deletion(paths: RunPaths) -> None:
    for step in (5, 10):
        save(paths, SMALL, step)
    os.makedirs(paths.pins)
    Path(paths.pins, "m1.json").write_text('{"checkpoint": "st')
    with pytest.raises(CheckpointError, match=r"a pin is unreadable, so no checkpoint is deleted: .*m1\.json"):
        Retention(NONE, started=0.0).prune(paths)
    assert names(paths) == ["step-5-a001", "step-10-a001"]


def test_pin_during_pruning_restores_checkpoint(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (3, 5, 10):
        save(paths, SMALL, step)
    rename = os.rename

    def rename_then_pin(source: str, destination: str) -> None:
        rename(source, destination)
        if os.path.basename(destination) == TRASH + "step-5-a001":
            pin(paths, "step-5-a001", expires=1000.0)

    monkeypatch.setattr(module.os, "rename", rename_then_pin)
    assert Retention(NONE, started=0.0).prune(paths, now=10.0) == ["step-3-a001"]
    assert names(paths) == ["step-5-a001", "step-10-a001"]


def test_killed_pruning_is_finished_by_the_next(paths: RunPaths) -> None:
    for step in (3, 4, 5, 10):
        save(paths, SMALL, step)
    for name in ("step-3-a001", "step-4-a001", "step-5-a001"):
        os.rename(paths.checkpoint(name), paths.checkpoint(TRASH + name))
    Path(paths.checkpoint(TRASH + "step-4-a001"), "manifest.json").unlink()  # its deletion had begun
    pin(paths, "step-4-a001", 1000.0, "m4")
    pin(paths, "step-5-a001", 1000.0, "m5")
    os.makedirs(paths.checkpoint(TRASH + "unknown"))
    assert Retention(NONE, started=0.0).prune(paths, now=10.0) == ["step-3-a001", "step-4-a001"]
    assert names(paths) == ["step-5-a001", "step-10-a001"]
    assert os.listdir(paths.checkpoints).count(TRASH + "unknown") == 1


def test_pruning_of_run_without_checkpoints_succeeds(paths: RunPaths) -> None:
    assert Retention(NONE, started=0.0).prune(paths) == []
    assert not os.path.exists(paths.dir)
