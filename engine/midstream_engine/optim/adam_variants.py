"""Variants of Adam in the forms that Levanter has, with Adam's state."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from midstream_engine.array_types import OptimizerState, PyTree
from midstream_engine.config.adam_variants import AdoptConfig, CautiousConfig
from midstream_engine.optim.stored_dtypes import stored_as

ADOPT, CAUTIOUS = "adopt", "cautious"  # the names of the parts that hold the moments


def adopt(config: AdoptConfig) -> optax.GradientTransformation:
    """Return ADOPT without clipping, decay and learning rate.

    The gradient is divided by the root of the mean of squares *before* it, and then averaged (Taniguchi et al. 2024,
    algorithm 1). Levanter corrects both means for their start at 0, as Adam does, and clips nothing; its first update
    is 0. ``optax.contrib.adopt`` corrects neither.
    """

    def update(updates: PyTree, state: OptimizerState, params: PyTree = None) -> tuple[PyTree, optax.ScaleByAdamState]:
        del params
        past: optax.ScaleByAdamState = state
        first, later = past.count == 0, jnp.maximum(past.count, 1)
        squares = optax.tree.bias_correction(past.nu, config.beta2, later)

        def divided(gradient: jax.Array, square: jax.Array) -> jax.Array:
            return jnp.where(first, 0.0, gradient / (jnp.sqrt(square) + config.epsilon))

        count = optax.safe_increment(past.count)
        mu = optax.tree.update_moment(jax.tree.map(divided, updates, squares), past.mu, config.beta1, 1)
        nu = optax.tree.update_moment_per_elem_norm(updates, past.nu, config.beta2, 2)
        return optax.tree.bias_correction(mu, config.beta1, count), optax.ScaleByAdamState(count=count, mu=mu, nu=nu)

    return _float32(update)


def cautious(config: CautiousConfig) -> optax.GradientTransformation:
    """Return cautious Adam without clipping, decay and learning rate.

    Adam's update u is 0 where u * g <= 0 (g: the gradient); of each array the rest is divided by the part of its
    elements that remain, plus epsilon (Liang et al., arXiv 2411.16085, 2024, algorithm 1). Stacked layers are one
    array.
    """
    adam = optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon)

    def update(updates: PyTree, state: OptimizerState, params: PyTree = None) -> tuple[PyTree, optax.ScaleByAdamState]:
        weight_decay: PyTree
        after: PyTree
        weight_decay, after = adam.update(updates, state, params)

        def kept(change: jax.Array, gradient: jax.Array) -> jax.Array:
            same = (change * gradient > 0).astype(change.dtype)
            return change * same / (jnp.mean(same) + config.epsilon)

        return jax.tree.map(kept, weight_decay, updates), after

    return _float32(update)


def _float32(update: PyTree) -> optax.GradientTransformation:
    """Return ``update`` with Adam's state, whose moments are float32."""
    return stored_as(optax.GradientTransformation(optax.scale_by_adam().init, update), mu="float32", nu="float32")
