"""Advice before a migration, on the run's trainer and its certificate.

The advice names what the trainer stores, what a certificate can check, and what to switch on.
"""

from __future__ import annotations

from collections.abc import Iterator

from midstream.check.check_result import FAIL, PASS, WARN, Check
from midstream.check.stored_checks import WORDS, stored_checks
from midstream.counts import count
from midstream.errors import RemoteError
from midstream.hosts.host_pool import HostPool
from midstream.launch.trainer_config import trainer_on
from midstream.trainers.registry import TRAINERS
from midstream.trainers.world import process_per_device
from midstream.watch.snapshot import RunView
from midstream_host.driver.run_file import FIXED, RunFile
from midstream_host.runs import losses
from midstream_host.trainers import stored_state

STRUCTURE_TIMEOUT = 300.0  # seconds to read the newest checkpoint's structure


def advise(hosts: HostPool, run: RunView) -> Iterator[Check]:
    """Yield what is known of a run before it is moved. Only reads.

    Raises:
        HostError: Its host does not answer.
    """
    host = hosts.get(run.host)
    trainer = trainer_on(host, run.run_id)
    if trainer is None:
        yield Check("trainer", PASS, "midstream's engine: state, data order and random state are in every checkpoint")
        return
    nodes, devices = (max(1, run.status.processes), max(1, len(run.status.devices))) if run.status else (1, 1)
    ranks = devices if process_per_device(trainer) else nodes
    number = f"{count(ranks, 'process', 'processes')} on {count(devices, 'device')}"
    yield Check("trainer", PASS, f"{trainer.trainer}, {number}, state {run.state}")
    yield _stop(trainer)
    try:
        newest = host.call(stored_state.newest, timeout=STRUCTURE_TIMEOUT)(
            root=host.root, run_id=run.run_id, ranks=ranks, words=list(WORDS)
        )
    except RemoteError as error:
        yield Check("checkpoint", FAIL, error.message, f"midstream --checkpoints {run.run_id}")
        return
    yield from _stored(trainer, newest, ranks)
    yield from _metrics(trainer, run)
    if trainer.batch.kept_by == FIXED:
        yield Check(
            "batch",
            WARN,
            f"nothing keeps the global batch: the run stays at {count(devices, 'device')}",
            "{accumulation} or {per_device} in the command with batch: {sequences: N}, or batch: {kept_by: trainer}",
        )
    else:
        yield Check("batch", PASS, f"the {trainer.batch.kept_by} keeps the global batch on another number of devices")


def _stop(trainer: RunFile) -> Check:
    if trainer.stop.saves:
        return Check("stop", PASS, f"it saves on {trainer.stop.signal}: no step is given up")
    advice = next((line for line in trainer.stored.advice if "saves" in line or "save_on" in line), "")
    return Check("stop", PASS, "it saves nothing on a signal: its next periodic checkpoint is waited for", advice)


def _stored(trainer: RunFile, stored: stored_state.StoredState, ranks: int) -> Iterator[Check]:
    for path, reason in stored.incomplete:
        yield Check("incomplete", WARN, f"{path}: {reason}", "it is neither copied nor resumed from")
    if stored.step is None:
        pattern = trainer.checkpoints.pattern or f"the rule {trainer.checkpoints.rule}"
        what = "none can be used yet" if stored.incomplete else f"{stored.directory} has no match of {pattern} yet"
        yield Check("checkpoint", WARN, what, "checkpoints: in the run file has their rule and their pattern")
        return
    if stored.problem:
        yield Check("checkpoint", FAIL, f"step {stored.step}: {stored.problem}", "it cannot be resumed from")
        return
    yield from stored_checks(trainer, stored, ranks, ranks)


def _metrics(trainer: RunFile, run: RunView) -> Iterator[Check]:
    rows = run.curve[-64:]
    if not any("train/loss" in row for row in rows):
        yield Check("loss", WARN, "no loss was read yet", "metrics: in the run file has its source")
        return
    yield Check("loss", PASS, f"read up to step {rows[-1]['global_step']}")
    if not any("optim/learning_rate" in row for row in rows):
        yield Check("learning rate", WARN, "not logged: a certificate cannot check it", "log it with the loss")
    if not any(row.get("batch_digest") for row in rows):
        yield Check(
            "batches",
            WARN,
            "no digests: the order of the data is checked by its losses alone",
            "midstream_tap in the training script records them",
        )
    shown = {"batch_elements", *losses.COUNTERS, *(losses.EPOCHS if TRAINERS[trainer.trainer].logs_epochs else ())}
    if not any(shown & row.keys() for row in rows):
        yield Check(
            "global batch",
            WARN,
            "no row shows the examples of a step: a certificate cannot check that they stay as many",
            "midstream_tap in the training script, or metrics: {names: {samples: NAME}} for a counter of examples",
        )
