"""Resumption of a run: its checkpoint, and the restore."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from midstream_core import records
from midstream_core.attempt.errors import EngineError, FencedError
from midstream_core.attempt.save_fence import read_fence
from midstream_engine.base_directory import resolved_path
from midstream_engine.checkpoint.array_names import unflatten
from midstream_engine.checkpoint.errors import CheckpointMismatchError
from midstream_engine.checkpoint.loading.arrival import Arrival
from midstream_engine.checkpoint.loading.checkpoint_list import list_checkpoints, newest_complete
from midstream_engine.checkpoint.loading.checkpoint_records import read_manifest, read_train
from midstream_engine.checkpoint.loading.restore import First, restore_checkpoint
from midstream_engine.checkpoint.stores import bucket_fence, in_bucket, open_checkpoints, open_store
from midstream_engine.checkpoint.stores.stored_manifest import json_object
from midstream_engine.checkpoint.train_document import TrainDocument
from midstream_engine.computation.setup import CompilePlan
from midstream_engine.computation.train_state import TrainState
from midstream_engine.config.batch_schedule import BatchSchedule
from midstream_engine.config.train import TrainLmConfig
from midstream_engine.models.lm import LmModel
from midstream_engine.optim.averaging import start_average
from midstream_engine.optim.optimizer import schedule_count
from midstream_engine.runtime.attempt_record import AttemptRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Origin:
    """Checkpoint to start from.

    ``root_digest`` is the required one; None where none is given.
    """

    directory: str
    own: bool  # it is in the run's own directory
    same_run: bool  # its run continues; False: a new run begins with its model (trainer.initialize_model_from)
    root_digest: str | None
    migration: str
    state: dict[str, Any]  # train.json's state
    validation: dict[str, Any] = field(default_factory=dict)  # the validation sets of its run, by name
    config: dict[str, Any] = field(
        default_factory=dict
    )  # resolved configuration that it was trained with; empty: not recorded

    @property
    def name(self) -> str:
        """The checkpoint's name."""
        return os.path.basename(self.directory)

    @property
    def step(self) -> int:
        """The first step to train: 0 for a new run, whose optimizer starts at 0 too."""
        return self.state["step"] if self.same_run else 0

    @property
    def batch_schedule(self) -> BatchSchedule:
        """The batch schedule recorded with the checkpoint."""
        return BatchSchedule.from_json(self.state["batch_schedule"])


@dataclass(frozen=True)
class Resumed:
    """The restored state."""

    state: TrainState
    step: int
    root_digest: str


def find_origin(attempt: AttemptRecord, config: TrainLmConfig, command: records.Command | None) -> Origin | None:
    """Return the checkpoint that this attempt starts from; None for a fresh start.

    The ``command`` that it was started with may name it; an attempt that is started a second time, as a requeued job
    is, continues from what it has saved since. Otherwise it is the run's newest complete checkpoint that the
    fence accepts, then the one that ``trainer`` names. Raises EngineError, and never returns None, where the run has
    checkpoints or a fence but none that can be used, or ``trainer.load_checkpoint`` is false and it has checkpoints;
    FencedError where the run has passed this attempt's epoch.
    """
    if command is not None and command.action in records.STARTS:
        return _saved_since(attempt, command) or origin_of(attempt, command)
    fence = _newest_fence(attempt)
    try:
        name = newest_complete(attempt.paths, fence)
    except OSError as error:
        raise EngineError(f"the checkpoints of run {attempt.paths.run_id} cannot be read: {error}") from error
    wish = config.trainer.load_checkpoint
    if name is not None:
        if wish is False:
            raise EngineError(
                f"trainer.load_checkpoint is false, and run {attempt.paths.run_id} has checkpoints, the newest of them "
                f"{name} (hint: remove it to continue the run, or start a new run with another --trainer.id)"
            )
        return _origin(attempt.paths.checkpoint(name), True)
    existing = list_checkpoints(attempt.paths)
    if any(checkpoint.complete for checkpoint in existing):
        raise EngineError(
            f"run {attempt.paths.run_id} has checkpoints, but its fence (ownership {fence.epoch if fence else 0}) "
            "accepts none of them (hint: name one with a restore command, or start a new run with another --trainer.id)"
        )
    if fence is not None and fence.sealed_step is not None:
        raise EngineError(
            f"run {attempt.paths.run_id} was migrated at step {fence.sealed_step}, and that checkpoint is missing "
            "(hint: copy it, or start a new run with another --trainer.id)"
        )
    for interrupted in existing:
        log.warning("checkpoint %s has no manifest: its save was interrupted; it is skipped", interrupted.name)
    if config.trainer.load_checkpoint_path and wish is not False:
        return _origin(_resolve(config.trainer.load_checkpoint_path, "trainer.load_checkpoint_path"), False)
    if wish is True:
        raise EngineError(f"trainer.load_checkpoint is true, and run {attempt.paths.run_id} has no checkpoint to load")
    if config.trainer.initialize_from:
        return _origin(_resolve(config.trainer.initialize_from, "trainer.initialize_from"), False)
    if config.trainer.initialize_model_from:
        directory = _resolve(config.trainer.initialize_model_from, "trainer.initialize_model_from")
        return _origin(directory, False, same_run=False)
    return None


