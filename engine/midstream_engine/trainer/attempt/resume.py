"""Where a run goes on: which checkpoint, whether it is the one that was meant, and the evidence."""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from midstream_engine import records
from midstream_engine.base_directory import resolved_path
from midstream_engine.checkpoint.loading.list_checkpoints import (
    list_checkpoints,
    newest_complete,
    read_manifest,
    read_train,
)
from midstream_engine.checkpoint.loading.restore import restore_checkpoint
from midstream_engine.checkpoint.saving.save_fence import read_fence
from midstream_engine.checkpoint.stores import bucket_fence, in_bucket, open_checkpoints, open_store
from midstream_engine.config.batch_schedule import BatchSchedule
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.errors import EngineError, FencedError
from midstream_engine.optim.adam import schedule_count
from midstream_engine.optim.averaging import start_average
from midstream_engine.trainer.attempt.attempt_record import Attempt
from midstream_engine.trainer.attempt.reference_losses import TOLERANCE, ReferenceLosses, worst_error
from midstream_engine.trainer.attempt.setup import Plan, Setup
from midstream_engine.trainer.loop.train_state import TrainState

log = logging.getLogger(__name__)
# Where things lie: another host has other places, and the run is the same.
_PLACES = ("data.cache_dir", "trainer.id", "trainer.jax_compilation_cache_dir", "trainer.log_dir", "trainer.root")


@dataclass(frozen=True)
class Origin:
    """A checkpoint to start from. ``root_digest``: what it has to be; None where nobody said."""

    directory: str
    own: bool  # it lies in the run's own directory
    same_run: bool  # its run goes on; False: its model alone begins another run (trainer.initialize_from)
    root_digest: str | None
    migration: str
    state: dict[str, Any]  # train.json's state
    validation: dict[str, Any] = field(default_factory=dict)  # the validation sets of its run, by name
    config: dict[str, Any] = field(default_factory=dict)  # that it was trained with, resolved; empty: not known

    @property
    def name(self) -> str:
        return os.path.basename(self.directory)

    @property
    def step(self) -> int:
        """Where training begins: another run begins at 0, with an optimizer that has counted nothing."""
        return self.state["step"] if self.same_run else 0

    @property
    def batch_schedule(self) -> BatchSchedule:
        return BatchSchedule.from_json(self.state["batch_schedule"])


@dataclass(frozen=True)
class Resumed:
    """The state to go on with."""

    state: TrainState
    step: int
    root_digest: str


def find_origin(attempt: Attempt, config: TrainLmConfig, order: records.Command | None) -> Origin | None:
    """The checkpoint that this attempt starts from; None for a fresh start.

    The ``order`` that it was started with may name it. Otherwise it is the run's own newest complete one that the fence
    accepts, then ``trainer.load_checkpoint_path``. Raises EngineError rather than answering with a fresh start where
    the run has a past that cannot be read.
    """
    if order is not None and order.action in records.STARTS:
        return origin_of(attempt, order)
    fence = read_fence(attempt.paths)
    if attempt.paths.store:
        fence = bucket_fence.newest_fence(attempt.paths, fence)
        if fence is not None and fence.epoch > attempt.epoch:
            raise FencedError(
                f"run {attempt.paths.run_id} was handed to {fence.owner} (epoch {fence.epoch}, sealed at step "
                f"{fence.sealed_step}), says {attempt.paths.store}; epoch {attempt.epoch} may not go on with it"
            )
    name = newest_complete(attempt.paths, fence)
    wish = config.trainer.load_checkpoint
    if name is not None:
        if wish is False:
            log.warning("trainer.load_checkpoint is false, but the run goes on from its own %s", name)
        return _origin(attempt.paths.checkpoint(name), True)
    existing = list_checkpoints(attempt.paths)
    if any(found.complete for found in existing):
        raise EngineError(
            f"run {attempt.paths.run_id} has checkpoints, but its fence (epoch {fence.epoch if fence else 0}) "
            "accepts none of them; restore names one, another --trainer.id starts afresh"
        )
    if fence is not None and fence.sealed_step is not None:
        raise EngineError(
            f"run {attempt.paths.run_id} was handed over at step {fence.sealed_step}, and that checkpoint is not here; "
            "copy it, or start afresh under another --trainer.id"
        )
    for found in existing:
        log.warning("checkpoint %s has no manifest: a save that was cut off; passed over", found.name)
    if config.trainer.load_checkpoint_path and wish is not False:
        return _origin(_resolve(config.trainer.load_checkpoint_path, "trainer.load_checkpoint_path"), False)
    if wish is True:
        raise EngineError(f"trainer.load_checkpoint is true, and run {attempt.paths.run_id} has no checkpoint to load")
    if config.trainer.initialize_from:
        directory = _resolve(config.trainer.initialize_from, "trainer.initialize_from")
        return _origin(directory, False, same_run=False)
    return None


