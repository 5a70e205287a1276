"""The learning rate at each update, in jax.

The parts and formulas are in ``midstream_core/arithmetic/learning_rate.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from midstream_core.learning_rate import Functions, ScheduleError, rate_parts, rate_settings
from midstream_engine.array_types import Leaf
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.optimizer import OptimizerConfig

Schedule = Callable[[Leaf], jax.Array]  # count, int32 [] or a number -> float32 []
FUNCTIONS = Functions(jnp.cos, jnp.sqrt, jnp.minimum, jnp.maximum, jnp.divide)


def learning_rate(config: OptimizerConfig, total: int) -> Schedule:
    """Return the schedule of a run of ``total`` updates.

    The schedule maps a count (from 0) to the learning rate, float32, and is traceable.

    Raises:
        ConfigError: The configuration has no schedule for a run of this length.
    """
    try:
        parts = rate_parts(rate_settings(dataclasses.asdict(config)), total)
    except ScheduleError as error:
        raise ConfigError(f"optimizer.{error}") from None

    def schedule(count: object) -> jax.Array:
        step = jnp.asarray(count)
        rate = parts[0].rate(step, FUNCTIONS)
        for segment in parts[1:]:
            rate = jnp.where(step < segment.start, rate, segment.rate(step, FUNCTIONS))
        return jnp.asarray(rate, jnp.float32)

    return schedule
