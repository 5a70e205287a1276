"""Limits on an update, after Adam and weight decay, before the learning rate."""

from __future__ import annotations

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import optax
from haliax import NamedArray

from midstream_engine.array_types import Leaf, OptimizerState, PyTree
from midstream_engine.config.optimizer import ClipUpdateNormConfig
from midstream_engine.models.stacked_layers import LAYERS

CLIP = "clip_update_norm"  # the key of its state in the optimizer's state
_LEAST_DEVIATION = 1e-6


def clip_by_rms(threshold: float) -> optax.GradientTransformation:
    """Scale each array's update down to a root mean square of ``threshold``.

    Of stacked layers, each layer's update is scaled.

    u / max(1, rms(u) / threshold): Shazeer & Stern, "Adafactor", 2018, section 6, which StableAdamW adopts (Wortsman et
    al. 2023); ``optax.clip_by_block_rms`` for models without stacked layers.
    """

    def clipped(update: PyTree) -> PyTree:
        if not isinstance(update, NamedArray):
            return update / jnp.maximum(1.0, jnp.sqrt(jnp.mean(update * update)) / threshold)
        inner = tuple(axis for axis in update.axes if axis.name != LAYERS)
        size: Leaf = hax.sqrt(hax.mean(update * update, inner))
        return update / hax.maximum(1.0, size / threshold)

    def update_fn(updates: PyTree, state: OptimizerState, params: PyTree = None) -> tuple[PyTree, PyTree]:
        del params
        return jax.tree.map(clipped, updates, is_leaf=lambda node: isinstance(node, NamedArray)), state

    return optax.GradientTransformation(optax.init_empty_state, update_fn)


class ClipUpdateState(eqx.Module):
    """Norms of the last updates before clipping, in a ring buffer. Saved.

    ``seen`` of them were written.
    """

    norms: jax.Array  # float32 [window]
    seen: jax.Array  # int32 []


def clip_by_recent_norms(config: ClipUpdateNormConfig) -> optax.GradientTransformation:
    """Scale an update down to a limit by the norms of the recent ones.

    The limit is their mean plus ``sigma_factor`` standard deviations.

    Nothing is clipped before max(2, window / 2) norms are known. The norm before clipping enters the window, so that
    the limit follows a lasting change; one that is not finite does not. The formula is that of Levanter's
    ``clip_update_by_historical_norm``.
    """
    window = config.rolling_interval_length

    def init(params: PyTree) -> ClipUpdateState:
        del params
        return ClipUpdateState(jnp.zeros(window, jnp.float32), jnp.zeros((), jnp.int32))

    def update_fn(updates: PyTree, state: ClipUpdateState, params: PyTree = None) -> tuple[PyTree, ClipUpdateState]:
        del params
        norm = optax.tree.norm(updates)
        filled = jnp.arange(window) < state.seen
        number = jnp.maximum(jnp.minimum(state.seen, window), 1)
        mean = jnp.sum(jnp.where(filled, state.norms, 0.0)) / number
        variance = jnp.sum(jnp.where(filled, (state.norms - mean) ** 2, 0.0)) / number
        limit = mean + config.sigma_factor * jnp.maximum(jnp.sqrt(variance), _LEAST_DEVIATION)
        above = (state.seen >= max(2, window // 2)) & (norm > limit)
        scale = jnp.where(above, limit / jnp.maximum(norm, _LEAST_DEVIATION), 1.0)
        finite = jnp.isfinite(norm)
        norms = jnp.where(finite, state.norms.at[state.seen % window].set(norm), state.norms)
        return jax.tree.map(lambda leaf: leaf * scale, updates), ClipUpdateState(norms, state.seen + finite)

    return optax.GradientTransformation(init, update_fn)  # pyright: ignore[reportArgumentType]
