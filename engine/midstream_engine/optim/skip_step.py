"""SkipStep: updates whose loss or gradient norm stands out are left out (OLMo, Groeneveld et al. 2024)."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from midstream_engine.config.optimizer import SkipStepConfig

SKIP = "skipstep"  # its place in the optimizer's state


class SkipStepState(eqx.Module):
    """The last losses and gradient norms, in a ring; ``seen`` of them were written. Part of what is saved."""

    losses: jax.Array  # float32 [window]
    norms: jax.Array  # float32 [window]
    seen: jax.Array  # int32 []
    skipped: jax.Array  # int32 []: updates left out so far


def skip_step(
    inner: optax.GradientTransformationExtraArgs, config: SkipStepConfig
) -> optax.GradientTransformationExtraArgs:
    """``inner``, whose state is a dict, with zero updates and an unchanged state where ``loss`` or ``gradient_norm``
    (keyword arguments of ``update``) is above mean + sigma_factor x standard deviation of the window, or not finite.

    Nothing is left out before max(2, window / 2) updates were seen. What stands out enters the window all the same, so
    that a lasting change is accepted in the end; what is not finite does not.
    """
    window = config.rolling_interval_length

    def init(params: Any) -> dict[str, Any]:
        zeros, none = jnp.zeros(window, jnp.float32), jnp.zeros((), jnp.int32)
        started: Any = inner.init(params)
        return {**started, SKIP: SkipStepState(zeros, zeros, none, none)}

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, dict[str, Any]]:
        past: SkipStepState = state[SKIP]
        loss, norm = extra["loss"], extra["gradient_norm"]
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        bad = stands_out(past.losses, loss, past.seen) | stands_out(past.norms, norm, past.seen) | ~finite
        before = {name: part for name, part in state.items() if name != SKIP}
        after: Any
        wanted, after = inner.update(updates, before, params, **extra)
        place = past.seen % window
        noted = SkipStepState(
            losses=jnp.where(finite, past.losses.at[place].set(loss), past.losses),
            norms=jnp.where(finite, past.norms.at[place].set(norm), past.norms),
            seen=past.seen + finite,
            skipped=past.skipped + bad,
        )
        wanted = jax.tree.map(lambda leaf: jnp.where(bad, jnp.zeros_like(leaf), leaf), wanted)
        kept = jax.tree.map(lambda old, new: jnp.where(bad, old, new), before, dict(after))
        return wanted, {**kept, SKIP: noted}

    def stands_out(ring: jax.Array, value: jax.Array, count: jax.Array) -> jax.Array:
        filled = jnp.arange(window) < count
        number = jnp.maximum(jnp.minimum(count, window), 1)
        mean = jnp.sum(jnp.where(filled, ring, 0.0)) / number
        variance = jnp.sum(jnp.where(filled, (ring - mean) ** 2, 0.0)) / number
        return (count >= max(2, window // 2)) & (value > mean + config.sigma_factor * jnp.sqrt(variance))

    return optax.GradientTransformationExtraArgs(init, update)


def skipped(optimizer_state: Any) -> jax.Array | None:
    """How many updates were left out so far, int32 []; None where none is ever."""
    return optimizer_state[SKIP].skipped if SKIP in optimizer_state else None
