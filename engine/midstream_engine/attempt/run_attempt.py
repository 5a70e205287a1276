"""One attempt from start to end: prepare, compile, restore, verify, train."""

from __future__ import annotations

import contextlib
import logging
import os
import time

import jax

from midstream_core import records
from midstream_core.attempt.errors import FencedError
from midstream_core.attempt.save_fence import FenceRejectedError
from midstream_core.attempt.status_file import StatusFile
from midstream_engine.attempt.beginning import Beginning, begin
from midstream_engine.attempt.changed_settings import report_changes
from midstream_engine.attempt.consensus import agree_on_command, agree_on_origin, check_alike, in_turn
from midstream_engine.attempt.parameter_drift import END_TIMEOUT, LateMeasurement
from midstream_engine.attempt.replica import ReplayResult, Replica
from midstream_engine.attempt.resume import (
    Origin,
    batch_schedule_from,
    check_same_data,
    find_origin,
    origin_of,
)
from midstream_engine.attempt.standby import follow_arrival, rehearse, wait_on_standby
from midstream_engine.attempt.take_start import take_start
from midstream_engine.checkpoint.loading.arrival import Arrival
from midstream_engine.checkpoint.loading.checkpoint_records import read_manifest
from midstream_engine.computation.programs import CompiledRun, Programs
from midstream_engine.computation.setup import prepare
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.data.imported_files import tokenizer_path
from midstream_engine.data.tokenize.tokenizer import load_tokenizer
from midstream_engine.loop.device_memory import DeviceMemory
from midstream_engine.loop.requests import CommandFile, Requests
from midstream_engine.loop.saving import NotSavedError, Saver
from midstream_engine.loop.training_loop import Loop
from midstream_engine.runtime import attempt_record as attempts
from midstream_engine.runtime.attempt_record import AttemptRecord
from midstream_engine.runtime.environment import describe_devices, versions
from midstream_engine.runtime.jax_settings import configure_jax, log_precision
from midstream_engine.signals import Signals
from midstream_engine.tracking.metrics_recorder import MetricsRecorder, close_metrics
from midstream_engine.tracking.run_facts import RunFacts
from midstream_engine.tracking.trackers import start_recorder

log = logging.getLogger(__name__)


def run(config: TrainLmConfig, root: str, attempt: AttemptRecord, status: StatusFile, signals: Signals) -> str:
    """Train and return FINISHED or STOPPED.

    The caller closes ``status``.

    Args:
        config: The configuration.
        root: Root directory of the host.
        attempt: The attempt.
        status: Its status.
        signals: Requests to save and to stop.

    Raises:
        ConfigError: The configuration is invalid on these devices.
        EngineError: The run cannot be continued; FencedError if it belongs to another attempt.
    """
    with contextlib.ExitStack() as threads:  # a thread in jax while the interpreter exits could crash the process
        return _run(config, root, attempt, status, signals, threads)


def _run(
    config: TrainLmConfig,
    root: str,
    attempt: AttemptRecord,
    status: StatusFile,
    signals: Signals,
    threads: contextlib.ExitStack,
) -> str:
    commands = CommandFile(attempt.files.command_file)
    answered = agree_on_command(attempt.processes, commands, max(status.value.acknowledged, status.value.rejected))
    requests = Requests(signals, commands, attempt.processes, answered)
    configure_jax(config, root)
    devices = describe_devices()
    status.update(devices=devices, versions=versions())
    status.write()
    log.info("attempt %d, ownership %d, on %d %s", attempt.number, attempt.epoch, len(devices), devices[0]["kind"])
    log_precision(config, jax.default_backend())

    if not attempt.standby:
        attempt = take_start(attempt, status, restores=commands.command is not None)
    origin = agree_on_origin(attempt, lambda: find_origin(attempt, config, commands.command))
    if origin is not None and origin.own and commands.command is None and origin.step >= config.trainer.num_train_steps:
        return report_finished(config, origin, status)
    ready = get_ready(config, root, attempt, origin, status)
    arrival = None
    if attempt.standby:
        assert origin is not None
        arrival = follow_arrival(attempt, origin, ready.setup)
        replica = commands.command is not None and commands.command.action == records.REPLAY
        if arrival is not None:
            threads.callback(arrival.close)
        outcome = stand_by(attempt, ready, origin, requests, status, arrival, replica=replica)
        if outcome.command is None:
            return records.STOPPED
        attempt = take_start(attempt, status, restores=True)
        attempts.write_config(attempt.paths, config.resolved())
        status.update(epoch=attempt.epoch)
        if outcome.state is not None:
            promoted = Beginning(outcome.state, outcome.step, origin, status.value.root_digest, outcome)
            return train(config, attempt, status, ready, requests, promoted, threads)
        requests.answer_at_once()
        origin = origin_of(attempt, outcome.command)
        compiled, ready = ready, get_ready(config, root, attempt, origin, status, ready)
        if arrival is not None and ready is not compiled:
            arrival.close()
            arrival = None
    elif commands.command is not None and commands.command.action in records.STARTS:
        status.update(acknowledged=commands.command.sequence)
    beginning = begin(attempt, ready, origin, status, arrival, trains=True)
    return train(config, attempt, status, ready, requests, beginning, threads)


