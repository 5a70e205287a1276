"""Arrays that are cut into cells, as zarr version 3 sees them: one chunk, one object.

Specification: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html, with the codecs ``bytes`` and ``crc32c``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from midstream_engine.checkpoint.format.chunk_grid import chunk_shape, chunks_of
from midstream_engine.records import ArrayEntry, canonical_json

ARRAYS = "arrays"


def metadata_path(name: str) -> str:
    return f"{ARRAYS}/{name}/zarr.json"


def chunk_path(name: str, index: Sequence[int]) -> str:
    return "/".join([ARRAYS, name, "c", *map(str, index)])


def object_paths(name: str, shape: Sequence[int], grid: Sequence[int]) -> list[str]:
    """Every object of an array, in path order."""
    return sorted([metadata_path(name), *(chunk_path(name, index) for index, _ in chunks_of(shape, grid))])


def metadata(axes: Sequence[str], shape: Sequence[int], dtype: str, grid: Sequence[int]) -> bytes:
    """``zarr.json``."""
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
    """Where ``zarr.json`` says something else than the manifest; empty where they agree."""
    try:
        found: Any = json.loads(raw)
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
