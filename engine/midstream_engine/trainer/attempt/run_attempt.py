"""One attempt from its start to its end: prepare, compile, restore, prove, train."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from dataclasses import dataclass

import jax

from midstream_engine import records
from midstream_engine.base_directory import resolved_path
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.tracking.metrics_recorder import Recorder
from midstream_engine.tracking.run_facts import RunFacts
from midstream_engine.tracking.trackers import start_recorder
from midstream_engine.trainer.attempt import attempt_record as attempts
from midstream_engine.trainer.attempt.agreement import agree_on_command, agree_on_origin, check_alike, in_turn
from midstream_engine.trainer.attempt.attempt_record import Attempt
from midstream_engine.trainer.attempt.parameter_drift import measure_later
from midstream_engine.trainer.attempt.replica import Outcome, Replay
from midstream_engine.trainer.attempt.resume import (
    Origin,
    batch_schedule_from,
    check_same_data,
    find_origin,
    origin_of,
    prove,
    report_changes,
    restore,
)
from midstream_engine.trainer.attempt.setup import Setup, prepare
from midstream_engine.trainer.attempt.standby import hold, rehearse
from midstream_engine.trainer.attempt.status_file import StatusFile, describe_devices, versions
from midstream_engine.trainer.loop.requests import CommandFile, Requests, Signals
from midstream_engine.trainer.loop.saving import NotSaved, Saver
from midstream_engine.trainer.loop.train_state import TrainState
from midstream_engine.trainer.loop.training_loop import Loop
from midstream_engine.trainer.runtime.compile_cache import SharedCache, is_shared
from midstream_engine.trainer.runtime.programs import Programs

log = logging.getLogger(__name__)


def configure_jax(config: TrainLmConfig, root: str) -> str:
    """The compile cache, which makes a restart quick, and what ``trainer.jax_config`` sets.

    Returns the directory of the compile cache. Raises ConfigError for an option that jax does not have or a value that
    it does not take.
    """
    trainer = config.trainer
    chosen = trainer.jax_compilation_cache_dir or os.environ.get("JAX_COMPILATION_CACHE_DIR")
    directory = chosen or os.path.join(root, "compile-cache")
    directory = directory if is_shared(directory) else resolved_path(directory)
    if is_shared(directory):
        url, directory = directory, os.path.join(root, "compile-cache")
        SharedCache(url, directory).start()
    jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    for name, value in trainer.jax_config.items():
        try:
            jax.config.update(name, value)
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(f"trainer.jax_config.{name}: {value!r}: {' '.join(str(error).split())}") from None
    if trainer.require_accelerator and jax.default_backend() == "cpu":
        raise ConfigError("trainer.require_accelerator is true, and jax sees no accelerator here")
    return directory


@dataclass(frozen=True)
class Ready:
    """All that a state needs to be trained: made before the state exists, and good for any state of the run."""

    setup: Setup
    programs: Programs


@dataclass(frozen=True)
class Beginning:
    """The state that training goes on with, and where it comes from."""

    state: TrainState
    step: int
    origin: Origin | None
    root_digest: str | None
    replayed: Outcome | None = None  # where it was computed by a shadow, which is promoted now


def run(config: TrainLmConfig, root: str, attempt: Attempt, status: StatusFile, signals: Signals) -> str:
    """Train; returns FINISHED or STOPPED. The status is left for the caller to end."""
    orders = CommandFile(attempt.files.command_file)
    agree_on_command(attempt.processes, orders)
    requests = Requests(signals, orders, attempt.processes)
    configure_jax(config, root)
    devices = describe_devices()
    status.update(devices=devices, versions=versions())
    status.write()
    log.info("attempt %d, epoch %d, on %d %s", attempt.number, attempt.epoch, len(devices), devices[0]["kind"])

    origin = agree_on_origin(attempt, lambda: find_origin(attempt, config, orders.order))
    ready = get_ready(config, root, attempt, origin, status)
    if attempt.standby:
        assert origin is not None
        shadow = orders.order is not None and orders.order.action == records.REPLAY
        outcome = stand_by(attempt, ready, origin, requests, status, shadow=shadow)
        if outcome.order is None:
            return records.STOPPED
        attempts.write_config(attempt.paths, config.resolved())
        status.update(epoch=attempt.epoch)
        if outcome.state is not None:
            promoted = Beginning(outcome.state, outcome.step, origin, status.value.root_digest, outcome)
            return train(config, attempt, status, ready, requests, promoted)
        origin = origin_of(attempt, outcome.order)
        ready = get_ready(config, root, attempt, origin, status, ready)
    elif orders.order is not None and orders.order.action in records.STARTS:
        status.update(acknowledged=orders.order.sequence)
    beginning = begin(attempt, ready, origin, status)
    return train(config, attempt, status, ready, requests, beginning)


def stand_by(
    attempt: Attempt, ready: Ready, origin: Origin, requests: Requests, status: StatusFile, *, shadow: bool
) -> Outcome:
    """Rehearse on ``origin``, then wait for the run's state, or replay it as a ``shadow``."""
    rehearse(origin, ready.setup, ready.programs, status)
    if not shadow:
        return Outcome(hold(attempt, requests, status))
    start = begin(attempt, ready, origin, status)
    return Replay(ready.setup, ready.programs, requests, attempt, status, start.state, start.step).replay()


