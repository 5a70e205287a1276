"""Layers in 16 bits whose parameters get gradients that are summed in float32.

The setting is ``trainer.gradient_reduce_dtype``.

A parameter that is cast before the model gets the gradient of its cast: the sums over the batch, over devices too, have
the bits of the computation. Here the parameter stays as it is, and each layer casts it where it is used. Functions with
a parameter in the precision of the activations are the plain ones.
"""

from __future__ import annotations

from functools import partial

import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray
from jax.typing import DTypeLike

from midstream_engine.array_types import Leaf, PyTree
from midstream_engine.models.row_product import row_product
from midstream_engine.models.sharding import at_rest


def is_wide(parameter: NamedArray, x: NamedArray) -> bool:
    """Return whether a parameter has more bits than the activations."""
    return jnp.finfo(parameter.dtype).bits > jnp.finfo(x.dtype).bits


def added(x: NamedArray, parameter: NamedArray) -> NamedArray:
    """Return ``x + parameter`` in the precision of ``x``."""
    return (x.astype(parameter.dtype) + parameter).astype(x.dtype) if is_wide(parameter, x) else x + parameter


def multiplied(x: NamedArray, parameter: NamedArray) -> NamedArray:
    """Return ``x * parameter`` in the precision of ``x``."""
    return (x.astype(parameter.dtype) * parameter).astype(x.dtype) if is_wide(parameter, x) else x * parameter


def product(x: NamedArray, weight: NamedArray, In: tuple[Axis, ...]) -> NamedArray:
    """Return the product over ``In`` in the precision of ``x``.

    Args:
        x: [..., In...].
        weight: [In..., Out...].
        In: The axes that both have.
    """
    return _product(In, x, weight) if is_wide(weight, x) else row_product(x, weight, In)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(In: tuple[Axis, ...], x: NamedArray, weight: NamedArray) -> NamedArray:
    return hax.dot(x, at_rest(weight.astype(x.dtype)), axis=In)


def _product_forward(In: tuple[Axis, ...], x: NamedArray, weight: NamedArray) -> tuple[NamedArray, PyTree]:
    return _product(In, x, weight), (x, weight)


def _product_backward(In: tuple[Axis, ...], saved: PyTree, gradient: NamedArray) -> tuple[NamedArray, NamedArray]:
    x, weight = saved
    narrow = at_rest(weight.astype(x.dtype))
    to_x = hax.dot(gradient, narrow, axis=tuple(axis for axis in weight.axes if axis not in In))
    over = tuple(axis for axis in x.axes if axis not in In)
    to_weight = hax.dot(x, gradient, axis=over, preferred_element_type=weight.dtype)
    return to_x.rearrange(x.axes), to_weight.rearrange(weight.axes)


_product.defvjp(_product_forward, _product_backward)


def lookup(weight: NamedArray, Rows: Axis, index: NamedArray, dtype: DTypeLike | None) -> NamedArray:
    """Return the rows ``index`` of ``weight``, in ``dtype`` (None: its own)."""
    if dtype is None or jnp.dtype(dtype) == weight.dtype:
        return weight.take(Rows, index)
    return _lookup((Rows, jnp.dtype(dtype)), weight, index)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _lookup(settings: tuple[Axis, Leaf], weight: NamedArray, index: NamedArray) -> NamedArray:
    Rows, dtype = settings
    return at_rest(weight.astype(dtype)).take(Rows, index)


def _lookup_forward(settings: tuple[Axis, Leaf], weight: NamedArray, index: NamedArray) -> tuple[NamedArray, PyTree]:
    return _lookup(settings, weight, index), (weight, index)


def _lookup_backward(settings: tuple[Axis, Leaf], saved: PyTree, gradient: NamedArray) -> tuple[NamedArray, None]:
    weight, index = saved
    _, transposed = jax.vjp(lambda table: table.take(settings[0], index), weight)
    return transposed(gradient.astype(weight.dtype))[0], None


_lookup.defvjp(_lookup_forward, _lookup_backward)