def _newest_fence(attempt: AttemptRecord) -> records.Fence | None:
    """Return the run's fence, on this host or in its bucket.

    Errors as of `find_origin`.
    """
    fence = read_fence(attempt.paths)
    if attempt.paths.store:
        fence = bucket_fence.newest_fence(attempt.paths, fence)
        if fence is not None and fence.epoch > attempt.epoch:
            raise FencedError(
                f"run {attempt.paths.run_id} has passed to {fence.owner} (ownership {fence.epoch}, sealed at step "
                f"{fence.sealed_step}) by the fence in {attempt.paths.store}; "
                f"ownership {attempt.epoch} may not continue it"
            )
    return fence


def _saved_since(attempt: AttemptRecord, command: records.Command) -> Origin | None:
    """Return the newest checkpoint that an earlier start of this epoch has saved.

    Only a checkpoint later than the one that ``command`` restores counts. None at the first start: nothing is saved
    under the epoch then. A later start continues where the fence has closed the one before, also one of another
    attempt.
    """
    named = records.parse_checkpoint_name(command.checkpoint or "")
    if command.action not in records.TAKEOVERS or named is None or named[1] == attempt.number:
        return None
    only = attempt.number if attempt.start <= 1 else None
    try:
        name = newest_complete(attempt.paths, _newest_fence(attempt), attempt=only)
    except OSError as error:
        raise EngineError(f"the checkpoints of run {attempt.paths.run_id} cannot be read: {error}") from error
    if name is None or (only is None and read_manifest(attempt.paths.checkpoint(name)).epoch != attempt.epoch):
        return None
    log.info("ownership %d was started before, and %s was saved since", attempt.epoch, name)
    return _origin(attempt.paths.checkpoint(name), True, migration=command.migration)


def origin_of(attempt: AttemptRecord, command: records.Command) -> Origin:
    """Return the checkpoint that a command names.

    Raises EngineError where it names none, CheckpointCorruptError where the checkpoint is not complete.
    """
    if not command.checkpoint or records.parse_checkpoint_name(command.checkpoint) is None:
        raise EngineError(
            f"{attempt.files.command_file}: {command.action} names no checkpoint (found {command.checkpoint!r})"
        )
    directory = attempt.paths.checkpoint(command.checkpoint)
    return _origin(directory, True, root_digest=command.root_digest, migration=command.migration)


def _origin(
    directory: str, own: bool, *, same_run: bool = True, root_digest: str | None = None, migration: str = ""
) -> Origin:
    read_manifest(directory)  # raises where the checkpoint is not complete
    train = read_train(directory)
    provenance = train.get("provenance") or {}
    validation, config = (provenance.get(key) or {} for key in ("validation", "config"))
    return Origin(directory, own, same_run, root_digest, migration, train["state"], validation, config)


def _resolve(path: str, name: str) -> str:
    """Return a checkpoint's directory from its path, or its folder's or run's.

    A folder gives the newest checkpoint that the fence of the run accepts, where a fence is beside the folder.

    Raises EngineError where there is no complete checkpoint.
    """
    path = path.rstrip("/") if in_bucket(path) else os.path.abspath(resolved_path(path))
    for folder in (path, os.path.join(path, "checkpoints")):
        try:
            if open_store(folder).exists(records.MANIFEST):
                return folder
            named = [(key, candidate) for candidate in open_checkpoints(folder).names()
                     if (key := records.parse_checkpoint_name(candidate))]  # fmt: skip
            fence = _fence_beside(folder) if named else None
            for _, candidate in sorted(named, key=lambda entry: (entry[0], len(entry[1]), entry[1]), reverse=True):
                directory = os.path.join(folder, candidate)
                if open_store(directory).exists(records.MANIFEST) and _counts(directory, fence):
                    return directory
        except (OSError, records.RecordError) as error:
            raise EngineError(f"{name}: {folder} cannot be read: {error}") from error
    raise EngineError(f"{name}: there is no complete checkpoint at {path}")


def _fence_beside(folder: str) -> records.Fence | None:
    """Return the fence of the run that has this folder of checkpoints, or None."""
    run = os.path.dirname(folder)
    try:
        return records.Fence.from_json(json_object(open_store(run), "fence.json"), f"{run}/fence.json")
    except FileNotFoundError:
        return None


def _counts(directory: str, fence: records.Fence | None) -> bool:
    """Return whether the fence accepts a complete checkpoint."""
    if fence is None:
        return True
    manifest = read_manifest(directory)
    return fence.accepts(manifest.epoch, manifest.step, manifest.start)


