"""The next updates of an imported run, by the engine's own step."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from midstream_engine.checkpoint.format.array_names import unflatten
from midstream_engine.config.load import from_mapping
from midstream_engine.interop.foreign_run import ForeignRun
from midstream_engine.trainer.attempt.setup import make_plan
from midstream_engine.trainer.loop.train_step import train_step


def continued(adopted: ForeignRun, batches: list[Any]) -> list[float]:
    """The losses of the updates on ``batches`` (each [batch, position]), whose last position is a target alone."""
    config = from_mapping(adopted.mapping).config
    plan = make_plan(config, jax.devices()[:1], step=adopted.step)
    arrays = {array.name: jax.numpy.asarray(array.value()) for array in adopted.arrays}
    state = unflatten(plan.template, arrays)
    step = train_step(plan.optimizer, plan.schedule, plan.policy, plan.layout, eos=plan.eos, dropout=plan.dropout)
    losses = []
    with plan.layout.active():
        compiled = jax.jit(step)
        for number, tokens in enumerate(batches):
            examples = np.asarray(tokens, np.int32)
            mask = np.ones_like(examples)
            mask[:, -1] = 0
            put = [plan.cut.put(array) for array in (examples, mask)]
            state, result = compiled(state, adopted.step + number, *put)
            losses.append(float(result.loss))
    return losses