def report_finished(config: TrainLmConfig, origin: Origin, status: StatusFile) -> str:
    """Report that the run was finished before this attempt.

    The run's data and compiled programs are not needed.

    Raises EngineError where the configuration is not the run's.
    """
    name = tokenizer_path(config.data.given_tokenizer, config.trainer.resolved_root())
    check_same_data(origin, config, load_tokenizer(name, config.data.eos_token, origin.state["tokenizer"]).id)
    report_changes(origin, config)
    status.update(step=origin.step, checkpoint=origin.name, root_digest=read_manifest(origin.directory).root_digest)
    log.info(
        "%s has all of the %d steps (hint: raise trainer.num_train_steps to continue)",
        origin.name, config.trainer.num_train_steps,
    )  # fmt: skip
    return records.FINISHED


def stand_by(
    attempt: AttemptRecord,
    ready: CompiledRun,
    origin: Origin,
    requests: Requests,
    status: StatusFile,
    arrival: Arrival | None,
    *,
    replica: bool,
) -> ReplayResult:
    """Rehearse on ``origin``, then wait for the run's state, or replay its batches.

    Args:
        attempt: The standby attempt.
        ready: Its setup and programs.
        origin: The checkpoint to rehearse on, and to replay from.
        requests: Commands and signals.
        status: The attempt's status.
        arrival: Reads the run's state while it arrives.
        replica: Replay instead of waiting.
    """
    rehearse(origin, ready.setup, ready.programs, status)
    if not replica:
        return ReplayResult(wait_on_standby(attempt, requests, status, arrival))
    start = begin(attempt, ready, origin, status)
    return Replica(ready, requests, attempt, status, start.state, start.step).replay()


def get_ready(
    config: TrainLmConfig,
    root: str,
    attempt: AttemptRecord,
    origin: Origin | None,
    status: StatusFile,
    compiled: CompiledRun | None = None,
) -> CompiledRun:
    """Set up for ``origin`` and start to compile.

    Return ``compiled`` if its schedule and data are the same.

    Args:
        config: The configuration.
        root: Root directory of the host.
        attempt: The attempt.
        origin: The checkpoint to continue; None for a fresh start.
        status: The attempt's status.
        compiled: Made for an earlier origin.

    Raises:
        ConfigError: The configuration is invalid on these devices.
        EngineError: The data or tokenizer is not the run's.
    """
    schedule = batch_schedule_from(origin, config)
    # An imported run may have come without its data.
    digest = (origin.state["data_digest"] or None) if origin and origin.same_run else None
    if (
        compiled is not None
        and compiled.setup.batch_schedule == schedule
        and compiled.setup.batches.cache.digest == digest
    ):
        return compiled
    step = origin.step if origin else 0
    sets = origin.validation if origin and origin.same_run else None
    tokenizer = origin.state["tokenizer"] if origin and origin.same_run else ""
    setup = in_turn(
        attempt,
        lambda: prepare(
            config, root, digest, step=step, batch_schedule=schedule, validation=sets, tokenizer_id=tokenizer
        ),
    )
    check_alike(attempt.processes, "data", setup.batches.cache.digest)
    # With other sets on a host, its processes would compute other batches of an evaluation, or another number of them.
    held = setup.validation.sets if setup.validation else {}
    digests = (f"{name} {cache.digest[:12]}".strip() for name, cache in held.items())
    check_alike(attempt.processes, "validation", ", ".join(digests) or "none")
    # `auto` is chosen by the memory of each host's devices, and other programs would wait for each other's collectives.
    remat = setup.config.model.gradient_checkpointing
    check_alike(attempt.processes, "model.gradient_checkpointing", str(remat))
    if origin is not None and origin.same_run:
        check_same_data(origin, config, setup.tokenizer.id)
        report_changes(origin, config)
    digest, digests = setup.batches.cache.digest, setup.data_digests
    size = setup.state_bytes
    status.update(state=records.COMPILING, step=step, data_digest=digest, data_digests=digests, state_bytes=size)
    return CompiledRun(setup, Programs(setup, attempt.processes))


