"""SkipStep: skip updates whose loss or gradient norm is an outlier.

The method is that of OLMo (Groeneveld et al. 2024).
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from midstream_engine.array_types import OptimizerState, PyTree
from midstream_engine.config.optimizer import SkipStepConfig

_MIN_DEVIATION = 1e-6  # standard deviation: equal values do not make the next one an outlier
SKIP = "skipstep"  # its key in the optimizer's state


class SkipStepState(eqx.Module):
    """Last losses and gradient norms, in ring buffers. Saved.

    ``seen`` of them were written.
    """

    losses: jax.Array  # float32 [window]
    norms: jax.Array  # float32 [window]
    seen: jax.Array  # int32 []
    skipped: jax.Array  # int32 []: updates skipped so far


def skip_step(
    inner: optax.GradientTransformationExtraArgs, config: SkipStepConfig
) -> optax.GradientTransformationExtraArgs:
    """Wrap ``inner``, whose state is a dict, to skip outliers.

    The update of an outlier is zero, and the state is unchanged.

    An update is skipped if ``loss`` or ``gradient_norm`` (keyword arguments of ``update``) is above mean + sigma_factor
    x standard deviation (at least 1e-6, as in Levanter) of the window, or not finite. Nothing that is finite is skipped
    during the first max(2, window / 2) updates. Outliers enter the window, so that a lasting change is accepted
    eventually; values that are not finite do not.
    """
    window = config.rolling_interval_length

    def init(params: PyTree) -> dict[str, PyTree]:
        zeros, none = jnp.zeros(window, jnp.float32), jnp.zeros((), jnp.int32)
        started: PyTree = inner.init(params)
        return {**started, SKIP: SkipStepState(zeros, zeros, none, none)}

    def update(
        updates: PyTree, state: OptimizerState, params: PyTree = None, **extra: PyTree
    ) -> tuple[PyTree, dict[str, PyTree]]:
        past: SkipStepState = state[SKIP]
        loss, norm = extra["loss"], extra["gradient_norm"]
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        bad = stands_out(past.losses, loss, past.seen) | stands_out(past.norms, norm, past.seen) | ~finite
        before = {name: value for name, value in state.items() if name != SKIP}
        after: PyTree
        inner_updates, after = inner.update(updates, before, params, **extra)
        slot = past.seen % window
        noted = SkipStepState(
            losses=jnp.where(finite, past.losses.at[slot].set(loss), past.losses),
            norms=jnp.where(finite, past.norms.at[slot].set(norm), past.norms),
            seen=past.seen + finite,
            skipped=past.skipped + bad,
        )
        inner_updates = jax.tree.map(lambda leaf: jnp.where(bad, jnp.zeros_like(leaf), leaf), inner_updates)
        kept = jax.tree.map(lambda old, new: jnp.where(bad, old, new), before, dict(after))
        return inner_updates, {**kept, SKIP: noted}

    def stands_out(ring: jax.Array, value: jax.Array, count: jax.Array) -> jax.Array:
        filled = jnp.arange(window) < count
        number = jnp.maximum(jnp.minimum(count, window), 1)
        mean = jnp.sum(jnp.where(filled, ring, 0.0)) / number
        variance = jnp.sum(jnp.where(filled, (ring - mean) ** 2, 0.0)) / number
        limit = mean + config.sigma_factor * jnp.maximum(jnp.sqrt(variance), _MIN_DEVIATION)
        return (count >= max(2, window // 2)) & (value > limit)

    return optax.GradientTransformationExtraArgs(init, update)


def skipped(optimizer_state: OptimizerState) -> jax.Array | None:
    """Return the number of skipped updates, int32 []; None if none is ever skipped."""
    return optimizer_state[SKIP].skipped if SKIP in optimizer_state else None
