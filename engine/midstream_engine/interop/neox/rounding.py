"""Rounding of float32 masters, to compare them with weights."""

from __future__ import annotations

import ml_dtypes
import numpy as np

_BLOCK = 1 << 16  # numbers at a time, which fit the L2 cache


def rounded_to(numbers: np.ndarray, rounded: np.ndarray) -> bool:
    """Return whether ``rounded`` is float32 ``numbers`` in its own dtype, bit for bit.

    Both are [n].
    """
    if rounded.dtype != ml_dtypes.bfloat16:
        return np.array_equal(numbers if rounded.dtype == np.float32 else numbers.astype(rounded.dtype), rounded)
    return all(
        _bfloat16(numbers[start : start + _BLOCK], rounded[start : start + _BLOCK])
        for start in range(0, len(numbers), _BLOCK)
    )


def _bfloat16(numbers: np.ndarray, rounded: np.ndarray) -> bool:
    # Round to nearest even in integers: ml_dtypes' conversion does not release the GIL.
    bits, expected = numbers.view(np.uint32), rounded.view(np.uint16)
    upper = bits >> 16
    nearest = ((upper & 1) + 0x7FFF + bits) >> 16
    if np.array_equal(nearest, expected):
        return True
    # NaNs have their own rounding.
    return np.array_equal(numbers.astype(ml_dtypes.bfloat16).view(np.uint16), expected)
