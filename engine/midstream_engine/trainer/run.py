"""One attempt from its start to its end: prepare, compile, restore, prove, train."""

from __future__ import annotations

import logging
import os
import time

import jax

from midstream_engine import records
from midstream_engine.config.distributed import DistributedConfig
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.errors import EngineError
from midstream_engine.tracking.facts import RunFacts
from midstream_engine.tracking.trackers import start_recorder
from midstream_engine.trainer import attempt as attempts
from midstream_engine.trainer.attempt import Attempt
from midstream_engine.trainer.loop import Loop
from midstream_engine.trainer.programs import compile_programs
from midstream_engine.trainer.requests import OrderFile, Requests, Signals
from midstream_engine.trainer.resume import batch_schedule_from, check_same_data, find_origin, prove, restore
from midstream_engine.trainer.saving import Saver
from midstream_engine.trainer.setup import prepare
from midstream_engine.trainer.status import StatusFile, describe_devices, versions

log = logging.getLogger(__name__)


def configure_jax(config: TrainLmConfig, root: str) -> str:
    """The compile cache, which makes a restart quick, what ``trainer.jax_config`` sets, and the other processes.

    Returns the directory of the compile cache. Raises ConfigError for an option that jax does not have or a value that
    it does not take.
    """
    trainer = config.trainer
    chosen = trainer.jax_compilation_cache_dir or os.environ.get("JAX_COMPILATION_CACHE_DIR")
    directory = os.path.expanduser(chosen or os.path.join(root, "compile-cache"))
    jax.config.update("jax_compilation_cache_dir", directory)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    for name, value in trainer.jax_config.items():
        try:
            jax.config.update(name, value)
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(f"trainer.jax_config.{name}: {value!r}: {' '.join(str(error).split())}") from None
    start_distributed(trainer.distributed)
    if trainer.require_accelerator and jax.default_backend() == "cpu":
        raise ConfigError("trainer.require_accelerator is true, and jax sees no accelerator here")
    return directory


def start_distributed(config: DistributedConfig) -> None:
    """Join the other processes, where the configuration names them. Raises EngineError where they do not answer."""
    if not config.wanted:
        return
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            config.coordinator_address,
            config.num_processes,
            config.process_id,
            local_device_ids=config.local_device_ids or None,
        )
    except (RuntimeError, ValueError) as error:
        raise EngineError(f"trainer.distributed: {' '.join(str(error).split())}") from None
    log.info("process %d of %d", jax.process_index(), jax.process_count())


def run(config: TrainLmConfig, root: str, attempt: Attempt, status: StatusFile, signals: Signals) -> str:
    """Train; returns FINISHED or STOPPED. The status is left for the caller to end."""
    configure_jax(config, root)
    devices = describe_devices()
    status.update(devices=devices, versions=versions())
    status.write()
    log.info("attempt %d, epoch %d, on %d %s", attempt.number, attempt.epoch, len(devices), devices[0]["kind"])

    origin = find_origin(attempt, config)
    step = origin.step if origin else 0
    digest = origin.state["data_digest"] if origin and origin.same_run else None
    setup = prepare(config, root, digest, step=step, batch_schedule=batch_schedule_from(origin, config))
    if origin is not None and origin.same_run:
        check_same_data(origin, config, setup.tokenizer.id)
    status.update(state=records.COMPILING, step=step, data_digest=setup.batches.cache.digest)
    programs = compile_programs(setup)
    saver = Saver(setup, attempt, status, programs.witness, time.monotonic())

    if origin is None:
        state, step, root_digest = setup.fresh_state(), 0, None
        log.info("fresh start")
    else:
        status.update(state=records.RESTORING)
        began = time.monotonic()
        resumed, train = restore(origin, setup)
        seconds = {"compile": programs.seconds, "restore": time.monotonic() - began}
        if origin.same_run:
            evidence = prove(origin, resumed, train, setup, programs.witness, seconds)
            evidence.write(attempt.files.restore)
        state, step, root_digest = resumed.state, resumed.step, resumed.root_digest
        if origin.own:
            saver.holds(step)
            status.update(checkpoint=origin.name, root_digest=resumed.root_digest)
        began = time.monotonic()
        digest = setup.batches.batch(step).digest
        log.info(
            "goes on at step %d: sample %d, epoch %.3f of the data, batch %s (found in %.3f s)",
            step, setup.batch_schedule.first_sample(step), setup.batches.epoch(step), digest[:12],
            time.monotonic() - began,
        )  # fmt: skip

    orders = OrderFile(attempt.files.order)
    requests = Requests(signals, orders)
    if orders.order is not None and orders.order.action == records.RESTORE:
        status.update(order=orders.order.serial)
    attempts.record_start(
        attempt,
        attempts.lineage_entry(
            attempt,
            devices=devices,
            first_step=step,
            checkpoint=origin.name if origin else None,
            root_digest=root_digest,
            migration=origin.migration if origin else "",
        ),
    )
    facts = RunFacts(attempt.paths.run_id, attempt.number, step, attempt.files.dir, config.resolved())
    metrics = start_recorder(attempt.files.metrics, config.trainer.tracker, facts, process=jax.process_index())
    loop = Loop(setup, programs, saver, requests, attempt, status, metrics, state, step)
    try:
        return loop.run()
    finally:
        metrics.close()
        status.update(step=loop.step)
        attempts.record_end(attempt, loop.step)
