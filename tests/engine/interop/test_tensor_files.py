"""Weights in safetensors files: as transformers reads them, with nothing read twice or left out, and no infinity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.tensor_files import INDEX, SINGLE, Outgoing, read_tensors, write_tensors


def outgoing(name: str, values: list[float], dtype: str = "float32") -> Outgoing:
    return Outgoing(name, dtype, (len(values),), lambda: np.array(values, np.float32))


def raw(header: str, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header.encode() + data


def entry(begin: int, end: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [(end - begin) // 4], "data_offsets": [begin, end]}


def test_single_file_goes_before_the_index_of_an_earlier_model(tmp_path: Path) -> None:
    """A model that is saved again in one file leaves the index of its parts; transformers reads the one file."""
    write_tensors(str(tmp_path), [outgoing("a", [1.0]), outgoing("b", [2.0])], 4)
    assert (tmp_path / INDEX).exists()
    write_tensors(str(tmp_path), [outgoing("a", [3.0])], 1 << 20)
    assert {name: tensor.tolist() for name, tensor in read_tensors(str(tmp_path)).items()} == {"a": [3.0]}
    for path in tmp_path.glob("model-*"):
        path.unlink()
    assert list(read_tensors(str(tmp_path))) == ["a"]


@pytest.mark.parametrize("listed", [{"a": 1}, {"a": None}, {"a": ["model.safetensors"]}, {"a": "../x.safetensors"}])
def test_index_that_names_no_file_of_the_directory_is_refused(listed: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": listed}))
    with pytest.raises(ConversionError, match=r"model\.safetensors\.index\.json"):
        read_tensors(str(tmp_path))


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ({"a": entry(0, 8), "b": entry(4, 12)}, 12),  # they overlap
        ({"a": entry(0, 8), "b": entry(0, 8)}, 8),
        ({"a": entry(0, 8), "b": entry(12, 20)}, 20),  # bytes between them
        ({"a": entry(4, 8)}, 8),
        ({"a": entry(0, 8)}, 12),  # bytes after them
        ({"a": entry(0, 1 << 62)}, 8),
    ],
)
def test_tensors_that_do_not_follow_each_other_are_refused(header: dict[str, Any], size: int, tmp_path: Path) -> None:
    (tmp_path / SINGLE).write_bytes(raw(json.dumps(header), bytes(size)))
    with pytest.raises(ConversionError, match="no sound safetensors file"):
        read_tensors(str(tmp_path))


def test_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    header = f'{{"a": {json.dumps(entry(0, 4))}, "a": {json.dumps(entry(4, 8))}}}'
    (tmp_path / SINGLE).write_bytes(raw(header, bytes(8)))
    with pytest.raises(ConversionError, match="no sound safetensors file"):
        read_tensors(str(tmp_path))


@pytest.mark.parametrize(("dtype", "value"), [("float16", 70000.0), ("float16", -65520.0), ("bfloat16", 3.4e38)])
def test_export_that_would_make_an_infinity_is_refused(dtype: str, value: float, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=f"w: 1 of 3 numbers are too large for {dtype}"):
        write_tensors(str(tmp_path), [outgoing("w", [1.0, value, 2.0], dtype)], 1 << 20)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_export_rounds_to_the_nearest_number(dtype: str, tmp_path: Path) -> None:
    values = [65504.0, -65504.0, 6e-8, 1e-30, 1.0009765625, -0.0]
    write_tensors(str(tmp_path), [outgoing("w", values, dtype)], 1 << 20)
    found = read_tensors(str(tmp_path))["w"]
    assert found.tobytes() == np.array(values, np.float32).astype(numpy_dtype(dtype)).tobytes()
    assert np.isfinite(found.astype(np.float32)).all()