def origin_of(attempt: Attempt, order: records.Command) -> Origin:
    """The checkpoint of the run that an order names. EngineError where it names none, CheckpointCorrupt where it is not
    complete."""
    if not order.checkpoint or records.parse_checkpoint_name(order.checkpoint) is None:
        raise EngineError(
            f"{attempt.files.command_file}: {order.action} names no checkpoint (found {order.checkpoint!r})"
        )
    directory = attempt.paths.checkpoint(order.checkpoint)
    return _origin(directory, True, root_digest=order.root_digest, migration=order.migration)


def _origin(
    directory: str, own: bool, *, same_run: bool = True, root_digest: str | None = None, migration: str = ""
) -> Origin:
    read_manifest(directory)  # without one it is none
    train = read_train(directory)
    provenance = train.get("provenance") or {}
    validation, config = (provenance.get(key) or {} for key in ("validation", "config"))
    return Origin(directory, own, same_run, root_digest, migration, train["state"], validation, config)


def _resolve(path: str, name: str) -> str:
    """A checkpoint's directory from its path or that of the folder or run that holds it."""
    path = path.rstrip("/") if in_bucket(path) else os.path.abspath(resolved_path(path))
    for folder in (path, os.path.join(path, "checkpoints")):
        if open_store(folder).exists(records.MANIFEST):
            return folder
        complete = {
            key: name
            for name in open_checkpoints(folder).names()
            if (key := records.parse_checkpoint_name(name))
            and open_store(os.path.join(folder, name)).exists(records.MANIFEST)
        }
        if complete:
            return os.path.join(folder, complete[max(complete)])
    raise EngineError(f"{name}: there is no complete checkpoint at {path}")


def batch_schedule_from(origin: Origin | None, config: TrainLmConfig) -> BatchSchedule:
    """The batch sizes of the whole run: what the run did until ``origin``, what the configuration says from there on.

    So a changed ``trainer.train_batch_size`` neither rewinds nor skips data.
    """
    wanted = config.trainer.batch_schedule()
    if origin is None or not origin.same_run:
        return wanted
    past = origin.batch_schedule
    schedule = past.then(origin.step, wanted)
    if schedule != past:
        log.warning("trainer.train_batch_size: was %s, is now %s: the data goes on, unbroken", past, schedule)
    return schedule


def check_same_data(origin: Origin, config: TrainLmConfig, tokenizer: str) -> None:
    """EngineError where the configuration would read other batches than the run's: the order of data is part of it."""
    trainer, state = config.trainer, origin.state
    wanted = {
        "trainer.seed": (state["seed"], trainer.seed),
        "model.seq_len": (state["seq_len"], config.model.seq_len),
        "data.shuffle": (state["shuffle"], config.data.shuffle),
        "data.tokenizer": (state["tokenizer"], tokenizer),
    }
    for name, (theirs, ours) in wanted.items():
        if theirs != ours:
            raise EngineError(
                f"{name} is {ours}, but checkpoint {origin.name} was trained with {theirs}: its data order would change"
            )


def report_changes(origin: Origin, config: TrainLmConfig) -> None:
    """Say where the configuration is another than the one that ``origin`` was trained with: one line, if any."""
    if not origin.same_run or not origin.config:
        return
    before, now = (_flat(json.loads(json.dumps(each))) for each in (origin.config, config.resolved()))
    changed = [
        f"{key}: was {json.dumps(before.get(key))}, is now {json.dumps(now.get(key))}"
        for key in sorted(before.keys() | now.keys())
        if key not in _PLACES and before.get(key) != now.get(key)
    ]
    if changed:
        log.warning("the configuration is not that of %s: %s", origin.name, "; ".join(changed))


