"""Description of a checkpoint's array in the layout of zarr version 3.

Specification: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html, with the codecs ``bytes`` and ``crc32c``.
"""

from __future__ import annotations

import json
from typing import Sequence

from midstream_core.json_types import JsonObject, JsonValue
from midstream_core.records import ArrayEntry, canonical_json


def metadata(axes: Sequence[str], shape: Sequence[int], dtype: str, grid: Sequence[int]) -> bytes:
    """Return the bytes of ``zarr.json``."""
    chunk = [length // parts for length, parts in zip(shape, grid)]
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": chunk},
        },
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        "fill_value": False if dtype == "bool" else 0,
        "dimension_names": list(axes),
        "attributes": {},
    }
    return canonical_json(document) + b"\n"


def disagreement(raw: bytes, array: ArrayEntry) -> str:
    """Return where ``zarr.json`` differs from the manifest; empty if they agree."""
    try:
        document: JsonValue = json.loads(raw)
    except ValueError as error:
        return f"not JSON ({error})"
    if not isinstance(document, dict):
        return "not a JSON object"
    described: JsonObject = json.loads(metadata(array.axes, array.shape, array.dtype, array.grid))
    return "; ".join(
        f"{key} is {document.get(key)!r}, the manifest says {value!r}"
        for key, value in sorted(described.items())
        if key != "attributes" and document.get(key) != value
    )
