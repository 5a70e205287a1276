"""The element types of the format."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from midstream_core.safetensors_header import NAMES


def numpy_dtype(name: str) -> np.dtype:
    """Return the little-endian numpy dtype called ``name``.

    Raises:
        ValueError: The format does not have it.
    """
    if name not in NAMES:
        raise ValueError(f"dtype {name!r} cannot be stored: the format has {', '.join(NAMES)}")
    if name == "bfloat16":
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name).newbyteorder("<")
