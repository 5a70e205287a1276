"""Save from and restore to device memory: bit for bit, and the same on other devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from midstream_core.records import RunPaths
from midstream_engine.checkpoint.array_names import flatten
from midstream_engine.checkpoint.loading.restore import restore_checkpoint
from midstream_engine.checkpoint.saving.checkpoint_writer import train_document
from midstream_engine.checkpoint.saving.save import begin_save
from midstream_engine.checkpoint.saving.snapshot import Copy
from support.checkpoints.checkpoint_states import PROVENANCE, REFERENCE_LOSSES, STATE, plain_state, save


def test_state_returns_from_the_device_bit_for_bit(tmp_path: Path, accelerator: Any) -> None:
    """CPU, accelerator, CPU: one root digest, also with NaNs, denormals and negative zeros."""
    random = np.random.default_rng(0)
    bits = {
        np.dtype(dtype).name: random.integers(0, 256, 1 << 20, np.uint8).view(dtype)
        for dtype in (np.float32, np.float16, ml_dtypes.bfloat16, np.int32)
    }
    tree, paths = {**plain_state(), **bits}, RunPaths(str(tmp_path), "run")
    saved = save(paths, tree)
    sharding = SingleDeviceSharding(accelerator)
    there = restore_checkpoint(paths.checkpoint(saved.name), tree, sharding)
    assert there.root_digest == saved.root_digest
    for name, array in flatten(there.tree).items():
        assert isinstance(array.value, jax.Array)
        assert array.value.devices() == {accelerator}
        assert np.asarray(array.value).tobytes() == flatten(tree)[name].value.tobytes(), name
    again = RunPaths(str(tmp_path), "again")
    assert save(again, there.tree).root_digest == saved.root_digest
    here = restore_checkpoint(
        again.checkpoint(saved.name), tree, SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    )
    assert here.root_digest == saved.root_digest


@pytest.mark.parametrize("copy", [Copy.HOST, Copy.DEVICES])
def test_save_has_the_state_of_its_step_while_training_goes_on(tmp_path: Path, accelerator: Any, copy: Copy) -> None:
    """Updates that take the state's memory begin at once after the snapshot; the save still has the old state."""
    size = 8 << 20
    state = {f"array{number}": jax.device_put(np.full(size, number, np.float32), accelerator) for number in range(4)}
    update = jax.jit(lambda tree: jax.tree.map(lambda array: array + 1, tree), donate_argnums=0)
    paths = RunPaths(str(tmp_path), "run")
    expected = save(RunPaths(str(tmp_path), "expected"), {name: np.asarray(array) for name, array in state.items()})
    document = train_document(STATE, PROVENANCE, REFERENCE_LOSSES)
    pending = begin_save(paths, state, document, step=7, attempt=1, epoch=1, copy=copy)
    assert pending.on_devices == (copy is Copy.DEVICES)
    for _ in range(3):
        state = update(state)
    found = pending.finish()
    assert found.root_digest == expected.root_digest
    assert float(state["array3"][0]) == 6.0
