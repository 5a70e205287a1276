"""Continue an imported run with the engine's own training step."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from midstream_engine.checkpoint.array_names import unflatten
from midstream_engine.computation.setup import make_plan
from midstream_engine.computation.train_state import TrainState
from midstream_engine.computation.train_step import train_step
from midstream_engine.config.load import from_mapping
from midstream_engine.interop.foreign_run import ForeignRun


def continued(adopted: ForeignRun, batches: list[Any]) -> list[float]:
    """Return the losses of updates on ``batches`` (each [batch, position]), whose last position is a target only."""
    return continued_state(adopted, batches)[0]


def leaves(tree: Any) -> list[np.ndarray]:
    """Return the arrays of a tree."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def continued_state(adopted: ForeignRun, batches: list[Any]) -> tuple[list[float], TrainState]:
    """Return the losses, and the state after the updates."""
    config = from_mapping(adopted.mapping).config
    plan = make_plan(config, jax.devices()[:1], step=adopted.step)
    arrays = {array.name: jax.numpy.asarray(array.value()) for array in adopted.arrays}
    state = unflatten(plan.template, arrays)
    step = train_step(
        plan.optimizer, plan.schedule, plan.policy, plan.layout, eos=plan.eos, dropout=plan.dropout,
        averaging=config.trainer.model_averaging, z_loss=config.z_loss_weight,
    )  # fmt: skip
    losses, types = [], [leaf.dtype for leaf in jax.tree.leaves(state)]
    with plan.layout.active():
        compiled = jax.jit(step)
        for number, tokens in enumerate(batches):
            examples = np.asarray(tokens, np.int32)
            mask = np.ones_like(examples)
            mask[:, -1] = 0
            put = [plan.cut.put(array) for array in (examples, mask)]
            state, result = compiled(state, adopted.step + number, *put)
            assert [leaf.dtype for leaf in jax.tree.leaves(state)] == types
            losses.append(float(result.loss))
    return losses, state
