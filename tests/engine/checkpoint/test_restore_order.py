"""A restore hands over the arrays that are needed first while it reads the others."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from midstream_core.records import RunPaths
from midstream_engine.checkpoint.array_names import flatten
from midstream_engine.checkpoint.errors import CheckpointCorruptError
from midstream_engine.checkpoint.loading import restore
from midstream_engine.checkpoint.loading.restore import First, restore_checkpoint
from support.checkpoints.checkpoint_states import save

PATIENCE = 60.0  # seconds


class Reader:
    """Objects of the moments are read once the parameters have been handed over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: dict[str, Any] = {}
        self.handed_over = threading.Event()
        self.first = First("model/", self._take)
        self._read = restore.read_checked
        monkeypatch.setattr(restore, "read_checked", self._wait)

    def _take(self, arrays: dict[str, Any]) -> None:
        self.found = {name: np.asarray(array) for name, array in arrays.items()}
        self.handed_over.set()

    def _wait(self, store: Any, entry: Any, *rest: Any, **more: Any) -> str:
        if "moments/" in entry.path:
            assert self.handed_over.wait(PATIENCE)
        return self._read(store, entry, *rest, **more)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    return Reader(monkeypatch)


def state() -> dict[str, Any]:
    random = np.random.default_rng(5)
    wide = {"wide": random.standard_normal((1024, 1024)).astype(np.float32), "bias": np.arange(7, dtype=np.float32)}
    # The moments' names come first in the manifest.
    return {"a": {"moments": wide}, "model": {name: array * 2 for name, array in wide.items()}}


def test_first_arrays_are_handed_over_before_the_others_are_read(tmp_path: Path, reader: Reader) -> None:
    paths, tree = RunPaths(str(tmp_path), "r"), state()
    directory = paths.checkpoint(save(paths, tree).name)
    device = SingleDeviceSharding(jax.devices()[0])
    restored = restore_checkpoint(directory, tree, device, first=reader.first)
    assert sorted(reader.found) == ["model/bias", "model/wide"]
    np.testing.assert_array_equal(reader.found["model/wide"], tree["model"]["wide"])
    np.testing.assert_array_equal(reader.found["model/bias"], tree["model"]["bias"])
    for name, array in flatten(restored.tree).items():
        np.testing.assert_array_equal(np.asarray(array.value), flatten(tree)[name].value)


def test_restore_fails_after_first_arrays_were_handed_over(tmp_path: Path, reader: Reader) -> None:
    paths, tree = RunPaths(str(tmp_path), "r"), state()
    directory = paths.checkpoint(save(paths, tree).name)
    chunk = next(path for path in Path(directory).rglob("*") if path.is_file() and "moments/wide/c" in str(path))
    content = bytearray(chunk.read_bytes())
    content[1000] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(CheckpointCorruptError, match="moments/wide"):
        restore_checkpoint(directory, tree, SingleDeviceSharding(jax.devices()[0]), first=reader.first)
    assert reader.handed_over.is_set()
