"""Background saves: snapshots that later changes of the state do not reach, the fence, memory."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from midstream_core.attempt.save_fence import FenceRejectedError, seal
from midstream_core.records import RunPaths, first_fence
from midstream_engine.checkpoint.host_buffers import ReusedMemory
from midstream_engine.checkpoint.loading.checkpoint_list import list_checkpoints
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_engine.checkpoint.saving import snapshot as snapshot_module
from midstream_engine.checkpoint.saving.background_task import BackgroundTask
from midstream_engine.checkpoint.saving.checkpoint_writer import train_document
from midstream_engine.checkpoint.saving.save import PendingSave, begin_save
from midstream_engine.checkpoint.saving.snapshot import COPY_SIZE, Copy, snapshot
from support.checkpoints.checkpoint_states import PROVENANCE, REFERENCE_LOSSES, STATE, save


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(str(tmp_path), "run")


def begin(paths: RunPaths, tree: Any, step: int = 7, **more: Any) -> PendingSave:
    return begin_save(
        paths,
        tree,
        train_document(STATE, PROVENANCE, REFERENCE_LOSSES),
        step=step,
        attempt=1,
        epoch=1,
        **more,
    )


def test_snapshot_is_unaffected_by_later_changes_of_state(paths: RunPaths, tmp_path: Path) -> None:
    """Large and small arrays, on several devices, donated; and a numpy array that is written to."""
    random = np.random.default_rng(0)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    original = {
        "large": random.standard_normal((2 * COPY_SIZE // 1024, 1024)).astype(np.float32),
        "small": random.standard_normal((8, 3)).astype(np.float32),
        "numpy": random.standard_normal((400, 1000)).astype(np.float32),
    }
    expected = save(RunPaths(str(tmp_path / "expected"), "run"), original).root_digest
    tree = {name: jax.device_put(original[name].copy(), sharding) for name in ("large", "small")}
    tree["numpy"] = original["numpy"].copy()
    pending = begin(paths, tree)
    update = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 0 - 1, tree), donate_argnums=0)
    for _ in range(3):
        arrays = jax.block_until_ready(update({name: tree[name] for name in ("large", "small")}))
        tree |= arrays
    tree["numpy"][:] = 0
    assert pending.finish().root_digest == expected


def test_background_save_checks_fence_at_commit(paths: RunPaths) -> None:
    os.makedirs(paths.dir)
    first_fence("small").write(paths.fence)
    pending = begin(paths, {"x": np.zeros(3, np.float32)}, step=11)
    seal(paths, epoch=2, owner="large", step=10)
    with pytest.raises(FenceRejectedError, match="owned by large under ownership 2, sealed at step 10"):
        pending.finish()
    assert list_checkpoints(paths) == []


def resident() -> int:
    """Resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def quick_collections():
    """Freeze objects of earlier tests, so that collections are quick."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("quick_collections")
def test_background_saves_do_not_leak_memory(paths: RunPaths) -> None:
    """The state is 12 MiB: one leaked copy is visible after one save, a fifth of one at the end."""
    state = {"x": jnp.full((12 << 10, 256), 1, jnp.float32)}
    size = sum(leaf.nbytes for leaf in state.values())
    behind, levels = BackgroundTask[int]("test"), []
    for step in range(50):
        pending = begin(paths, state, step)
        behind.start(step, lambda pending=pending: pending.finish() and None)
        assert behind.collect() == (step, None)
        shutil.rmtree(paths.checkpoint(f"step-{step}-a001"))
        gc.collect()
        levels.append(resident())
    behind.close()
    settled = levels[4]  # threads and their buffers exist after the first saves
    print("MiB:", [level >> 20 for level in levels])
    assert max(levels[5:]) - settled < 0.5 * size
    assert levels[-1] - settled < 0.2 * size


def test_snapshot_buffers_are_reused_and_surplus_is_freed(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_module, "_copies", ReusedMemory())  # memory of an earlier test would be reused
    state = {"x": np.ones((64 << 20) // 4, np.float32)}
    before = resident()
    first, second = (begin(paths, state, step) for step in (1, 2))
    assert resident() - before > 112 << 20
    for pending in (first, second):  # both are still referred to when they are finished
        pending.finish()
    gc.collect()
    assert resident() - before < 88 << 20
    places = []
    for _ in range(2):
        ((_, data),) = snapshot(state, Copy.HOST)[0].pieces
        assert isinstance(data, np.ndarray)
        places.append(data.ctypes.data)
        del data
    assert places[0] == places[1]
    assert verify_checkpoint(paths.checkpoint("step-2-a001"), deep=True).sound
