"""Advice before a migration of a run.

It says what the run's trainer stores, what a certificate can check, and what to switch on.
"""

from __future__ import annotations

from collections.abc import Iterator

from midstream.check.check_result import FAIL, PASS, WARN, Check
from midstream.counts import count
from midstream.errors import RemoteError
from midstream.hosts.host_pool import HostPool
from midstream.launch.trainer_config import trainer_on
from midstream.output import size
from midstream.remote.trainers import stored_state
from midstream.watch.snapshot import RunView
from midstream_engine.foreign.run_file import FIXED, RunFile

READ_TIMEOUT = 300.0  # seconds to read the newest checkpoint's structure


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
    ranks = max(1, len(run.status.devices)) if run.status else 1
    yield Check("trainer", PASS, f"{trainer.trainer}, {count(ranks, 'process', 'processes')}, state {run.state}")
    yield _stop(trainer)
    try:
        found = host.call(stored_state.newest, timeout=READ_TIMEOUT)(root=host.root, run_id=run.run_id, ranks=ranks)
    except RemoteError as error:
        yield Check("checkpoint", FAIL, error.message, f"midstream --checkpoints {run.run_id}")
        return
    yield from _stored(trainer, found, ranks)
    yield from _metrics(run)
    if trainer.batch.kept_by == FIXED:
        yield Check(
            "batch",
            WARN,
            f"nothing keeps the global batch: the run stays at {count(ranks, 'process', 'processes')}",
            "{accumulation} or {per_device} in the command with batch: {sequences: N}, or batch: {kept_by: trainer}",
        )
    else:
        yield Check("batch", PASS, f"the {trainer.batch.kept_by} keeps the global batch on another number of processes")


def _stop(trainer: RunFile) -> Check:
    if trainer.stop.saves:
        return Check("stop", PASS, f"it saves on {trainer.stop.signal}: no step is given up")
    advice = next((line for line in trainer.stored.advice if "saves" in line or "save_on" in line), "")
    return Check("stop", PASS, "it saves nothing on a signal: its next periodic checkpoint is waited for", advice)


def _stored(trainer: RunFile, found: stored_state.StoredState, ranks: int) -> Iterator[Check]:
    for path, reason in found.incomplete:
        yield Check("incomplete", WARN, f"{path}: {reason}", "it is neither copied nor resumed from")
    if found.step is None:
        pattern = trainer.checkpoints.pattern or f"the rule {trainer.checkpoints.rule}"
        what = "none is complete yet" if found.incomplete else f"{found.directory} has no match of {pattern} yet"
        yield Check("checkpoint", WARN, what, "checkpoints: in the run file has their rule and their pattern")
        return
    if found.problem:
        yield Check("checkpoint", FAIL, f"step {found.step}: {found.problem}", "it cannot be resumed from")
        return
    yield Check(
        "checkpoint", PASS, f"step {found.step}, {size(found.size)}, complete by the rule {trainer.checkpoints.rule}"
    )
    hints = list(found.advice) or list(trainer.stored.advice)
    hint = hints[0] if hints else ""
    yield Check("optimizer", PASS if found.optimizer else WARN, "stored" if found.optimizer else "not found in it")
    enough = found.random_states >= ranks
    yield Check(
        "random state",
        PASS if enough else WARN,
        "stored for every process"
        if enough
        else f"stored for {found.random_states} of {count(ranks, 'process', 'processes')}: dropout and augmentation "
        "draw other numbers after a migration",
    )
    texts = {
        "stored": "stored with the checkpoint",
        "recomputed": "recomputed from the step: the same batches follow",
        "none": "not stored: the data may begin again",
    }
    yield Check(
        "data order",
        WARN if found.data_position == "none" else PASS,
        texts.get(found.data_position, found.data_position),
        hint if found.data_position == "none" else "",
    )


def _metrics(run: RunView) -> Iterator[Check]:
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
