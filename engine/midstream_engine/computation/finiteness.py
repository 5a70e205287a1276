"""Finiteness of the numbers of a state, by array, inside the update's program."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from midstream_engine.array_types import Leaf, PyTree
from midstream_engine.checkpoint.array_names import flatten
from midstream_engine.models.sharding import mesh_platform

# Kinds of an array of floats, by its worst number.
FINITE, INFINITE, NAN = range(3)
_SHOWN = 2  # names of each kind
# Largest float32 times this, squared, and summed over 1e12 numbers, is still finite.
_SCALE = 2.0**-90


def number_kinds(tree: PyTree) -> jax.Array:
    """Return the kind of each array of floats in ``tree``, int32 [arrays]. Traceable.

    The order is that of `float_names`. The kind is NAN where an array has both NaN and infinity.
    """
    values = [array.value for array in flatten(tree).values() if _is_float(array.value)]
    if mesh_platform() != "cpu":
        return _kinds(values)
    # XLA for CPUs writes the scale as an array of each shape, at the beginning of the update: as many bytes as the
    # model has. Sums without it are finite, unless a number is not, or the squares are too large.
    finite = jnp.isfinite(sum(jnp.sum(jnp.square(_wide(value))) for value in values))
    return jax.lax.cond(finite, lambda: jnp.full(len(values), FINITE, jnp.int32), lambda: _kinds(values))


def float_names(tree: PyTree) -> list[str]:
    """Return the names in a checkpoint of the arrays of floats in ``tree``.

    ``tree`` has arrays, or their shapes.
    """
    return [name for name, array in flatten(tree).items() if _is_float(array.value)]


def names_by_kind(names: Sequence[str], kinds: np.ndarray) -> dict[str, list[str]]:
    """Return arrays that are not finite: ``{"NaN": [...], "infinity": [...]}``."""
    return {
        word: [name for name, present in zip(names, kinds, strict=True) if present == kind]
        for word, kind in (("NaN", NAN), ("infinity", INFINITE))
    }


def find_not_finite(tree: PyTree) -> dict[str, list[str]]:
    """Return `names_by_kind` of a state that came from no update.

    All processes of the arrays have to call it.
    """
    arrays = {name: array.value for name, array in flatten(tree).items() if _is_float(array.value)}
    return names_by_kind(list(arrays), np.asarray(jax.jit(_kinds)(list(arrays.values()))))


def describe(by_kind: dict[str, list[str]]) -> str:
    """Return ``NaN in A, B and 3 more arrays; infinity in C``."""
    return "; ".join(f"{kind} in {_listed(names)}" for kind, names in by_kind.items() if names)


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more array{'s' if more > 1 else ''}" if more > 0 else "")


def _is_float(value: Leaf) -> bool:
    return jnp.issubdtype(value.dtype, jnp.floating)


def _kinds(values: Sequence[jax.Array]) -> jax.Array:
    sums = jnp.stack([_sum(value) for value in values])
    return jnp.where(jnp.isnan(sums), NAN, jnp.where(jnp.isinf(sums), INFINITE, FINITE)).astype(jnp.int32)


def _sum(value: jax.Array) -> jax.Array:
    """Return a sum, float32 [], that is NaN or infinite exactly where a number is.

    Sums of squares, because XLA for CPUs vectorises these, and not reductions of comparisons, which take four times as
    long; and because every collective library adds NaN correctly, while some drop it from a maximum.
    """
    return jnp.sum(jnp.square(_wide(value) * _SCALE))


def _wide(value: jax.Array) -> jax.Array:
    """Return numbers in float32 that are NaN or infinite where those of ``value`` are.

    Read from the bits of two-byte numbers: XLA may replace a number that was rounded to them by the one before, which
    need not be infinite.
    """
    if value.dtype == jnp.bfloat16:
        bits = jax.lax.bitcast_convert_type(value, jnp.uint16).astype(jnp.uint32)
        return jax.lax.bitcast_convert_type(bits << 16, jnp.float32)
    if value.dtype == jnp.float16:
        magnitude, full = jax.lax.bitcast_convert_type(value, jnp.uint16) & 0x7FFF, 0x7C00
        return jnp.where(magnitude < full, 0.0, jnp.where(magnitude == full, jnp.inf, jnp.nan)).astype(jnp.float32)
    return value.astype(jnp.float32)