def batch_schedule_from(origin: Origin | None, config: TrainLmConfig) -> BatchSchedule:
    """Return the run's batch sizes: as trained up to ``origin``, then as configured.

    A changed ``trainer.train_batch_size`` therefore neither repeats nor skips data.
    """
    configured = config.trainer.batch_schedule()
    if origin is None or not origin.same_run:
        return configured
    past = origin.batch_schedule
    schedule = past.then(origin.step, configured)
    if schedule != past:
        log.warning("trainer.train_batch_size: was %s, is now %s; no data is repeated or skipped", past, schedule)
    return schedule


def check_same_data(origin: Origin, config: TrainLmConfig, tokenizer: str) -> None:
    """Raise EngineError where the configuration would read other batches than the run.

    Another order of the batches is an error, too.
    """
    trainer, state = config.trainer, origin.state
    settings = {
        "trainer.seed": (state["seed"], trainer.seed),
        "model.seq_len": (state["seq_len"], config.model.seq_len),
        "data.shuffle": (state["shuffle"], config.data.shuffle),
        "data.tokenizer": (state["tokenizer"], tokenizer),
    }
    # Examples have another length with it: other stretches of the text, in another order.
    if data := origin.config.get("data"):
        settings["data.next_token"] = (data.get("next_token", False), config.data.next_token)
    for name, (theirs, ours) in settings.items():
        if theirs != ours:
            raise EngineError(
                f"{name} is {ours}, but checkpoint {origin.name} was trained with {theirs}: its data order would change"
            )


def restore(
    origin: Origin,
    setup: CompilePlan,
    model_ready: Callable[[LmModel], None] | None = None,
    arrival: Arrival | None = None,
) -> tuple[Resumed, TrainDocument]:
    """Restore ``origin`` to the devices; returns the state and its train.json.

    Args:
        origin: The checkpoint.
        setup: The plan of the run.
        model_ready: Called with the model while the rest of the state is read, which may fail yet. Not called where a
            new run begins with the model of ``origin``.
        arrival: Has read a part of it while it arrived.

    Raises EngineError where it is not the checkpoint that the command names.
    """
    if not origin.same_run:
        return _begin_with_model(origin, setup)
    first = None
    if model_ready is not None:
        template, ready = {"model": setup.template.model}, model_ready
        first = First("model/", lambda arrays: ready(unflatten(template, arrays)["model"]))
    with _named_types(origin, setup):
        restored = restore_checkpoint(origin.directory, setup.template, setup.shardings, first=first, arrival=arrival)
    if origin.root_digest is not None and restored.root_digest != origin.root_digest:
        raise EngineError(
            f"{origin.directory} has root digest {restored.root_digest}, the command names {origin.root_digest}; "
            "not restored"
        )
    state: TrainState = restored.tree
    count = int(np.asarray(schedule_count(state.optimizer)))
    if count != restored.train["state"]["schedule_count"]:
        raise EngineError(
            f"{origin.directory}: the schedule has counted {count} updates, train.json has another number"
        )
    log.info("restored %s in %.2f s: root digest %s", origin.name, restored.seconds, restored.root_digest)
    return Resumed(state, origin.step, restored.root_digest), restored.train


# Settings that decide the dtypes of arrays whose names begin so.
_TYPES = {
    "model/": "trainer.mp", "optimizer/adam/mu/": "optimizer.mu_dtype", "optimizer/adam/nu/": "optimizer.nu_dtype",
}  # fmt: skip


@contextlib.contextmanager
def _named_types(origin: Origin, setup: CompilePlan) -> Iterator[None]:
    """Report arrays that differ in dtype alone by the settings that decide them.

    Raises:
        EngineError: Arrays differ in dtype alone.
    """
    try:
        yield
    except CheckpointMismatchError as error:
        if generator := next((pair.axes[0] for pair in error.different if pair.name == "key" and pair.axes), None):
            raise EngineError(
                f"{origin.directory}: the run has random numbers of the generator {', '.join(generator)}, and this "
                "midstream has threefry2x32 alone (hint: continue it with the midstream that it began with)"
            ) from None
        pairs = {next((key for key in _TYPES if array.name.startswith(key)), ""): array for array in error.different}
        if error.missing or error.extra or "" in pairs or any(array.axes or array.shape for array in error.different):
            raise
        stored_types = {_TYPES[prefix]: array.dtype for prefix, array in pairs.items() if array.dtype is not None}
        named_types = {name: stored for name, (stored, _) in stored_types.items()}
        if "trainer.mp" in named_types:
            named_types["trainer.mp"] = str(setup.config.trainer.precision().with_parameters(named_types["trainer.mp"]))
        raise EngineError(
            f"{origin.directory} has other types than the configuration: "
            + ", ".join(f"{stored} where {name} means {ours}" for name, (stored, ours) in stored_types.items())
            + f" (hint: {' '.join(f'--{name} {value}' for name, value in named_types.items())})"
        ) from None


def _begin_with_model(origin: Origin, setup: CompilePlan) -> tuple[Resumed, TrainDocument]:
    """Return the state of step 0 with the model of ``origin``, and nothing else of it."""
    fresh = setup.fresh_state()
    optimizer, key = fresh.optimizer, fresh.key
    del fresh  # free its model before the other is read: peak memory is that of a fresh start
    with _named_types(origin, setup):
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
