"""Files that are written as ``torch.save`` does, read by the engine's own reader of torch's files."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from midstream_engine.interop.archive import TorchFile
from midstream_engine.interop.tensor_files import Outgoing
from midstream_engine.interop.torch_saving import save


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int64, np.bool_])
def test_values_and_tensors_are_read_back(tmp_path: Path, dtype: type) -> None:
    numbers = np.arange(6).reshape(2, 3).T.astype(dtype)  # not contiguous
    tensor = Outgoing("x", np.dtype(dtype).name, (3, 2), lambda: numbers)
    scalar = Outgoing("step", "float32", (), lambda: np.full((), 7.0))
    value = {"state": {0: {"step": scalar, "x": tensor}, 1: {"x": tensor}}, "groups": [(0.9, 1e-8), None, True, "a"]}
    save(str(tmp_path / "optimizer.pt"), value)
    file = TorchFile(str(tmp_path / "optimizer.pt"))
    state = file.value["state"]
    assert file.value["groups"] == value["groups"]
    assert state[0]["x"].dtype == np.dtype(dtype)
    assert np.array_equal(state[0]["x"].read(), numbers)
    assert state[1]["x"].storage is state[0]["x"].storage  # stored once
    assert (state[0]["step"].shape, state[0]["step"].read()[()]) == ((), 7.0)
    file.verify()


def test_the_same_value_is_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        save(str(tmp_path / folder / "f.pt"), {"x": Outgoing("x", "float32", (4,), lambda: np.ones(4))})
    assert (tmp_path / "one" / "f.pt").read_bytes() == (tmp_path / "two" / "f.pt").read_bytes()
