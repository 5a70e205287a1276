"""Checkpoints of the Trainer of transformers: ``checkpoint-N/``."""

from __future__ import annotations

import posixpath
import re
import sys
from typing import Any, Dict, List, Optional, cast

from midstream_core import records
from midstream_core.json_types import JsonValue, object_or_empty
from midstream_core.restricted_pickle import Record
from midstream_host.driver.checkpoints import deepspeed
from midstream_host.driver.checkpoints.checkpoint import IncompleteError, SavedState
from midstream_host.driver.checkpoints.checkpoint_tree import CheckpointTree, number_in
from midstream_host.driver.checkpoints.rule import CheckpointRule, RecordedEpoch
from midstream_host.driver.checkpoints.sharded_files import (
    check_distributed,
    check_ranks,
    check_weights,
    distributed_folders,
)

STATE = "trainer_state.json"
ARGUMENTS = "training_args.bin"
MAX_STATE = 64 << 20  # bytes of it
WITHOUT_LENGTH = 1 << 31  # epochs from which on the data have no length: it writes sys.maxsize
SENTINEL = "checkpoint-is-incomplete.txt"
_NAME = re.compile(r"^checkpoint-(\d+)$")
_OPTIMIZERS = ("optimizer.pt", "optimizer.bin")
_FOLDERS = r"(?:pytorch_model_fsdp|optimizer)_\d+"  # of FSDP with sharded states
_RANDOM = re.compile(r"rng_state(?:_\d+)?\.pth")


def named_step(name: str) -> Optional[int]:
    """Step in the name of a checkpoint."""
    return number_in(name, _NAME)


def check(tree: CheckpointTree, ranks: Optional[int]) -> Optional[int]:
    """Return the step; see `CheckpointRule.check`."""
    if tree.has(SENTINEL):
        raise IncompleteError("{} is there: the trainer has not finished writing it".format(SENTINEL))
    tree.refuse_partial()
    state = tree.json(STATE)
    step = state.get("global_step")
    if type(step) is not int or step < 0:
        raise IncompleteError("{} has no step".format(STATE))
    named = named_step(tree.name)
    if named is not None and named != step:
        raise IncompleteError("{} has step {}, and the name has step {}".format(STATE, step, named))
    for folder in distributed_folders(tree, _FOLDERS):
        check_distributed(tree, folder)
    engine = deepspeed.tag_in(tree)
    if engine:
        deepspeed.check_tag(tree, engine, ranks)
    if not check_weights(tree) and not engine and not tree.below("pytorch_model_fsdp_0"):
        raise IncompleteError("model.safetensors is missing, and there are no other weights of the model")
    if not engine:
        _check_optimizer(tree)
    if not engine or tree.has("scheduler.pt"):  # a scheduler of DeepSpeed's own is in its files
        tree.require("scheduler.pt", "the state of the learning-rate schedule")
        tree.check_file("scheduler.pt")
    if tree.has("scaler.pt"):
        tree.check_file("scaler.pt")
    _check_random_states(tree, ranks)
    return step


def saved_state(tree: CheckpointTree) -> SavedState:
    """Describe a checkpoint; see `CheckpointRule.saved_state`."""
    engine = deepspeed.tag_in(tree)
    random = len(list(tree.match(_RANDOM)))
    advice: List[str] = []
    skips = _argument(tree, "ignore_data_skip") is not True
    if not skips:
        advice.append("ignore_data_skip is set: a resume within an epoch starts the epoch's data again")
    if _is_later_pass(tree.json(STATE)):
        skips = False
        advice.append(
            "the data are a stream without a length, in its second or a later pass: a resume begins the pass again"
        )
    elif random > 1 and _dispatches(tree) and not _is_stream(tree.json(STATE)):
        skips = False
        advice.append(
            "dispatch_batches on a data set with a length: a resume on several processes skips too few batches, and "
            "repeats the others"
        )
    if _argument(tree, "enable_jit_checkpoint") is True:
        advice.append("enable_jit_checkpoint saves a step before the one that is logged last: rely on save_steps")
    return SavedState(
        model=True,
        optimizer=bool(engine) or any(map(tree.has, _OPTIMIZERS)) or bool(tree.below("optimizer_0")),
        scheduler=bool(engine) or tree.has("scheduler.pt"),
        random_states=random,
        data_position="recomputed" if skips else "none",
        reshards=not engine,
        advice=advice,
        final=_is_final(tree.json(STATE)),
    )


TrainerState = Dict[str, Any]  # trainer_state.json


def _is_final(state: TrainerState) -> bool:
    """Return whether the trainer had done all its steps.

    Resumed from such a checkpoint the trainer (5.24) does one more step, and may remove the checkpoint.
    """
    step, last = state.get("global_step"), state.get("max_steps")
    return type(step) is int and type(last) is int and 0 < last <= step


def _is_stream(state: TrainerState) -> bool:
    """Return whether the data have no length.

    The trainer then plans the largest number of epochs.
    """
    return state.get("num_train_epochs") == sys.maxsize


def _is_later_pass(state: TrainerState) -> bool:
    """Return whether a stream is in its second or a later pass, by its epoch."""
    epoch = state.get("epoch")
    return _is_stream(state) and isinstance(epoch, (int, float)) and epoch >= 1


def _dispatches(tree: CheckpointTree) -> bool:
    """Return whether process 0 reads all batches (`dispatch_batches`)."""
    config = _argument(tree, "accelerator_config")
    settings: Any = config.state if type(config) is Record else config
    return isinstance(settings, dict) and cast("Dict[JsonValue, JsonValue]", settings).get("dispatch_batches") is True


def _argument(tree: CheckpointTree, name: str) -> object:
    """An argument of the training; None where it is not stored."""
    if not tree.has(ARGUMENTS):
        return None
    with tree.archive(ARGUMENTS) as archive:
        value = tree.checked(ARGUMENTS, archive.load)
    state: Any = value.state if type(value) is Record else None
    return object_or_empty(state).get(name)


def _check_optimizer(tree: CheckpointTree) -> None:
    names = [name for name in _OPTIMIZERS if tree.has(name)]
    if not names and not tree.below("optimizer_0"):
        raise IncompleteError(
            "optimizer.pt is missing, the state of the optimizer (it is never written with save_only_model)"
        )
    for name in names:
        tree.check_file(name)


def _check_random_states(tree: CheckpointTree, ranks: Optional[int]) -> None:
    """Check every rank's random state; a single process has one file without a number."""
    single = tree.has("rng_state.pth")
    if (ranks is None and single) or ranks == 1:
        tree.require("rng_state.pth", "the random state")
        tree.check_file("rng_state.pth")
    elif not check_ranks(tree, "rng_state_{}.pth", ranks, "random state"):
        raise IncompleteError("rng_state.pth is missing, the random state")


def recorded_epoch(directory: str) -> Optional[RecordedEpoch]:
    """Return the epoch of a checkpoint; None where its state has none.

    Raises RecordError, OSError.
    """
    try:
        value: Any = records.read_json(posixpath.join(directory, STATE), MAX_STATE)
    except FileNotFoundError:
        return None
    state = cast("Dict[str, Any]", value) if isinstance(value, dict) else {}
    epochs, step = state.get("num_train_epochs"), state.get("global_step")
    if type(epochs) is not int or type(step) is not int or step < 0:
        return None
    return RecordedEpoch(step, epochs < WITHOUT_LENGTH)


RULE = CheckpointRule(
    "checkpoint-*",
    named_step,
    check,
    saved_state,
    epoch=recorded_epoch,
)
