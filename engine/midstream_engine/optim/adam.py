"""AdamW as a chain of optax transformations."""

from __future__ import annotations

from typing import Any

import jax
import optax

from midstream_engine.config.optimizer import AdamConfig, OptimizerConfig
from midstream_engine.optim.decay import decay_mask
from midstream_engine.optim.schedule import Schedule
from midstream_engine.optim.skip_step import skip_step

ADAM = "adam"  # the name of the part that holds the moments
SCHEDULE = "schedule"  # the name of the chain's last part, which holds the count


def build_optimizer(config: OptimizerConfig, schedule: Schedule) -> optax.GradientTransformationExtraArgs:
    """Clip by the global norm, Adam, decoupled decay where ``decay_mask`` says so, times the negative learning rate,
    which follows the count in the optimizer's own state. ``update`` takes ``loss`` and ``gradient_norm``, float32 [].

    The parts are named, so that the names of what is saved do not change with clipping or decay switched on or off. An
    update that SkipStep leaves out counts in the schedule all the same: it is a step of the run.
    """
    if not isinstance(config, AdamConfig):
        raise TypeError(f"no optimizer for {type(config).__name__}")
    parts: list[tuple[str, optax.GradientTransformation]] = []
    if config.max_grad_norm:
        parts.append(("clip", optax.clip_by_global_norm(config.max_grad_norm)))
    adam = optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon, nesterov=config.nesterov)
    parts.append((ADAM, adam))
    if config.weight_decay > 0:
        parts.append(("decay", optax.add_decayed_weights(config.weight_decay, mask=decay_mask(config))))
    inner = optax.named_chain(*parts)
    skip = config.skip_step()
    return _scaled(inner if skip is None else skip_step(inner, skip), schedule)


def _scaled(inner: optax.GradientTransformationExtraArgs, schedule: Schedule) -> optax.GradientTransformationExtraArgs:
    """``inner``, whose state is a dict, times the negative learning rate, whose count stands beside it."""
    scale = optax.scale_by_learning_rate(schedule)

    def init(params: Any) -> dict[str, Any]:
        started: Any = inner.init(params)
        return {**started, SCHEDULE: scale.init(params)}

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, dict[str, Any]]:
        before = {name: part for name, part in state.items() if name != SCHEDULE}
        after: Any
        updates, after = inner.update(updates, before, params, **extra)
        updates, count = scale.update(updates, state[SCHEDULE], params)
        return updates, {**after, SCHEDULE: count}

    return optax.GradientTransformationExtraArgs(init, update)


def schedule_count(optimizer_state: Any) -> jax.Array:
    """How many updates the optimizer's schedule has seen: what the next learning rate is taken from. int32 []."""
    return optimizer_state[SCHEDULE].count


def adam_count(optimizer_state: Any) -> jax.Array:
    """How many updates are in Adam's moments: those that SkipStep left out are not. int32 []."""
    return optimizer_state[ADAM].count
