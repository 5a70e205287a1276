"""``small.safetensors``: the arrays that are too small for objects of their own.

Names are sorted and data follow each other without gaps, so that the same arrays are the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from midstream_core.records import ArrayEntry
from midstream_core.safetensors_header import make_header, read_header
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.errors import CheckpointCorruptError
from midstream_engine.checkpoint.host_buffers import bytes_of


def pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the file's bytes."""
    names = sorted(arrays)
    header = make_header((name, arrays[name].dtype.name, arrays[name].shape) for name in names)
    return b"".join([header, *(bytes_of(arrays[name]) for name in names)])


def unpack(raw: memoryview | bytes) -> dict[str, np.ndarray]:
    """Return the arrays by name, as read-only views.

    Raises:
        ValueError: The file is malformed.
    """
    view = memoryview(raw).toreadonly()
    return {
        name: np.frombuffer(view[entry.start : entry.stop], numpy_dtype(entry.dtype)).reshape(entry.shape)
        for name, entry in read_header(view).items()
    }


def unpack_entries(what: str, raw: memoryview, entries: Sequence[ArrayEntry]) -> list[tuple[ArrayEntry, np.ndarray]]:
    """Return the arrays of these entries of a manifest, with their entries.

    Raises:
        CheckpointCorruptError: The file is malformed, or an array differs from its entry; the message begins with
            ``what``.
    """
    try:
        arrays = unpack(raw)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointCorruptError(f"{what}: {error}") from error
    for entry in entries:
        array = arrays.get(entry.name)
        if array is None or list(array.shape) != entry.shape or array.dtype != numpy_dtype(entry.dtype):
            raise CheckpointCorruptError(f"{what}: {entry.name} differs from the manifest")
    return [(entry, arrays[entry.name]) for entry in entries]
