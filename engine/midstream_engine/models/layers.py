"""Layers of the models, on named axes.

Of haliax's modules only ``Stacked`` is used.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis, NamedArray
from jax.typing import DTypeLike
from jaxtyping import PRNGKeyArray

from midstream_engine.array_types import Leaf, PyTree
from midstream_engine.models import wide_gradients
from midstream_engine.models.random_keys import key_of

_DRAWS = 12


def normal(key: PRNGKeyArray, axes: Sequence[Axis], deviation: float) -> NamedArray:
    """Return normal numbers with standard deviation ``deviation``, in float32.

    The numbers are sums of twelve 16-bit uniform integers (Irwin-Hall), scaled by one multiplication, and at most 6
    deviations from 0. Everything before the multiplication is integer arithmetic, so the numbers are bit-identical on
    any mesh, compiler and accelerator; the usual inverse error function is not.
    """
    shape = tuple(axis.size for axis in axes)

    def add(draw: jax.Array, total: jax.Array) -> jax.Array:
        return total + jax.random.bits(jax.random.fold_in(key, draw), shape, jnp.uint16).astype(jnp.int32)

    total = jax.lax.fori_loop(0, _DRAWS, add, jnp.zeros(shape, jnp.int32))
    centred = 2 * total - _DRAWS * 0xFFFF  # variance: 12 * 4 * (65536^2 - 1) / 12
    return hax.named(centred.astype(jnp.float32) * (deviation / (2 * math.sqrt(65536.0**2 - 1))), tuple(axes))


class Linear(eqx.Module):
    """A linear map: ``weight`` [In..., Out...], ``bias`` [Out...] or None."""

    weight: NamedArray
    bias: NamedArray | None
    In: tuple[Axis, ...] = eqx.field(static=True)
    Out: tuple[Axis, ...] = eqx.field(static=True)

    @classmethod
    def init(
        cls, In: Sequence[Axis], Out: Sequence[Axis], *, key: PRNGKeyArray, scale: float, use_bias: bool = True
    ) -> Linear:
        """Return normal weights with standard deviation ``scale``; the bias is zero.

        Args:
            In: Axes of the input.
            Out: Axes of the output.
            key: Random key.
            scale: Standard deviation of the weights.
            use_bias: Whether there is a bias.
        """
        weight = normal(key, (*In, *Out), scale)
        return cls(weight, hax.zeros(tuple(Out)) if use_bias else None, tuple(In), tuple(Out))

    def __call__(self, x: NamedArray) -> NamedArray:
        """Map [..., In...] to [..., Out...]."""
        y = wide_gradients.product(x, self.weight, self.In)
        return y if self.bias is None else wide_gradients.added(y, self.bias)


class LayerNorm(eqx.Module):
    """LayerNorm over one axis, always in float32 (Ba, Kiros & Hinton 2016)."""

    weight: NamedArray
    bias: NamedArray | None
    axis: Axis = eqx.field(static=True)
    epsilon: float = eqx.field(static=True)

    @classmethod
    def init(cls, axis: Axis, epsilon: float, use_bias: bool = True) -> LayerNorm:
        return cls(hax.ones(axis), hax.zeros(axis) if use_bias else None, axis, epsilon)

    def __call__(self, x: NamedArray) -> NamedArray:
        wide = x.astype(jnp.float32)
        centred = wide - hax.mean(wide, self.axis)
        variance = hax.mean(centred * centred, self.axis)
        y = wide_gradients.multiplied((centred * hax.rsqrt(variance + self.epsilon)).astype(x.dtype), self.weight)
        return y if self.bias is None else wide_gradients.added(y, self.bias)


class RmsNorm(eqx.Module):
    """RMSNorm over one axis, always in float32 (Zhang & Sennrich 2019).

    The divisor is sqrt(mean(x^2) + ``epsilon``), or with ``outside`` sqrt(mean(x^2)) + ``epsilon``.
    """

    weight: NamedArray | None
    axis: Axis = eqx.field(static=True)
    epsilon: float = eqx.field(static=True)
    outside: bool = eqx.field(static=True, default=False)

    @classmethod
    def init(cls, axis: Axis, epsilon: float, use_weight: bool = True, outside: bool = False) -> RmsNorm:
        return cls(hax.ones(axis) if use_weight else None, axis, epsilon, outside)

    def __call__(self, x: NamedArray) -> NamedArray:
        wide = x.astype(jnp.float32)
        mean = hax.mean(wide * wide, self.axis)
        if self.outside:  # the smallest normal number keeps the root's derivative finite at 0
            root = hax.sqrt(hax.named(jnp.maximum(mean.array, float(np.finfo(np.float32).tiny)), mean.axes))
            y = (wide / (root + self.epsilon)).astype(x.dtype)
        else:
            y = (wide * hax.rsqrt(mean + self.epsilon)).astype(x.dtype)
        return y if self.weight is None else wide_gradients.multiplied(y, self.weight)


class Embedding(eqx.Module):
    """A lookup table ``weight`` [rows, columns]."""

    weight: NamedArray
    Rows: Axis = eqx.field(static=True)
    dtype: DTypeLike | None = eqx.field(static=True, default=None)  # of the rows; None: that of the weight

    @classmethod
    def init(cls, Rows: Axis, Columns: Axis, *, key: PRNGKeyArray, scale: float) -> Embedding:
        return cls(normal(key, (Rows, Columns), scale), Rows)

    def __call__(self, index: NamedArray) -> NamedArray:
        """Map integers [...] to [..., columns]."""
        return wide_gradients.lookup(self.weight, self.Rows, index, self.dtype)


def computed_in(model: PyTree, dtype: DTypeLike) -> PyTree:
    """Return a model whose layers compute in ``dtype``.

    Parameters, and gradients of them, stay in their own precision.

    See :mod:`midstream_engine.models.wide_gradients`.
    """

    def computed(node: Leaf) -> PyTree:
        return dataclasses.replace(node, dtype=jnp.dtype(dtype)) if isinstance(node, Embedding) else node

    return jax.tree.map(computed, model, is_leaf=lambda node: isinstance(node, Embedding))


def activation(name: str) -> Callable[[NamedArray], NamedArray]:
    """Return one of ``config.model.ACTIVATIONS``, elementwise.

    The backward pass stores its argument alone. Otherwise a layer that is not computed again would store
    each intermediate result, six for ``gelu_new``.
    """
    return jax.checkpoint(_activation(name), prevent_cse=False)  # computed once where its layer is computed again


def _activation(name: str) -> Callable[[NamedArray], NamedArray]:
    match name:
        case "gelu_new":
            return lambda x: hax.nn.gelu(x, approximate=True)
        case "gelu":
            return lambda x: hax.nn.gelu(x, approximate=False)
        case "relu":
            return hax.nn.relu
        case "silu":
            return hax.nn.silu
    raise ValueError(f"no activation {name!r}")


def dropout(x: NamedArray, rate: float, Batch: Axis, keys: NamedArray | None, site: int | jax.Array) -> NamedArray:
    """Zero each element of ``x`` with probability ``rate`` and scale up the rest.

    The mask depends on the example alone: not on its position in a micro-batch, and not on its device.

    Args:
        x: The array, with ``Batch``.
        rate: Probability of a zero.
        Batch: Axis of the examples.
        keys: One key per example, uint32 [Batch, "key"]; None returns ``x`` itself.
        site: Number that distinguishes the uses in a model.
    """
    if keys is None or rate == 0.0:
        return x
    others = tuple(axis for axis in x.axes if axis.name != Batch.name)
    shape = tuple(axis.size for axis in others)

    def keep(key: jax.Array) -> jax.Array:
        return jax.random.bernoulli(jax.random.fold_in(key_of(key), site), 1.0 - rate, shape)

    mask = hax.named(jax.vmap(keep)(keys.rearrange((Batch.name, "key")).array), (Batch, *others))
    return hax.where(mask, x / (1.0 - rate), 0.0).rearrange(x.axes)
