"""Compiled programs of a run, made before or during the restore of its state."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import jax
import numpy as np
from haliax import NamedArray
from jax.errors import JaxRuntimeError

from midstream_core.json_types import JsonObject
from midstream_engine.array_types import Compiled, Leaf, Lowered
from midstream_engine.computation.batch_division import Cut
from midstream_engine.computation.compile_options import compile_options, unknown_option
from midstream_engine.computation.program_cache import cached_program, engine_digest
from midstream_engine.computation.reference_losses import ReferenceLosses
from midstream_engine.computation.setup import CompilePlan, Setup
from midstream_engine.computation.train_state import TrainState
from midstream_engine.computation.train_step import StepResult, evaluation_step, train_step
from midstream_engine.data.batches import Validation, evaluation_batches
from midstream_engine.processes.rendezvous import ALONE, Processes

log = logging.getLogger(__name__)

# (state, step, tokens, loss mask) -> (state, result); tokens and mask [micro, batch, position].
Step = Callable[[TrainState, Leaf, NamedArray, NamedArray], tuple[TrainState, StepResult]]
Evaluate = Callable[[TrainState], dict[str, float]]


class WorkingMemory:
    """The most memory of a device that one of several programs takes beside arguments.

    ``bytes`` is None if a compiler does not report it.
    """

    def __init__(self) -> None:
        self.bytes: int | None = 0

    def add(self, compiled: Compiled) -> None:
        """Count a compiled program."""
        try:
            analysis = compiled.memory_analysis()
        except (NotImplementedError, JaxRuntimeError):
            analysis = None
        if analysis is None or self.bytes is None:
            self.bytes = None
            return
        results = max(0, int(analysis.output_size_in_bytes) - int(analysis.alias_size_in_bytes))
        self.bytes = max(self.bytes, int(analysis.temp_size_in_bytes) + results)


class Programs:
    """The train step, the reference losses and, with a validation set, the evaluation.

    A thread compiles the programs during the restore, which needs the disk more than the processor. Reading an
    attribute waits for the program, and raises the compiler's error.
    """

    _reference_losses: Future[ReferenceLosses]

    def __init__(self, setup: Setup, processes: Processes = ALONE) -> None:
        self._began = time.monotonic()
        self._memory = WorkingMemory()
        engine_digest()  # milliseconds here, but twenty times as long beside the threads that restore
        with _one_thread() as thread:
            # First what a restart needs first: several processes measure the losses before their first update.
            together = processes.client is not None
            if together:
                self._reference_losses = thread.submit(compile_reference_losses, setup, processes)
            self._step: Future[Step] = thread.submit(compile_steps, setup, processes, self._memory)
            self._ready: Future[float] = thread.submit(lambda: time.monotonic() - self._began)
            if not together:
                self._reference_losses = thread.submit(compile_reference_losses, setup, processes)
            self._evaluate: Future[Evaluate | None] = thread.submit(compile_evaluation, setup, processes, self._memory)
            self._logged = thread.submit(self._log)

    @property
    def step(self) -> Step:
        """The update."""
        return self._step.result()

    @property
    def reference_losses(self) -> ReferenceLosses:
        """The losses of fixed sequences."""
        return self._reference_losses.result()

    @property
    def evaluate(self) -> Evaluate | None:
        """The evaluation; None without a validation set."""
        return self._evaluate.result()

    @property
    def compiled_seconds(self) -> float:
        """The seconds until the first update could be computed."""
        return self._ready.result()

    def working_bytes(self) -> int | None:
        """Return the most bytes that a program takes on a device beside its arguments.

        None while programs are being compiled, or where the compiler does not report it.
        """
        futures = (self._reference_losses, self._step, self._evaluate)
        if not all(future.done() and future.exception() is None for future in futures):
            return None
        self._memory.add(self.reference_losses.compiled)
        return self._memory.bytes

    def wait(self) -> float:
        """Wait for the update and the reference losses; return the seconds that this took.

        Raises the compiler's error. The evaluation may take longer; reading ``evaluate`` waits for it.
        """
        began = time.monotonic()
        for program in (self._reference_losses, self._step):
            program.result()
        return time.monotonic() - began

    def wait_for_step(self) -> float:
        """Wait until the update is compiled; return the seconds that this took.

        Raises the compiler's error.
        """
        began = time.monotonic()
        self._step.result()
        return time.monotonic() - began

    def _log(self) -> None:
        log.info("compiled in %.1f s", time.monotonic() - self._began)


@dataclass(frozen=True)
class CompiledRun:
    """Setup and programs, made before a state exists, for any state of the run."""

    setup: Setup
    programs: Programs


@contextlib.contextmanager
def _one_thread() -> Iterator[ThreadPoolExecutor]:
    """Yield a thread that ends after the work submitted in it.

    Leaving the context does not wait for the work.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="compile")
    try:
        yield thread
    finally:
        thread.shutdown(wait=False)


def compile_steps(setup: CompilePlan, processes: Processes = ALONE, memory: WorkingMemory | None = None) -> Step:
    """Compile the update, one program for each batch size from the present step on.

    ``memory`` counts the programs.
    """
    compiled = {}
    for cut in setup.cuts.values():
        program = compile_step(setup, cut)
        if memory is not None:
            memory.add(program)
        compiled[cut.micro, cut.size] = processes.consensus(f"step-{cut.examples}", program)

    def step(state: TrainState, number: object, tokens: NamedArray, mask: NamedArray) -> tuple[TrainState, StepResult]:
        micro, batch = tokens.axes[0].size, tokens.axes[1].size
        return compiled[micro, batch](state, number, tokens, mask)

    return step


