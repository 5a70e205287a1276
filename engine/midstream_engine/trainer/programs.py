"""The compiled programs of a run: made before the state exists, so that restoring waits for nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from haliax import NamedArray

from midstream_engine.data.batches import evaluation_batches
from midstream_engine.trainer.setup import Setup
from midstream_engine.trainer.state import TrainState
from midstream_engine.trainer.step import StepResult, evaluation_step, train_step
from midstream_engine.trainer.witness import Witness

log = logging.getLogger(__name__)

# (state, step, tokens, loss mask) -> (state, result); tokens and mask [micro, batch, position].
Step = Callable[[TrainState, Any, NamedArray, NamedArray], tuple[TrainState, StepResult]]


@dataclass(frozen=True)
class Programs:
    """What ``compile_programs`` made, and how long that took."""

    step: Step
    witness: Witness
    evaluate: Callable[[TrainState], float] | None
    seconds: float


def compile_programs(setup: Setup) -> Programs:
    """Compile the train step, the witness and, where there is a validation set, the evaluation."""
    began = time.monotonic()
    step, witness, evaluate = compile_step(setup), compile_witness(setup), compile_evaluation(setup)
    seconds = time.monotonic() - began
    log.info("compiled in %.1f s", seconds)
    return Programs(step, witness, evaluate, seconds)


def compile_step(setup: Setup) -> Step:
    """The update. It gives its first argument's memory to its result."""
    replicated = setup.layout.replicated()
    function = train_step(
        setup.optimizer, setup.schedule, setup.policy, setup.layout, eos=setup.eos, dropout=setup.dropout
    )
    number = jax.ShapeDtypeStruct((), np.int32, sharding=replicated)
    example = setup.cut.shape(setup.config.model.seq_len)
    with setup.layout.active():
        jitted = jax.jit(function, donate_argnums=0, out_shardings=(setup.shardings, replicated))
        return jitted.lower(setup.abstract, number, example, example).compile()


def compile_witness(setup: Setup) -> Witness:
    """The losses of fixed sequences."""
    return Witness(
        setup.layout,
        batch_size=setup.cut.examples,
        seq_len=setup.config.model.seq_len,
        eos=setup.eos,
        model=setup.abstract.model,
    )


def compile_evaluation(setup: Setup) -> Callable[[TrainState], float] | None:
    """A function from a state to the mean loss over the validation set, in nats a token; None without such a set."""
    cache, cut = setup.validation, setup.evaluation_cut
    if cache is None:
        return None
    seq_len, limit = setup.config.model.seq_len, setup.config.trainer.max_eval_batches
    example = cut.shape(seq_len)
    with setup.layout.active():
        jitted = jax.jit(evaluation_step(setup.policy, eos=setup.eos), out_shardings=setup.layout.replicated())
        compiled = jitted.lower(setup.abstract.model, example, example).compile()

    def evaluate(state: TrainState) -> float:
        total = counted = 0.0
        for batch in evaluation_batches(cache, seq_len=seq_len, batch_size=cut.examples, limit=limit):
            loss, tokens = compiled(state.model, cut.put(batch.tokens), cut.put(batch.loss_mask))
            total, counted = total + float(loss), counted + float(tokens)
        return total / max(counted, 1.0)

    return evaluate
