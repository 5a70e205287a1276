"""Completeness of a manifest: arrays and objects match.

Every array has all objects of its grid, and every object belongs to an array.
"""

from __future__ import annotations

import math

from midstream_core.records import MANIFEST, PACKED, TRAIN, ArrayEntry, Manifest
from midstream_engine.checkpoint import zarr
from midstream_engine.checkpoint.chunk_grid import chunk_shape
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.errors import CheckpointCorruptError


def check_layout(where: str, manifest: Manifest) -> None:
    """Check that the manifest is complete.

    Raises:
        CheckpointCorruptError: The manifest is not complete; the message names the array or object.
    """
    sizes = {entry.path: entry.size for entry in manifest.object_entries}
    if len(sizes) != len(manifest.objects):
        raise CheckpointCorruptError(f"{where}: {MANIFEST} lists an object twice")
    arrays = manifest.array_entries
    if len({entry.name for entry in arrays}) != len(arrays):
        raise CheckpointCorruptError(f"{where}: {MANIFEST} lists an array twice")
    used = {TRAIN}
    if TRAIN not in sizes:
        raise CheckpointCorruptError(f"{where}: {MANIFEST} lacks {TRAIN}")
    for entry in arrays:
        flaw = _flaw(entry, sizes)
        if flaw:
            raise CheckpointCorruptError(f"{where}: {MANIFEST}: array {entry.name}: {flaw}")
        used |= set(entry.objects)
    unused = sorted(sizes.keys() - used)
    if unused:
        raise CheckpointCorruptError(f"{where}: {MANIFEST}: object {unused[0]} belongs to no array")


def _flaw(entry: ArrayEntry, sizes: dict[str, int]) -> str:
    try:
        itemsize = numpy_dtype(entry.dtype).itemsize
        chunk_size = math.prod(chunk_shape(entry.shape, entry.grid)) * itemsize + 4 if entry.grid else 0
    except ValueError as error:
        return str(error)
    if len(entry.axes) != len(entry.shape):
        return "axes and shape differ in length"
    expected = zarr.object_paths(entry.name, entry.shape, entry.grid) if entry.grid else [PACKED]
    if entry.objects != expected:
        return "its objects are not those of its grid"
    for path in expected:
        if path not in sizes:
            return f"object {path} is not listed"
        if entry.grid and path != zarr.metadata_path(entry.name) and sizes[path] != chunk_size:
            return f"object {path} has {sizes[path]} bytes, its chunk {chunk_size}"
    return ""
