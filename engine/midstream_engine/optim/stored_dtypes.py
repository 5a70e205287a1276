"""Optimizers whose state and parameters may be stored in less than float32.

The arithmetic is float32.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from midstream_engine.array_types import Leaf, OptimizerState, PyTree


def computed_in_float32(inner: optax.GradientTransformationExtraArgs) -> optax.GradientTransformationExtraArgs:
    """Wrap ``inner`` to compute in float32; its state keeps its dtypes.

    Each array of the new state has the dtype that it had in the old one.

    Without that, optax returns what JAX's promotion gives: the mean of gradients of a bfloat16 state as float32.
    """

    def update(updates: PyTree, state: OptimizerState, params: PyTree = None, **extra: object) -> tuple[PyTree, PyTree]:
        wide, after = inner.update(widened(updates), widened(state), widened(params), **extra)
        return wide, jax.tree.map(lambda new, old: new.astype(old.dtype), after, state)

    return optax.GradientTransformationExtraArgs(inner.init, update)


def stored_as(inner: optax.GradientTransformation, **dtypes: str) -> optax.GradientTransformation:
    """Wrap ``inner`` to begin with fields of its state in ``dtypes``.

    The state is a named tuple; its fields are, for example, ``mu`` and ``nu``.
    """

    def init(params: PyTree) -> PyTree:
        state: OptimizerState = inner.init(params)
        fields = {name: optax.tree.cast(getattr(state, name), dtype) for name, dtype in dtypes.items()}
        return state._replace(**fields)

    return optax.GradientTransformation(init, inner.update)


def widened(tree: PyTree) -> PyTree:
    """Return ``tree`` with every floating-point array below float32 as float32."""

    def widen(leaf: Leaf) -> PyTree:
        narrow = (
            jnp.issubdtype(leaf.dtype, jnp.floating)
            and jnp.dtype(leaf.dtype).itemsize < jnp.dtype(jnp.float32).itemsize
        )
        return leaf.astype(jnp.float32) if narrow else leaf

    return jax.tree.map(widen, tree)
