"""Updates of a training state in this process, and its bytes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from midstream_engine.checkpoint.array_names import flatten
from midstream_engine.computation.programs import Step
from midstream_engine.computation.setup import Setup
from midstream_engine.computation.train_state import TrainState
from midstream_engine.data.batches import Batch


def update(setup: Setup, step: Step, state: TrainState, index: int, batch: Batch) -> tuple[TrainState, Any]:
    """Return the state after update ``index`` on ``batch``, and the update's results."""
    number = jax.device_put(np.int32(index), setup.layout.replicated())
    return step(state, number, setup.cut.put(batch.tokens), setup.cut.put(batch.loss_mask))


def trained(setup: Setup, step: Step, state: TrainState, first: int, last: int) -> tuple[TrainState, list[float]]:
    """Return the state after updates [first, last), and their losses."""
    losses = []
    for index in range(first, last):
        state, result = update(setup, step, state, index, setup.batches.batch(index))
        losses.append(float(result.loss))
    return state, losses


def contents(state: TrainState) -> dict[str, bytes]:
    """Return the bytes of each array, by its name in a checkpoint."""
    return {name: np.asarray(array.value).tobytes() for name, array in flatten(state).items()}
