"""Paths of a chunked array: each chunk is an object (`zarr_metadata`)."""

from __future__ import annotations

from collections.abc import Sequence

from midstream_engine.checkpoint.chunk_grid import chunks_of

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
