"""``small.safetensors``: the arrays that are too small for objects of their own, as the same bytes every time.

Format: https://huggingface.co/docs/safetensors: the header's length (8 bytes, little-endian), the header (JSON, padded
with spaces to a multiple of 8), the data. Names are sorted and data follow each other without gaps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from midstream_engine.checkpoint.format.dtypes import SAFETENSORS, numpy_dtype
from midstream_engine.checkpoint.format.objects import bytes_of
from midstream_engine.records import canonical_json

_NAMES = {short: name for name, short in SAFETENSORS.items()}


def pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The whole file."""
    header: dict[str, Any] = {}
    data: list[memoryview] = []
    end = 0
    for name in sorted(arrays):
        array = arrays[name]
        start, end = end, end + array.nbytes
        header[name] = {
            "dtype": SAFETENSORS[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
        data.append(bytes_of(array))
    text = canonical_json(header)
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *data])


def unpack(raw: memoryview | bytes) -> dict[str, np.ndarray]:
    """The arrays by name, as read-only views. ValueError, saying what, where the file is malformed."""
    view = memoryview(raw).toreadonly()
    if len(view) < 8:
        raise ValueError("shorter than its header")
    start = 8 + int.from_bytes(view[:8], "little")
    if start > len(view):
        raise ValueError("its header is longer than the file")
    header = json.loads(bytes(view[8:start]))
    arrays = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        dtype, shape = numpy_dtype(_NAMES[entry["dtype"]]), tuple(entry["shape"])
        if not 0 <= first <= last <= len(view) - start or last - first != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"the offsets of {name} do not fit its shape or the file")
        arrays[name] = np.frombuffer(view[start + first : start + last], dtype).reshape(shape)
    return arrays
