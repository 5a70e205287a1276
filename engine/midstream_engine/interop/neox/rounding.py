"""Whether numbers are others, rounded."""

from __future__ import annotations

import ml_dtypes
import numpy as np

_BLOCK = 1 << 16  # numbers at a time: what the second cache holds


def rounded_to(numbers: np.ndarray, rounded: np.ndarray) -> bool:
    """Whether ``rounded`` is float32 ``numbers`` in its own dtype, to the bit. Both [n]."""
    if rounded.dtype != ml_dtypes.bfloat16:
        return np.array_equal(numbers if rounded.dtype == np.float32 else numbers.astype(rounded.dtype), rounded)
    return all(
        _bfloat16(numbers[start : start + _BLOCK], rounded[start : start + _BLOCK])
        for start in range(0, len(numbers), _BLOCK)
    )


def _bfloat16(numbers: np.ndarray, rounded: np.ndarray) -> bool:
    # To the nearest, and to the even one of two, in integers: ml_dtypes' conversion keeps all other threads waiting.
    bits, wanted = numbers.view(np.uint32), rounded.view(np.uint16)
    upper = bits >> 16
    nearest = ((upper & 1) + 0x7FFF + bits) >> 16
    if np.array_equal(nearest, wanted):
        return True
    # NaNs round in a way of their own.
    return np.array_equal(numbers.astype(ml_dtypes.bfloat16).view(np.uint16), wanted)
