"""Numbers of an import: finite, and the same in the types of state and source."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from midstream_engine.interop.errors import ConversionError

_BLOCK = 1 << 20  # numbers that are compared at a time
# A cast from the first to one of the others keeps every number.
_EXACT = {"bfloat16": ("float32", "float64"), "float16": ("float32", "float64"), "float32": ("float64",)}


def checked(name: str, data: np.ndarray, dtype: np.dtype, *, rounds: bool = False) -> np.ndarray:
    """Return ``data`` as ``dtype``; the array itself if it has that type.

    Args:
        name: Of the array, for messages.
        data: Its contents, or a part of them.
        dtype: Of the state.
        rounds: Whether the user agreed to rounding.

    Raises:
        ConversionError: A number is not finite, or another one in ``dtype``.
    """
    check_finite(name, data)
    if data.dtype == dtype:
        return data
    with np.errstate(over="ignore"):
        result = data.astype(dtype)
    if rounds:
        check_finite(f"{name} as {dtype.name}", result)
    elif dtype.name not in _EXACT.get(data.dtype.name, ()):
        changed = sum(
            np.count_nonzero(after.astype(data.dtype) != before)
            for before, after in zip(_blocks(data), _blocks(result), strict=True)
        )
        if changed:
            raise ConversionError(
                f"{name}: {changed} of {data.size} numbers are {data.dtype.name} and would be rounded to {dtype.name}"
                + (f" (hint: --cast-parameters {dtype.name} allows that)" if name.startswith("model/") else "")
            )
    return result


def check_finite(name: str, data: np.ndarray) -> None:
    """Check that every number is finite.

    Raises:
        ConversionError: One is NaN or infinite.
    """
    if not _is_float(data.dtype):
        return
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.add.reduce(data, axis=None, dtype=np.float32 if data.dtype.itemsize < 4 else None)
    if np.isfinite(total):
        return
    # A sum may overflow where no number does.
    kinds = [kind for kind, is_kind in (("NaN", np.isnan), ("infinity", np.isinf)) if is_kind(data).any()]
    if kinds:
        raise ConversionError(f"{name} has {' and '.join(kinds)}: a state that is not finite is not imported")


def common_dtype(dtypes: set[str]) -> str:
    """Return the narrowest type, at most float32, that has every number of ``dtypes``."""
    return next(iter(dtypes)) if len(dtypes) == 1 and dtypes <= {"bfloat16", "float16"} else "float32"


def _blocks(array: np.ndarray) -> list[np.ndarray]:
    flat = array.reshape(-1)
    return [flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK)]


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype == ml_dtypes.bfloat16
