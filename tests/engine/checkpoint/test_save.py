"""Save and restore: bit-exact dtypes, no overwriting, no unnoticed conversion."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from midstream_core.attempt.errors import CheckpointError
from midstream_core.attempt.save_fence import FenceRejectedError, read_fence, seal
from midstream_core.records import Fence, RunPaths, first_fence
from midstream_core.safetensors_header import NAMES
from midstream_engine.checkpoint.array_names import flatten
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.errors import CheckpointCorruptError, CheckpointMismatchError
from midstream_engine.checkpoint.loading.checkpoint_list import list_checkpoints, newest_complete
from midstream_engine.checkpoint.loading.checkpoint_records import read_train
from midstream_engine.checkpoint.loading.restore import restore_checkpoint
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from support.checkpoints.checkpoint_states import PROVENANCE, REFERENCE_LOSSES, STATE, plain_state, save


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(str(tmp_path), "run")


@pytest.fixture
def device() -> SingleDeviceSharding:
    return SingleDeviceSharding(jax.devices()[0])


def test_state_is_restored_bit_for_bit(paths: RunPaths, device: SingleDeviceSharding) -> None:
    tree = plain_state()
    manifest = save(paths, tree)
    restored = restore_checkpoint(paths.checkpoint(manifest.name), tree, device)
    assert restored.root_digest == restored.manifest.root_digest == manifest.root_digest
    assert restored.train == {"state": STATE, "provenance": PROVENANCE, "reference_losses": REFERENCE_LOSSES}
    assert jax.tree_util.tree_structure(restored.tree) == jax.tree_util.tree_structure(tree)
    for name, array in flatten(restored.tree).items():
        assert isinstance(array.value, jax.Array)
        assert array.value.sharding == device
        assert np.asarray(array.value).tobytes() == flatten(tree)[name].value.tobytes(), name


@pytest.mark.parametrize("dtype", sorted(set(NAMES) - {"int64", "uint64", "float64"}))
@pytest.mark.parametrize("shape", [(), (3, 5), (1024, 1280)], ids=str)
def test_dtypes_packed_and_chunked_are_restored_bit_for_bit(
    paths: RunPaths, device: SingleDeviceSharding, dtype: str, shape: tuple[int, ...]
) -> None:
    random = np.random.default_rng(0)
    raw = random.integers(0, 2 if dtype == "bool" else 256, math.prod(shape) * numpy_dtype(dtype).itemsize, np.uint8)
    array = raw.view(numpy_dtype(dtype)).reshape(shape)  # any bits: NaNs with payloads, denormals, negative zeros
    manifest = save(paths, {"x": jnp.asarray(array)})
    assert bool(manifest.array_entries[0].grid) == (array.nbytes >= 1 << 20)
    restored = restore_checkpoint(paths.checkpoint(manifest.name), {"x": array}, device)
    assert np.asarray(restored.tree["x"]).tobytes() == array.tobytes()


def test_same_state_saved_twice_is_one_checkpoint(paths: RunPaths) -> None:
    first = save(paths, plain_state())
    written = {path: path.stat().st_mtime_ns for path in Path(paths.checkpoint(first.name)).rglob("*")}
    assert save(paths, plain_state(), provenance={"another": "machine"}) == first
    with pytest.raises(CheckpointError, match=r"has another state.*never overwritten"):
        save(paths, plain_state(seed=1))
    with pytest.raises(CheckpointError, match="has another state"):
        save(paths, plain_state(), state=dict(STATE, seed=1))
    assert {path: path.stat().st_mtime_ns for path in written} == written


def test_partial_save_is_replaced(paths: RunPaths) -> None:
    partial = Path(paths.checkpoint("step-7-a001"))
    (partial / "arrays/model/wide/c/9").mkdir(parents=True)
    (partial / "arrays/model/wide/c/9/9").write_bytes(b"left over")
    (partial / "train.json").write_bytes(b"{")
    manifest = save(paths, plain_state())
    report = verify_checkpoint(str(partial), deep=True)
    assert report.sound
    assert report.unlisted == []
    assert report.root_digest == manifest.root_digest


def test_tuples_and_integer_keys_are_digested_as_read_back(paths: RunPaths, device: SingleDeviceSharding) -> None:
    manifest = save(paths, {"x": np.zeros(3, np.float32)}, state={"schedule": (1, 2), "by_step": {7: 0.1}})
    restored = restore_checkpoint(paths.checkpoint(manifest.name), {"x": np.zeros(3, np.float32)}, device)
    assert restored.root_digest == manifest.root_digest
    assert restored.train["state"] == {"schedule": [1, 2], "by_step": {"7": 0.1}}


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), b"bytes"])
def test_training_state_outside_json_is_refused(paths: RunPaths, value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"train\.json cannot represent this training state"):
        save(paths, plain_state(), state={"x": value})
    assert list_checkpoints(paths) == []


def test_unknown_dtype_is_refused_and_nothing_written(paths: RunPaths) -> None:
    with pytest.raises(ValueError, match="float8_e4m3fn"):
        save(paths, {"x": np.zeros(2, ml_dtypes.float8_e4m3fn)})
    assert list_checkpoints(paths) == []


def test_mismatched_checkpoint_is_refused_before_reading(
    paths: RunPaths, device: SingleDeviceSharding, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = plain_state()
    manifest = save(paths, tree)
    wanted = plain_state()
    wanted["model"]["new"] = np.zeros(3, np.float32)
    del wanted["mask"]
    wanted["model"]["bias"] = np.zeros((2048,), ml_dtypes.bfloat16)
    wanted["model"]["wide"] = np.zeros((256, 2048), np.float32)
    monkeypatch.setattr("midstream_engine.checkpoint.loading.restore.read_object", None)
    with pytest.raises(CheckpointMismatchError) as caught:
        restore_checkpoint(paths.checkpoint(manifest.name), wanted, device)
    assert caught.value.missing == ["model/new"]
    assert caught.value.extra == ["mask"]
    assert [difference.name for difference in caught.value.different] == ["model/bias", "model/wide"]
    assert str(caught.value).splitlines() == [
        f"{paths.checkpoint(manifest.name)} does not fit: 1 missing, 1 extra, 2 different",
        "  missing: model/new",
        "  extra: mask",
        "  different: model/bias: dtype float32 in the checkpoint, bfloat16 wanted",
        "  different: model/wide: shape [512, 2048] in the checkpoint, [256, 2048] wanted",
    ]


def test_newest_is_by_step_then_attempt_and_complete(paths: RunPaths) -> None:
    small = {"x": np.zeros(3, np.float32)}
    assert newest_complete(paths, None) is None
    for step, attempt in [(9, 1), (10, 1), (10, 2), (2, 3)]:
        save(paths, small, step, attempt)
    os.makedirs(paths.checkpoint("step-11-a002"))
    os.makedirs(paths.checkpoint("not-a-checkpoint"))
    assert [(found.name, found.complete) for found in list_checkpoints(paths)] == [
        ("step-2-a003", True),
        ("step-9-a001", True),
        ("step-10-a001", True),
        ("step-10-a002", True),
        ("step-11-a002", False),
    ]
    assert newest_complete(paths, None) == "step-10-a002"
    assert read_train(paths.checkpoint("step-10-a002"))["state"] == STATE


def test_corrupt_manifest_does_not_fall_back_to_older_state(paths: RunPaths) -> None:
    small = {"x": np.zeros(3, np.float32)}
    save(paths, small, 1)
    newest = save(paths, small, 2)
    manifest = Path(paths.checkpoint(newest.name), "manifest.json")
    manifest.write_bytes(manifest.read_bytes()[:-40])
    with pytest.raises(CheckpointCorruptError, match=r"step-2-a001/manifest\.json: not JSON.*move the directory away"):
        newest_complete(paths, None)


def test_misnamed_checkpoint_directory_is_ignored(paths: RunPaths) -> None:
    made = save(paths, {"x": np.zeros(3, np.float32)}, 2)
    os.rename(paths.checkpoint(made.name), paths.checkpoint("step-5-a001"))
    with pytest.raises(CheckpointCorruptError, match="its manifest is that of step-2-a001"):
        newest_complete(paths, None)


def test_older_epoch_past_seal_is_refused_at_start_and_commit(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"x": np.zeros(3, np.float32)}
    os.makedirs(paths.dir)
    first_fence("small").write(paths.fence)
    save(paths, small, 10)
    fence = seal(paths, epoch=2, owner="large", step=10)
    assert fence == first_fence("small").sealed(2, "large", 10) == read_fence(paths)
    with pytest.raises(FenceRejectedError, match="owned by large under ownership 2, sealed at step 10"):
        save(paths, small, 11)

    # The seal arrives while objects are being written: only the commit can detect it.
    from midstream_engine.checkpoint.saving import checkpoint_writer as module

    original = module.write_objects

    def seal_during_save(*arguments):
        written = original(*arguments)
        seal(paths, epoch=3, owner="third", step=12)
        return written

    monkeypatch.setattr(module, "write_objects", seal_during_save)
    with pytest.raises(FenceRejectedError, match="owned by third"):
        save(paths, small, 13, attempt=2, epoch=2)
    assert [found.name for found in list_checkpoints(paths)] == ["step-10-a001"]
    monkeypatch.undo()
    assert save(paths, small, 12, attempt=2, epoch=2).epoch == 2  # at the seal, not past it
    assert newest_complete(paths, read_fence(paths)) == "step-12-a002"


def test_checkpoint_past_seal_is_never_chosen(paths: RunPaths) -> None:
    small = {"x": np.zeros(3, np.float32)}
    save(paths, small, 10)
    save(paths, small, 20)  # written by the source after it was sealed elsewhere, before the fence was updated
    assert newest_complete(paths, Fence(2, "large", 10, [{"epoch": 1, "step": 10}])) == "step-10-a001"


def test_sealing_is_idempotent_and_refuses_lower_epoch(paths: RunPaths) -> None:
    os.makedirs(paths.dir)
    first_fence("small").write(paths.fence)
    assert seal(paths, epoch=2, owner="large", step=10) == seal(paths, epoch=2, owner="large", step=10)
    with pytest.raises(FenceRejectedError, match="already at ownership 2"):
        seal(paths, epoch=2, owner="other", step=10)
