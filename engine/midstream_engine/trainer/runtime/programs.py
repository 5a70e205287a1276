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

from midstream_engine.data.order.batches import evaluation_batches
from midstream_engine.processes.rendezvous import ALONE, Processes
from midstream_engine.trainer.attempt.reference_losses import ReferenceLosses
from midstream_engine.trainer.attempt.setup import Plan, Setup
from midstream_engine.trainer.loop.batch_division import Cut
from midstream_engine.trainer.loop.train_state import TrainState
from midstream_engine.trainer.loop.train_step import StepResult, evaluation_step, train_step
from midstream_engine.trainer.runtime.program_cache import engine_digest, stored

log = logging.getLogger(__name__)

# (state, step, tokens, loss mask) -> (state, result); tokens and mask [micro, batch, position].
Step = Callable[[TrainState, Any, NamedArray, NamedArray], tuple[TrainState, StepResult]]
Evaluate = Callable[[TrainState], dict[str, float]]


class Programs:
    """The train step, the witness and, where there is a validation set, the evaluation.

    They are compiled on a thread of their own, which no device waits for: restoring is reading and hashing, compiling
    is neither. Who asks for a program waits until it is there, and gets what went wrong in making it.
    """

    def __init__(self, setup: Setup, processes: Processes = ALONE):
        self._began = time.monotonic()
        engine_digest()  # here it takes milliseconds; beside the threads that restore, twenty times as long
        with _one_thread() as thread:
            self._step: Future[Step] = thread.submit(compile_steps, setup, processes)
            self._witness: Future[ReferenceLosses] = thread.submit(compile_reference_losses, setup, processes)
            self._evaluate: Future[Evaluate | None] = thread.submit(compile_evaluation, setup, processes)
            self._logged = thread.submit(self._log)

    @property
    def step(self) -> Step:
        return self._step.result()

    @property
    def reference_losses(self) -> ReferenceLosses:
        return self._witness.result()

    @property
    def evaluate(self) -> Evaluate | None:
        return self._evaluate.result()

    def wait(self) -> float:
        """Until the first update can be made; returns the seconds that this took. Raises what the compiler did. The
        evaluation may take longer: whoever asks for it waits."""
        began = time.monotonic()
        for each in (self._step, self._witness):
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


def compile_steps(setup: Plan, processes: Processes = ALONE) -> Step:
    """The update, whatever the size of its batch: one program for each size that the schedule still has."""
    compiled = {
        (cut.micro, cut.size): processes.consensus(f"step-{cut.examples}", compile_step(setup, cut))
        for cut in setup.cuts.values()
    }

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
    cut = cut or setup.cut
    example = cut.shape(setup.positions)
    arguments = (setup.abstract, number, example, example)

    def make() -> Any:
        with setup.layout.active():
            jitted = jax.jit(function, donate_argnums=0, out_shardings=(setup.shardings, replicated))
            return jitted.lower(*arguments).compile()

    counts = 0 if setup.config.optimizer.skip_step() is not None else None
    result = (setup.abstract, StepResult(number, number, number, counts))  # pyright: ignore[reportArgumentType]
    return stored(setup, f"step-{cut.micro}-{cut.size}", make, arguments, result)


def compile_reference_losses(setup: Plan, processes: Processes = ALONE) -> ReferenceLosses:
    """The losses of fixed sequences."""
    return ReferenceLosses(setup, processes)


def compile_evaluation(setup: Setup, processes: Processes = ALONE) -> Evaluate | None:
    """A function from a state to ``eval/loss``, the mean over every token of the validation sets in nats, and
    ``eval/<name>/loss`` of each named set; None without such a set."""
    cache, cut = setup.validation, setup.evaluation_cut
    seq_len, limit = setup.config.model.seq_len, setup.config.trainer.max_eval_batches
    if cache is None or limit == 0:
        return None
    compiled = processes.consensus("evaluation", compile_evaluation_step(setup))

    def evaluate(state: TrainState) -> dict[str, float]:
        sums: dict[str, tuple[float, float]] = {}
        rows = cut.rows(jax.process_index())
        for batch in evaluation_batches(cache, seq_len=seq_len, batch_size=cut.examples, limit=limit, rows=rows):
            loss, tokens = compiled(state.evaluated, cut.put(batch.tokens), cut.put(batch.loss_mask))
            total, counted = sums.get(batch.source, (0.0, 0.0))
            sums[batch.source] = total + float(loss), counted + float(tokens)
        losses = {f"eval/{name}/loss": total / max(counted, 1.0) for name, (total, counted) in sums.items() if name}
        totals, counts = zip(*sums.values(), strict=True) if sums else ((), ())
        return {"eval/loss": sum(totals) / max(sum(counts), 1.0), **losses}

    return evaluate


def compile_evaluation_step(setup: Plan) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """``evaluation_step`` on one batch of the validation set."""
    cut = setup.evaluation_cut
    example = cut.shape(setup.config.model.seq_len)
    arguments = (setup.abstract.evaluated, example, example)

    def make() -> Any:
        with setup.layout.active():
            jitted = jax.jit(evaluation_step(setup.policy, eos=setup.eos), out_shardings=setup.layout.replicated())
            return jitted.lower(*arguments).compile()

    return stored(setup, f"evaluation-{cut.micro}-{cut.size}", make, arguments, (0, 0))
