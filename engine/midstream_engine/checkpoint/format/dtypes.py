"""The element types of the format, under the three names that they go by."""

from __future__ import annotations

import ml_dtypes
import numpy as np

# numpy's (and zarr's) name -> safetensors' name.
SAFETENSORS = {
    "bool": "BOOL",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}


def numpy_dtype(name: str) -> np.dtype:
    """The little-endian numpy dtype called ``name``. ValueError for one that the format does not have."""
    if name not in SAFETENSORS:
        raise ValueError(f"dtype {name!r} cannot be stored: the format has {', '.join(SAFETENSORS)}")
    if name == "bfloat16":
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name).newbyteorder("<")
