"""Model weights in safetensors files: read lazily, written tensor by tensor.

Format: https://huggingface.co/docs/safetensors. Several files have an index with the file of each tensor.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from midstream_core.safetensors_header import make_header
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.host_buffers import bytes_of
from midstream_engine.checkpoint.packed_arrays import unpack
from midstream_engine.interop.errors import ConversionError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Outgoing:
    """A tensor to write; ``make`` returns its contents."""

    name: str
    dtype: str  # numpy's name
    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * numpy_dtype(self.dtype).itemsize


def read_tensors(directory: str) -> dict[str, np.ndarray]:
    """Return every tensor by name, as read-only views of the mapped files.

    A single file goes before an index, as in transformers: saving a model there leaves the index of an earlier one.

    Raises:
        ConversionError: A file is missing or malformed, or the index and the files differ.
    """
    if os.path.exists(os.path.join(directory, SINGLE)):
        return _mapped(os.path.join(directory, SINGLE))
    if not os.path.exists(os.path.join(directory, INDEX)):
        raise ConversionError(
            f"{directory} has neither {SINGLE} nor {INDEX} (hint: save the model with safe_serialization=True)"
        )
    where = _index(os.path.join(directory, INDEX))
    tensors: dict[str, np.ndarray] = {}
    for file in sorted(set(where.values())):
        if os.path.basename(file) != file:
            raise ConversionError(f"{directory}/{INDEX}: {file!r} is outside of the directory")
        for name, tensor in _mapped(os.path.join(directory, file)).items():
            if where.get(name) != file:
                raise ConversionError(f"{directory}/{file}: has {name}, which is not in {INDEX} for that file")
            tensors[name] = tensor
    missing = sorted(where.keys() - tensors.keys())
    if missing:
        raise ConversionError(f"{directory}/{where[missing[0]]}: lacks {missing[0]}, which is in {INDEX} for that file")
    return tensors


def write_tensors(directory: str, tensors: Sequence[Outgoing], largest: int) -> list[str]:
    """Write ``tensors`` in files of at most ``largest`` data bytes; return the names.

    A tensor that is larger has a file of its own. Several files have an index. At most one tensor is in memory.
    """
    groups: list[list[Outgoing]] = [[]]
    for tensor in tensors:
        if groups[-1] and sum(tensor.size for tensor in groups[-1]) + tensor.size > largest:
            groups.append([])
        groups[-1].append(tensor)
    if len(groups) == 1:
        _write(os.path.join(directory, SINGLE), groups[0])
        return [SINGLE]
    names = [f"model-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)]
    for name, group in zip(names, groups, strict=True):
        _write(os.path.join(directory, name), group)
    index = {
        "metadata": {"total_size": sum(tensor.size for tensor in tensors)},
        "weight_map": {tensor.name: name for name, group in zip(names, groups, strict=True) for tensor in group},
    }
    with open(os.path.join(directory, INDEX), "w", encoding="utf-8") as file:
        json.dump(index, file, indent=2)
    return names


def _mapped(path: str) -> dict[str, np.ndarray]:
    try:
        with open(path, "rb") as file:
            return unpack(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except FileNotFoundError:
        raise ConversionError(f"{path}: no such file, but the index names it") from None
    except ValueError as error:
        raise ConversionError(f"{path}: no sound safetensors file: {error}") from None


def _index(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as file:
            files = dict(json.load(file)["weight_map"])
        if not all(isinstance(name, str) for pair in files.items() for name in pair):
            raise TypeError("a name that is no text")
        return files
    except (ValueError, KeyError, TypeError) as error:
        raise ConversionError(f"{path}: no index of safetensors files: {error!r}") from None


def _write(path: str, tensors: Sequence[Outgoing]) -> None:
    header = make_header(((tensor.name, tensor.dtype, tensor.shape) for tensor in tensors), {"format": "pt"})
    with open(path, "wb") as file:
        file.write(header)
        for tensor in tensors:
            data = tensor.make()
            assert data.shape == tensor.shape, (tensor.name, data.shape, tensor.shape)
            file.write(bytes_of(_cast(tensor.name, data, numpy_dtype(tensor.dtype))))
        file.flush()
        os.fsync(file.fileno())


def _cast(name: str, data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the contents in the type of the file, contiguous.

    Raises:
        ConversionError: A number is too large for it: it would become infinite.
    """
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(data, dtype)
    if dtype.itemsize < data.dtype.itemsize:
        lost = int(np.count_nonzero(np.isinf(values)) - np.count_nonzero(np.isinf(data)))
        if lost:
            raise ConversionError(
                f"{name}: {lost} of {data.size} numbers are too large for {dtype.name} (hint: another --dtype)"
            )
    return values