def compile_step(setup: CompilePlan, cut: Cut | None = None, options: JsonObject | None = None) -> Compiled:
    """Compile the update of a batch that is divided as in ``cut``.

    ``cut`` None: as the first batch.

    Args:
        setup: The plan of the run.
        cut: Division of the batch.
        options: Of the compiler, added to those of ``trainer.compiler_options``. A program with options of its own is
            neither read from a cache nor stored.

    Returns:
        jax's compiled program, which is a ``Step``, reports its memory and donates its first argument.
    """
    replicated = setup.layout.replicated()
    function = train_step(
        setup.optimizer,
        setup.schedule,
        setup.policy,
        setup.layout,
        eos=setup.eos,
        dropout=setup.dropout,
        averaging=setup.config.trainer.model_averaging,
        z_loss=setup.config.z_loss_weight,
    )
    number = jax.ShapeDtypeStruct((), np.int32, sharding=replicated)
    cut = cut or setup.cut
    example = cut.shape(setup.positions)
    arguments = (setup.abstract, number, example, example)

    def make() -> Compiled:
        with setup.layout.active():
            jitted = jax.jit(function, donate_argnums=0, out_shardings=(setup.shardings, replicated))
            return compile_lowered(setup, jitted.lower(*arguments), options)

    if options:
        return make()
    counts = 0 if setup.config.optimizer.skip_step() is not None else None
    result = (setup.abstract, StepResult(number, number, number, number, counts))  # pyright: ignore[reportArgumentType]
    return cached_program(setup, f"step-{cut.micro}-{cut.size}", make, arguments, result)


def compile_lowered(setup: CompilePlan, lowered: Lowered, options: JsonObject | None = None) -> object:
    """Compile a lowered program with the options for its devices.

    Raises:
        ConfigError: The compiler refuses an option of the configuration.
    """
    given = {**setup.config.trainer.compiler_options, **(options or {})}
    try:
        return lowered.compile(compiler_options=compile_options(setup.layout, given) or None)
    except RuntimeError as error:
        refused = unknown_option(error, given)
        if refused is None:
            raise
        raise refused from None


def compile_reference_losses(setup: CompilePlan, processes: Processes = ALONE) -> ReferenceLosses:
    """Compile the losses of fixed sequences."""
    return ReferenceLosses(setup, processes)


def compile_evaluation(
    setup: Setup, processes: Processes = ALONE, memory: WorkingMemory | None = None
) -> Evaluate | None:
    """Compile the evaluation; return None without a validation set.

    ``memory`` counts the program. The result maps a state to ``eval/loss``, the mean over all tokens of the validation
    sets in nats, and ``eval/<name>/loss`` of each named set. A set in which no token counts has no loss.
    """
    cut = setup.evaluation_cut
    seq_len, limit = setup.config.model.seq_len, setup.config.trainer.max_eval_batches
    ignored = setup.config.data.ignore_token_id
    cache = None if limit == 0 else _evaluated(setup)
    if cache is None:
        return None
    program = compile_evaluation_step(setup)
    if memory is not None:
        memory.add(program)
    compiled = processes.consensus("evaluation", program)

    def evaluate(state: TrainState) -> dict[str, float]:
        sums: dict[str, tuple[float, float]] = {}
        rows = cut.rows(jax.process_index())
        for batch in evaluation_batches(
            cache, seq_len=seq_len, batch_size=cut.examples, limit=limit, rows=rows, ignored=ignored
        ):
            loss, tokens = compiled(state.evaluated, cut.put(batch.tokens), cut.put(batch.loss_mask))
            total, counted = sums.get(batch.source, (0.0, 0.0))
            sums[batch.source] = total + float(loss), counted + float(tokens)
        averages = {name: total for name, total in sums.items() if total[1]}
        if not averages:
            return {}
        losses = {f"eval/{name}/loss": total / counted for name, (total, counted) in averages.items() if name}
        totals, counts = zip(*averages.values(), strict=True)
        return {"eval/loss": sum(totals) / sum(counts), **losses}

    return evaluate


def _evaluated(setup: Setup) -> Validation | None:
    """Return the validation sets that fill a sequence; None where there are none.

    Shorter sets are logged.
    """
    if setup.validation is None:
        return None
    seq_len, sets = setup.config.model.seq_len, {}
    for name, cache in setup.validation.sets.items():
        if cache.tokens >= seq_len:
            sets[name] = cache
            continue
        key = f"data.configs.{name}.validation_urls" if name else "data.validation_urls"
        log.warning(
            "%s: %d tokens do not fill one sequence of model.seq_len %d: no evaluation on them",
            key, cache.tokens, seq_len,
        )  # fmt: skip
    return replace(setup.validation, sets=sets) if sets else None


def compile_evaluation_step(setup: CompilePlan) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Compile ``evaluation_step`` for one batch of the validation set."""
    cut = setup.evaluation_cut
    example = cut.shape(setup.config.model.seq_len)
    arguments = (setup.abstract.evaluated, example, example)

    def make() -> Compiled:
        with setup.layout.active():
            jitted = jax.jit(evaluation_step(setup.policy, eos=setup.eos), out_shardings=setup.layout.replicated())
            return compile_lowered(setup, jitted.lower(*arguments))

    return cached_program(setup, f"evaluation-{cut.micro}-{cut.size}", make, arguments, (0, 0))