def train(
    config: TrainLmConfig,
    attempt: AttemptRecord,
    status: StatusFile,
    ready: CompiledRun,
    requests: Requests,
    beginning: Beginning,
    threads: contextlib.ExitStack,
) -> str:
    """Record the attempt in the lineage and train to its end.

    Returns FINISHED or STOPPED.

    Args:
        config: The configuration.
        attempt: The attempt.
        status: Its status.
        ready: Setup and programs.
        requests: Commands and signals.
        beginning: The first state.
        threads: Ends threads after the attempt, when its last status is written.

    Raises:
        EngineError: Training failed; FencedError if another attempt owns the run.
    """
    origin, step, replayed = beginning.origin, beginning.step, beginning.replayed
    command = replayed.command if replayed is not None else None
    first = command.step if command is not None and command.step is not None else step
    programs, memory = ready.programs, DeviceMemory(ready.programs.working_bytes)
    threads.callback(memory.close)
    memory.prepare(beginning.state)
    saver = Saver(ready.setup, attempt, status, programs.reference_losses, time.monotonic(), memory)
    if origin is not None and origin.own and replayed is None:
        saver.mark_saved(step)
    attempts.record_start(
        attempt,
        attempts.lineage_entry(
            attempt,
            devices=status.value.devices,
            first_step=first,
            checkpoint=origin.name if origin else None,
            root_digest=beginning.root_digest,
            migration=origin.migration if origin else "",
        ),
    )
    facts = RunFacts(attempt.paths.run_id, attempt.number, first, attempt.files.dir, config.resolved())
    path = attempt.files.metrics if attempt.processes.leads else os.devnull
    metrics = start_recorder(path, config.trainer.tracker, facts, process=attempt.processes.index, start=attempt.start)
    if attempt.processes.leads:
        saver.sync_before_saving(metrics)
    loop = Loop(ready, saver, requests, attempt, status, metrics, beginning.state, step)
    ended = ""
    try:
        if replayed is not None:
            promote(attempt, replayed, saver, metrics, threads)
        ended = loop.run(beginning.first)
    finally:
        status.update(step=loop.step)
        attempts.record_end(attempt, loop.step)
        if ended:  # before the trackers finish: a migration does not wait for them
            status.update(state=ended)
        close_metrics(metrics)
    return ended


def promote(
    attempt: AttemptRecord,
    replayed: ReplayResult,
    saver: Saver,
    metrics: MetricsRecorder,
    threads: contextlib.ExitStack,
) -> None:
    """Make a replica's results the run's: write its metric rows, save its state.

    ``threads`` ends the measurement of its parameter drift.
    """
    assert replayed.command is not None
    assert replayed.state is not None
    for row in replayed.rows:
        metrics.write(row)
    log.info("promoted: the run from step %s on; it is at step %d", replayed.command.step, replayed.step)
    try:
        with contextlib.suppress(NotSavedError):  # the saver has reported it, and the next save may succeed
            saver.save(replayed.state, replayed.step, "promoted")
    except FenceRejectedError as error:
        raise FencedError(str(error)) from None
    if replayed.kept is not None and replayed.command.checkpoint:
        measurement = LateMeasurement(attempt, replayed.command.checkpoint, replayed.kept)
        # After an error the others wait in a collective for this process to report it.
        threads.push(lambda kind, *_: measurement.close(END_TIMEOUT if kind is None else 0.0))
