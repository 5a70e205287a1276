"""Chunked arrays in the layout of zarr version 3: each chunk is an object.

Specification: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html, with the codecs ``bytes`` and ``crc32c``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from midstream_core.json_types import JsonValue
from midstream_core.records import ArrayEntry, canonical_json
from midstream_engine.checkpoint.chunk_grid import chunk_shape, chunks_of

ARRAYS = "arrays"


def metadata_path(name: str) -> str:
    """Return the path of an array's ``zarr.json``."""
    return f"{ARRAYS}/{name}/zarr.json"


def chunk_path(name: str, index: Sequence[int]) -> str:
    """Return the path of the chunk with that index in the grid."""
    return "/".join([ARRAYS, name, "c", *map(str, index)])


def object_paths(name: str, shape: Sequence[int], grid: Sequence[int]) -> list[str]:
    """Return the path of every object of an array, sorted."""
    return sorted([metadata_path(name), *(chunk_path(name, index) for index, _ in chunks_of(shape, grid))])


def metadata(axes: Sequence[str], shape: Sequence[int], dtype: str, grid: Sequence[int]) -> bytes:
    """Return the bytes of ``zarr.json``."""
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape(shape, grid))}},
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
        found: JsonValue = json.loads(raw)
    except ValueError as error:
        return f"not JSON ({error})"
    if not isinstance(found, dict):
        return "not a JSON object"
    wanted = json.loads(metadata(array.axes, array.shape, array.dtype, array.grid))
    return "; ".join(
        f"{key} is {found.get(key)!r}, the manifest says {wanted[key]!r}"
        for key in sorted(wanted)
        if key != "attributes" and found.get(key) != wanted[key]
    )