def _flat(value: dict[str, Any], above: str = "") -> dict[str, Any]:
    """The values by the names that flags have."""
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= _flat(inner, f"{above}{key}.") if isinstance(inner, dict) else {above + key: inner}
    return found


def restore(origin: Origin, setup: Plan) -> tuple[Resumed, dict[str, Any]]:
    """The state that ``origin`` gives on the devices, and its train.json. Raises EngineError where it is another than
    meant."""
    if not origin.same_run:
        return _begin_with_model(origin, setup)
    restored = restore_checkpoint(origin.directory, setup.template, setup.shardings)
    if origin.root_digest is not None and restored.root_digest != origin.root_digest:
        raise EngineError(
            f"{origin.directory} has root digest {restored.root_digest}, the order names {origin.root_digest}; "
            "not restored"
        )
    state: TrainState = restored.tree
    count = int(np.asarray(schedule_count(state.optimizer)))
    if count != restored.train["state"]["schedule_count"]:
        raise EngineError(f"{origin.directory}: the schedule has counted {count} updates, train.json says otherwise")
    log.info("restored %s in %.2f s: root digest %s", origin.name, restored.seconds, restored.root_digest)
    return Resumed(state, origin.step, restored.root_digest), restored.train


def _begin_with_model(origin: Origin, setup: Plan) -> tuple[Resumed, dict[str, Any]]:
    """The state of step 0, but for the model, which is ``origin``'s. Nothing else of it is read."""
    fresh = setup.fresh_state()
    optimizer, key = fresh.optimizer, fresh.key
    del fresh  # and with it its model, before the other is read: devices hold no more than at a fresh start
    restored = restore_checkpoint(
        origin.directory, {"model": setup.template.model}, {"model": setup.shardings.model}, only="model/"
    )
    model, average = restored.tree["model"], None
    averaging = setup.config.trainer.model_averaging
    if averaging is not None:
        with setup.layout.active():
            start = functools.partial(start_average, averaging)
            average = jax.jit(start, out_shardings=setup.shardings.average)(model)
    log.info(
        "begins with the model of %s, read in %.2f s; root digest %s",
        origin.directory, restored.seconds, restored.root_digest,
    )  # fmt: skip
    return Resumed(TrainState(model, optimizer, key, average), origin.step, restored.root_digest), restored.train


def prove(
    origin: Origin,
    resumed: Resumed,
    train: dict[str, Any],
    setup: Setup,
    reference_losses: ReferenceLosses,
    seconds: dict[str, float],
) -> records.Restore:
    """The evidence that the restored state is the saved one and that the next batch is the next batch."""
    began = time.monotonic()
    # The batch that was to be next when the state was saved, even where the batch size is now another.
    expected = setup.batches.under(origin.batch_schedule).batch(resumed.step)
    measured = reference_losses.measure(resumed.state.model, expected)
    recorded = train.get("reference_losses") or {}
    losses = [float(loss) for loss in recorded.get("losses", [])]
    error = worst_error(losses, measured.losses)
    evidence = records.Restore(
        checkpoint=origin.name,
        step=resumed.step,
        root_digest=resumed.root_digest,
        expected_root_digest=read_manifest(origin.directory).root_digest,
        recorded_losses=losses,
        recomputed_losses=measured.losses,
        losses_error=min(error, sys.float_info.max),
        batch_digest=measured.batch_digest,
        recorded_batch_digest=recorded.get("batch_digest", ""),
        devices=setup.layout.mesh.size,
        seconds={**seconds, "reference_losses": time.monotonic() - began},
    )
    if error > TOLERANCE:
        log.error(
            "witness: losses differ by %.2e from those recorded with %s (tolerance %.0e)", error, origin.name, TOLERANCE
        )
    if evidence.batch_digest != evidence.recorded_batch_digest:
        log.error("batch %d is not the one that %s expects next", resumed.step, origin.name)
    log.info("witness: worst relative difference %.2e over %d sequences", error, len(losses))
    return evidence
