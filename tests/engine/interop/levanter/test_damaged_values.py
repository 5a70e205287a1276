"""Damage that TensorStore reads without an error: arrays of Levanter have no checksum."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts

from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.levanter.arrays import open_arrays
from midstream_engine.interop.levanter.importer import open_levanter
from support.paths import FIXTURES

TABLE = "model/embeddings/token_embeddings/weight"


def flipped(bit: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that flips a bit of an array's first float32."""

    def change(values: np.ndarray) -> np.ndarray:
        changed = values.copy()
        changed.view(np.uint32).reshape(-1)[0] ^= np.uint32(1 << bit)
        return changed

    return change


def not_a_number(values: np.ndarray) -> np.ndarray:
    changed = values.copy()
    changed.reshape(-1)[0] = np.nan
    return changed


def damaged(run: Path, end: str, change: Callable[[np.ndarray], np.ndarray]) -> str:
    """Change values of the array whose name ends in ``end``; return its name."""
    _, arrays = open_arrays(str(run / "step-3"))
    [array] = [each for each in arrays.values() if each.name.endswith(end)]
    store = ts.open(array.store.spec(), read=True, write=True).result()
    store.write(change(np.where(store.read().result() == 0, np.float32(1e-8), store.read().result()))).result()
    return array.name


def imported(path: Path) -> list[str]:
    """Read every array of an import, and return its remarks."""
    run = open_levanter(str(path), without_data=True)
    for array in run.arrays:
        array.value()
    run.verify()
    return run.remarks()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize(
    ("end", "change", "words"),
    [
        (TABLE, not_a_number, "a value that is not finite"),
        ("mu/embeddings/token_embeddings/weight", not_a_number, "a value that is not finite"),
        ("nu/embeddings/token_embeddings/weight", flipped(31), "a second moment below 0"),
    ],
)
def test_impossible_values_are_refused(
    name: str, end: str, change: Callable[[np.ndarray], np.ndarray], words: str, tmp_path: Path
) -> None:
    shutil.copytree(FIXTURES / "levanter" / name, tmp_path / "run")
    array = damaged(tmp_path / "run", end, change)
    with pytest.raises(ConversionError, match=f"{array}: has {words}"):
        imported(tmp_path / "run")


def test_flipped_bit_of_a_weight_is_not_said_to_be_checked(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "levanter" / "gpt2", tmp_path / "run")
    damaged(tmp_path / "run", TABLE, flipped(3))
    [line] = imported(tmp_path / "run")
    assert "no checksum" in line
    assert "would not show otherwise" in line
