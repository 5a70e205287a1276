"""Writer of arrays as Levanter and Orbax store them: zarr 3 in OCDBT, or zarr 2."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from midstream_core.json_types import JsonObject
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.interop.errors import ConversionError


def write_array(
    directory: str,
    name: str,
    dtype: str,
    shape: tuple[int, ...],
    planes: Iterator[np.ndarray],
    *,
    zarr2: bool = False,
    axis: int = 0,
) -> None:
    """Write one array.

    Args:
        directory: Of the checkpoint.
        name: Path of the array in it.
        dtype: Its type, by numpy's name.
        shape: Its shape.
        planes: Its parts along ``axis``, without that axis, or all of it; memory has one.
        zarr2: The format of Levanter 1.2; else that of marin-levanter 0.2, and of Orbax.
        axis: See ``planes``.

    Raises:
        ConversionError: It cannot be written.
    """
    import tensorstore as ts  # loads slowly

    base = {"driver": "file", "path": os.path.abspath(directory) + "/"}
    first = next(planes)
    apart = first.ndim < len(shape)  # a plane is a chunk
    chunk = [1 if apart and place == axis else size for place, size in enumerate(shape)]
    spec: JsonObject
    if zarr2:
        spec = {
            "driver": "zarr", "kvstore": {**base, "path": os.path.join(base["path"], name) + "/"},
            "metadata": {"chunks": [max(size, 1) for size in chunk], "compressor": {"id": "zstd", "level": 1}},
        }  # fmt: skip
    else:
        spec = {
            "driver": "zarr3", "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"},
            "metadata": {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
                         "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]},
        }  # fmt: skip
    kind = numpy_dtype(dtype)
    try:
        store = ts.open(spec, create=True, dtype=kind, shape=list(shape)).result()
        place, plane = 0, first
        while True:
            (store[(slice(None),) * axis + (place,)] if apart else store).write(
                np.asarray(plane, kind, order="C")
            ).result()
            place += 1
            following = next(planes, None)
            if following is None:
                return
            plane = following
    except ValueError as error:
        raise ConversionError(f"{name}: cannot be written: {' '.join(str(error).split())[:200]}") from None
