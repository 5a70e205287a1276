"""The compiled programs of a run: made before the state exists, and while it is restored."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from haliax import NamedArray

from midstream_engine.data.batches import evaluation_batches
from midstream_engine.trainer.batching import Cut
from midstream_engine.trainer.setup import Plan, Setup
from midstream_engine.trainer.state import TrainState
from midstream_engine.trainer.step import StepResult, evaluation_step, train_step
from midstream_engine.trainer.witness import Witness

log = logging.getLogger(__name__)

# (state, step, tokens, loss mask) -> (state, result); tokens and mask [micro, batch, position].
Step = Callable[[TrainState, Any, NamedArray, NamedArray], tuple[TrainState, StepResult]]
Evaluate = Callable[[TrainState], dict[str, float]]


class Programs:
    """The train step, the witness and, where there is a validation set, the evaluation.

    They are compiled on a thread of their own, which no device waits for: restoring is reading and hashing, compiling
    is neither. Who asks for a program waits until it is there, and gets what went wrong in making it.
    """

    def __init__(self, setup: Setup):
        self._began = time.monotonic()
        with _one_thread() as thread:
            self._step: Future[Step] = thread.submit(compile_steps, setup)
            self._witness: Future[Witness] = thread.submit(compile_witness, setup)
            self._evaluate: Future[Evaluate | None] = thread.submit(compile_evaluation, setup)
            self._logged = thread.submit(self._log)

    @property
    def step(self) -> Step:
        return self._step.result()

    @property
    def witness(self) -> Witness:
        return self._witness.result()

    @property
    def evaluate(self) -> Evaluate | None:
        return self._evaluate.result()

    def wait(self) -> float:
        """Until all are there; returns the seconds that this took. Raises what the compiler did."""
        began = time.monotonic()
        for each in (self._step, self._witness, self._evaluate):
            each.result()
        return time.monotonic() - began

    def _log(self) -> None:
        log.info("compiled in %.1f s", time.monotonic() - self._began)


@contextlib.contextmanager
def _one_thread() -> Iterator[ThreadPoolExecutor]:
    """A thread that ends with the work that it is given here, for which nobody waits here."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="compile")
    try:
        yield thread
    finally:
        thread.shutdown(wait=False)


def compile_steps(setup: Plan) -> Step:
    """The update, whatever the size of its batch: one program for each size that the schedule still has."""
    compiled = {(cut.micro, cut.size): compile_step(setup, cut) for cut in setup.cuts.values()}

    def step(state: TrainState, number: Any, tokens: NamedArray, mask: NamedArray) -> tuple[TrainState, StepResult]:
        micro, batch = tokens.axes[0].size, tokens.axes[1].size
        return compiled[micro, batch](state, number, tokens, mask)

    return step


def compile_step(setup: Plan, cut: Cut | None = None) -> Any:
    """The update of a batch that is cut like ``cut`` (None: like the first), a ``Step`` that knows its memory. It gives
    its first argument's memory to its result."""
    replicated = setup.layout.replicated()
    function = train_step(
        setup.optimizer,
        setup.schedule,
        setup.policy,
        setup.layout,
        eos=setup.eos,
        dropout=setup.dropout,
        averaging=setup.config.trainer.model_averaging,
    )
    number = jax.ShapeDtypeStruct((), np.int32, sharding=replicated)
    example = (cut or setup.cut).shape(setup.positions)
    with setup.layout.active():
        jitted = jax.jit(function, donate_argnums=0, out_shardings=(setup.shardings, replicated))
        return jitted.lower(setup.abstract, number, example, example).compile()


def compile_witness(setup: Plan) -> Witness:
    """The losses of fixed sequences."""
    return Witness(
        setup.layout,
        batch_size=max(size for _, size in setup.batch_schedule.points),
        seq_len=setup.positions,
        eos=setup.eos,
        model=setup.abstract.model,
    )


def compile_evaluation(setup: Setup) -> Evaluate | None:
    """A function from a state to ``eval/loss``, the mean over every token of the validation sets in nats, and
    ``eval/<name>/loss`` of each named set; None without such a set."""
    cache, cut = setup.validation, setup.evaluation_cut
    seq_len, limit = setup.config.model.seq_len, setup.config.trainer.max_eval_batches
    if cache is None or limit == 0:
        return None
    compiled = compile_evaluation_step(setup)

    def evaluate(state: TrainState) -> dict[str, float]:
        sums: dict[str, tuple[float, float]] = {}
        for batch in evaluation_batches(cache, seq_len=seq_len, batch_size=cut.examples, limit=limit):
            loss, tokens = compiled(state.evaluated, cut.put(batch.tokens), cut.put(batch.loss_mask))
            total, counted = sums.get(batch.source, (0.0, 0.0))
            sums[batch.source] = total + float(loss), counted + float(tokens)
        losses = {f"eval/{name}/loss": total / max(counted, 1.0) for name, (total, counted) in sums.items() if name}
        totals, counts = zip(*sums.values(), strict=True) if sums else ((), ())
        return {"eval/loss": sum(totals) / max(sum(counts), 1.0), **losses}

    return evaluate


def compile_evaluation_step(setup: Plan) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """``evaluation_step`` on one batch of the validation set."""
    example = setup.evaluation_cut.shape(setup.config.model.seq_len)
    with setup.layout.active():
        jitted = jax.jit(evaluation_step(setup.policy, eos=setup.eos), out_shardings=setup.layout.replicated())
        return jitted.lower(setup.abstract.evaluated, example, example).compile()