def get_ready(
    config: TrainLmConfig,
    root: str,
    attempt: Attempt,
    origin: Origin | None,
    status: StatusFile,
    known: Ready | None = None,
) -> Ready:
    """Set up for ``origin`` and begin to compile; ``known`` where that is what it needs."""
    schedule = batch_schedule_from(origin, config)
    # An imported run may have come without its data.
    digest = (origin.state["data_digest"] or None) if origin and origin.same_run else None
    if known is not None and known.setup.batch_schedule == schedule and known.setup.batches.cache.digest == digest:
        return known
    step = origin.step if origin else 0
    sets = origin.validation if origin and origin.same_run else None
    setup = in_turn(attempt, lambda: prepare(config, root, digest, step=step, batch_schedule=schedule, validation=sets))
    check_alike(attempt.processes, "data", setup.batches.cache.digest)
    if origin is not None and origin.same_run:
        check_same_data(origin, config, setup.tokenizer.id)
        report_changes(origin, config)
    digest, digests = setup.batches.cache.digest, setup.data_digests
    status.update(state=records.COMPILING, step=step, data_digest=digest, data_digests=digests)
    return Ready(setup, Programs(setup, attempt.processes))


def begin(attempt: Attempt, ready: Ready, origin: Origin | None, status: StatusFile) -> Beginning:
    """The state of ``origin`` on the devices, with the evidence in ``restore.json``; without one, that of step 0."""
    setup, programs = ready.setup, ready.programs
    if origin is None:
        log.info("fresh start")
        state = setup.fresh_state(attempt.processes)
        programs.wait()
        return Beginning(state, 0, None, None)
    status.update(state=records.RESTORING)
    began = time.monotonic()
    resumed, train = restore(origin, setup)
    seconds = {"restore": time.monotonic() - began}
    # What is compiled while the state is restored, or while the attempt was held, is no part of what it took.
    seconds["compile"] = 0.0 if attempt.standby else programs.wait()
    if origin.same_run:
        evidence = prove(origin, resumed, train, setup, programs.reference_losses, seconds)
        if attempt.processes.leads:
            evidence.write(attempt.files.restore)
    if origin.own:
        status.update(checkpoint=origin.name, root_digest=resumed.root_digest)
    began = time.monotonic()
    digest = setup.batches.batch(resumed.step).digest
    log.info(
        "goes on at step %d: sample %d, epoch %.3f of the data, batch %s (found in %.3f s)",
        resumed.step, setup.batch_schedule.first_sample(resumed.step), setup.batches.epoch(resumed.step), digest[:12],
        time.monotonic() - began,
    )  # fmt: skip
    return Beginning(resumed.state, resumed.step, origin, resumed.root_digest)


def train(
    config: TrainLmConfig,
    attempt: Attempt,
    status: StatusFile,
    ready: Ready,
    requests: Requests,
    beginning: Beginning,
) -> str:
    """Enter the attempt into the lineage and train to its end: FINISHED or STOPPED."""
    origin, step, replayed = beginning.origin, beginning.step, beginning.replayed
    order = replayed.order if replayed is not None else None
    first = order.step if order is not None and order.step is not None else step
    saver = Saver(ready.setup, attempt, status, ready.programs.reference_losses, time.monotonic())
    if origin is not None and origin.own and replayed is None:
        saver.holds(step)
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
    metrics = start_recorder(path, config.trainer.tracker, facts, process=attempt.processes.index)
    if attempt.processes.leads:
        saver.after(metrics)
    loop = Loop(ready.setup, ready.programs, saver, requests, attempt, status, metrics, beginning.state, step)
    ended = ""
    try:
        if replayed is not None:
            promote(attempt, replayed, saver, metrics)
        ended = loop.run()
    finally:
        status.update(step=loop.step)
        attempts.record_end(attempt, loop.step)
        if ended:  # trackers may take their time to deliver: a migration need not wait for them
            status.update(state=ended)
        metrics.close()
    return ended


def promote(attempt: Attempt, replayed: Outcome, saver: Saver, metrics: Recorder) -> None:
    """What a shadow computed becomes the run's: its lines count, and its state is saved at once."""
    assert replayed.order is not None
    assert replayed.state is not None
    for row in replayed.rows:
        metrics.write(row)
    log.info("promoted: the run from step %s on; it is at step %d", replayed.order.step, replayed.step)
    with contextlib.suppress(NotSaved):  # the saver has said so, and the next one may succeed
        saver.save(replayed.state, replayed.step, "promoted")
    if replayed.kept is not None and replayed.order.checkpoint:
        measure_later(attempt, replayed.order.checkpoint, replayed.kept)
