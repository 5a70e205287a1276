"""One attempt from its start to its end: prepare, compile, restore, prove, train."""

from __future__ import annotations

import logging
import os
import time

import jax

from midstream_engine import records
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.tracking.metrics import MetricsFile
from midstream_engine.trainer import attempt as attempts
from midstream_engine.trainer.attempt import Attempt
from midstream_engine.trainer.loop import Loop
from midstream_engine.trainer.programs import compile_programs
from midstream_engine.trainer.requests import OrderFile, Requests, Signals
from midstream_engine.trainer.resume import check_same_data, find_origin, prove, restore
from midstream_engine.trainer.saving import Saver
from midstream_engine.trainer.setup import prepare
from midstream_engine.trainer.status import StatusFile, describe_devices, versions

log = logging.getLogger(__name__)


def configure_jax(config: TrainLmConfig, root: str) -> None:
    """The compile cache, which makes a restart quick, and what ``trainer.jax_config`` sets."""
    directory = config.trainer.jax_compilation_cache_dir or os.path.join(root, "compile-cache")
    jax.config.update("jax_compilation_cache_dir", os.path.expanduser(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    for name, value in config.trainer.jax_config.items():
        jax.config.update(name, value)


def run(config: TrainLmConfig, root: str, attempt: Attempt, status: StatusFile, signals: Signals) -> str:
    """Train; returns FINISHED or STOPPED. The status is left for the caller to end."""
    configure_jax(config, root)
    devices = describe_devices()
    status.update(devices=devices, versions=versions())
    status.write()
    log.info("attempt %d, epoch %d, on %d %s", attempt.number, attempt.epoch, len(devices), devices[0]["kind"])

    origin = find_origin(attempt, config)
    setup = prepare(config, root, origin.state["data_digest"] if origin else None)
    if origin is not None:
        check_same_data(origin, config, setup.tokenizer.id)
    step = origin.step if origin else 0
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
        evidence = prove(origin, resumed, train, setup, programs.witness, seconds)
        evidence.write(attempt.files.restore)
        state, step, root_digest = resumed.state, resumed.step, resumed.root_digest
        if origin.own:
            saver.holds(step)
            status.update(checkpoint=origin.name, root_digest=resumed.root_digest)
        sample = step * setup.cut.examples
        log.info("goes on at step %d: sample %d, epoch %.2f of the data", step, sample, setup.batches.epoch(step))

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
    metrics = MetricsFile(attempt.files.metrics)
    loop = Loop(setup, programs, saver, requests, attempt, status, metrics, state, step)
    try:
        return loop.run()
    finally:
        metrics.close()
        status.update(step=loop.step)
        attempts.record_end(attempt, loop.step)
