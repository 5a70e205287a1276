"""The learning rate at each update.

A run is cut into cycles; a cycle is ``warmup`` (linear, from where the cycle before ended, or 0), then a stable part at
the peak, then ``decay`` in the configured shape down to ``min_lr_ratio`` of the peak.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from midstream_engine.config.errors import ConfigError
from midstream_engine.config.optimizer import OptimizerConfig

Schedule = Callable[[Any], jax.Array]  # count, int32 [] or a number -> float32 []


def fraction_or_steps(value: float, length: int) -> int:
    """Steps: ``value`` itself above 1, that fraction of ``length`` up to 1."""
    return int(value * length) if value <= 1.0 else int(value)


def cycle_ends(config: OptimizerConfig, total: int) -> list[int]:
    """Where cycles begin and end: ``[0, ..., total]``, strictly increasing. Raises ConfigError where they do not."""
    cycles, length = config.cycles, config.cycle_length
    inner: Sequence[int] = []
    if isinstance(cycles, int):
        inner = [int(total / cycles * (index + 1)) for index in range(cycles - 1)]
    elif isinstance(cycles, list):
        inner = _inner([int(step) for step in cycles], total)
    elif isinstance(length, list):
        inner = _inner(list(itertools.accumulate(int(part) for part in length)), total)
    elif length is not None:
        steps = fraction_or_steps(float(length), total)
        inner = [index * steps for index in range(1, total // steps)] if steps > 0 else [0]
    elif cycles is not None:
        raise ConfigError(f"optimizer.cycles: {cycles!r} is neither a number nor a list of steps")
    ends = [0, *inner, total]
    if any(after <= before for before, after in itertools.pairwise(ends)):
        raise ConfigError(f"optimizer: cycles end at {ends[1:]}, which is not strictly increasing")
    return ends


def _inner(ends: list[int], total: int) -> list[int]:
    """``ends`` without a first 0 and a last ``total``, which are always ends. Raises ConfigError for one beyond."""
    if ends and max(ends) > total:
        raise ConfigError(f"optimizer: cycles end at {ends}, beyond the run's {total} steps (trainer.num_train_steps)")
    return ends[1 if ends[:1] == [0] else 0 : len(ends) - 1 if ends[-1:] == [total] else len(ends)]


def learning_rate(config: OptimizerConfig, total: int) -> Schedule:
    """The schedule of a run of ``total`` updates: count (from 0) -> learning rate, float32, traceable."""
    peak, low = config.learning_rate, config.learning_rate * config.min_lr_ratio
    ends = cycle_ends(config, total)
    schedules: list[optax.Schedule] = []
    borders: list[int] = []
    previous = 0.0
    for index, (start, end) in enumerate(itertools.pairwise(ends)):
        length = end - start
        warmup = min(length, fraction_or_steps(config.rewarmup if index else config.warmup, length))
        rest = length - warmup
        decay = rest if config.decay is None else min(rest, fraction_or_steps(config.decay, length))
        if warmup:
            schedules.append(optax.linear_schedule(previous, peak, warmup))
            borders.append(start + warmup)
        if rest > decay:
            schedules.append(optax.constant_schedule(peak))
            borders.append(end - decay)
        if decay:
            falling = _decay(config, peak, low, decay, warmup)
            schedules.append(falling)
            borders.append(end)
            if end < total:  # where the next cycle starts; jax compiles for it
                previous = float(np.asarray(falling(decay)))
        else:
            previous = peak
    joined = optax.join_schedules(schedules, borders[:-1])
    return lambda count: jnp.asarray(joined(count), jnp.float32)


def _decay(config: OptimizerConfig, peak: float, low: float, steps: int, warmup: int) -> optax.Schedule:
    """From ``peak`` at 0 in the configured shape over ``steps``."""
    if config.lr_schedule == "constant":
        return optax.constant_schedule(peak)
    if config.lr_schedule == "linear":
        return optax.linear_schedule(peak, low, steps)
    if config.lr_schedule == "cosine":
        return optax.cosine_decay_schedule(peak, steps, config.min_lr_ratio, config.cosine_exponent)
    if config.lr_schedule == "inv":
        return lambda count: peak / ((peak / low - 1.0) * jnp.minimum(count / steps, 1.0) + 1.0)
    # inv_sqrt: flat until the timescale, counted with the warmup, then with the inverse square root.
    return lambda count: jnp.maximum(
        peak * jnp.minimum(1.0, 1.0 / jnp.sqrt(jnp.maximum(count + warmup, 1) / config.inv_sqrt_timescale)), low
    )
