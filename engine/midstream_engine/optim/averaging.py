"""Averages of the model over updates, as a part of the training state."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp

from midstream_engine.array_types import PyTree
from midstream_engine.config.averaging import EmaDecaySqrtConfig, ModelAveragingConfig
from midstream_engine.optim.stored_dtypes import widened


class ModelAverage(eqx.Module):
    """An average of the model; both fields are saved.

    ``model`` has the shapes and shardings of the model, in float32: in less, an average over a thousand updates would
    not move. ``weight`` is the sum of all weights so far, float32 [], or None if the average does not need it.
    """

    model: PyTree
    weight: jax.Array | None


def start_average(config: ModelAveragingConfig | None, model: PyTree) -> ModelAverage | None:
    """Return the average before the first update: the model itself."""
    if config is None:
        return None
    weight = jnp.zeros((), jnp.float32) if isinstance(config, EmaDecaySqrtConfig) else None
    return ModelAverage(jax.tree.map(lambda leaf: leaf.copy(), widened(model)), weight)


def update_average(config: ModelAveragingConfig, average: ModelAverage, model: PyTree, step: jax.Array) -> ModelAverage:
    """Return the average after update ``step``, whose result is ``model``.

    ``step``: int32 [], from 0. Traceable.
    """
    if isinstance(config, EmaDecaySqrtConfig):
        assert average.weight is not None
        weight = raw_weight(config, step)
        total = average.weight + weight
        share = jnp.where(total > 0, weight / jnp.maximum(total, jnp.finfo(jnp.float32).tiny), 0.0)
    else:
        total, share = None, jnp.float32(1.0 - config.beta)

    def mix(old: jax.Array, new: jax.Array) -> jax.Array:
        return (old + share * (new.astype(jnp.float32) - old)).astype(old.dtype)

    return ModelAverage(jax.tree.map(mix, average.model, model), total)


def raw_weight(config: EmaDecaySqrtConfig, step: jax.Array) -> jax.Array:
    """Return the weight of update ``step``.

    1 - beta before ``switch_step``, then 1 - sqrt(part of ``decay_steps``).
    """
    done = jnp.clip((step - config.switch_step) / config.decay_steps, 0.0, 1.0)
    return jnp.where(step < config.switch_step, 1.0 - config.beta, 1.0 - jnp.sqrt(done)).astype(jnp.float32)
