"""AdamW as a chain of optax transformations."""

from __future__ import annotations

from typing import Any

import jax
import optax

from midstream_engine.config.optimizer import AdamConfig, OptimizerConfig
from midstream_engine.optim.schedule import Schedule

SCHEDULE = "schedule"  # the name of the chain's last part, which holds the count


def build_optimizer(config: OptimizerConfig, schedule: Schedule) -> optax.GradientTransformation:
    """Clip by the global norm, Adam, decoupled decay where the model's ``decayed`` says so, times the negative learning
    rate, which follows the count in the optimizer's own state.

    The parts are named, so that the names of what is saved do not change with clipping or decay switched on or off.
    """
    if not isinstance(config, AdamConfig):
        raise TypeError(f"no optimizer for {type(config).__name__}")
    parts: list[tuple[str, optax.GradientTransformation]] = []
    if config.max_grad_norm:
        parts.append(("clip", optax.clip_by_global_norm(config.max_grad_norm)))
    parts.append(("adam", optax.scale_by_adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon)))
    if config.weight_decay > 0:
        parts.append(("decay", optax.add_decayed_weights(config.weight_decay, mask=_decayed)))
    parts.append((SCHEDULE, optax.scale_by_learning_rate(schedule)))
    return optax.named_chain(*parts)


def _decayed(model: Any) -> Any:
    return model.decayed()


def schedule_count(optimizer_state: Any) -> jax.Array:
    """How many updates the optimizer's schedule has seen: what the next learning rate is taken from. int32 []."""
    return optimizer_state[SCHEDULE].count
