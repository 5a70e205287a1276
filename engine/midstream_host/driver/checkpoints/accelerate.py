"""Checkpoints of ``Accelerator.save_state``.

A checkpoint is a directory with model, optimizer and random states.
"""

from __future__ import annotations

import re
from typing import Dict, List, Optional, cast

from midstream_core.json_types import JsonValue, object_or_empty
from midstream_host.driver.checkpoints import deepspeed
from midstream_host.driver.checkpoints.checkpoint import IncompleteError, SavedState
from midstream_host.driver.checkpoints.checkpoint_tree import CheckpointTree
from midstream_host.driver.checkpoints.rule import CheckpointRule
from midstream_host.driver.checkpoints.sharded_files import (
    check_distributed,
    check_ranks,
    check_weights,
    distributed_folders,
)
from midstream_host.driver.checkpoints.step_names import step_in

_STATES = re.compile(
    r"(?:optimizer|scheduler|sampler|dl_state_dict)(?:_\d+)?\.bin|scaler\.pt|custom_checkpoint_\d+\.pkl"
)
_FOLDERS = r"(?:pytorch_model_fsdp|optimizer)_\d+"
_COUNTED = re.compile(r"checkpoint_(\d+)")  # automatic names count the checkpoints, not the steps


def named_step(name: str) -> Optional[int]:
    """Return the number in a name that the user gave.

    Automatic names count the checkpoints.
    """
    return None if _COUNTED.fullmatch(name) else step_in(name)


def check(tree: CheckpointTree, ranks: Optional[int]) -> Optional[int]:
    """Return the optimizer's own count of updates; see `CheckpointRule.check`."""
    tree.refuse_partial()
    for folder in distributed_folders(tree, _FOLDERS):
        check_distributed(tree, folder)
    engine = deepspeed.tag_in(tree)
    count = deepspeed.check_tag(tree, engine, ranks) if engine else None
    if not check_weights(tree) and not engine and not tree.below("pytorch_model_fsdp_0"):
        raise IncompleteError("model.safetensors is missing, and there are no other weights of the model")
    if not engine and not tree.below("optimizer_0"):
        tree.require("optimizer.bin", "the state of the optimizer")
    for path in tree.match(_STATES):
        tree.check_file(path.group(0))
    if not check_ranks(tree, "random_states_{}.pkl", ranks, "random state"):
        raise IncompleteError("random_states_0.pkl is missing, the random state of rank 0: it is written last")
    return count if engine else _optimizer_step(tree)


def saved_state(tree: CheckpointTree) -> SavedState:
    """Describe a checkpoint; see `CheckpointRule.saved_state`."""
    engine = deepspeed.tag_in(tree)
    loader, sampler = tree.has("dl_state_dict.bin"), tree.has("sampler.bin")
    advice: List[str] = []
    if not loader:
        advice.append("the position in the data is not stored: set use_stateful_dataloader in DataLoaderConfiguration")
    if not sampler:
        advice.append("the order of the data is repeated only with use_seedable_sampler, which the files do not show")
    advice.append("the loader draws from the restored random state: dropout differs after a resume")
    if not tree.has("scheduler.bin"):
        advice.append("no schedule of the learning rate is stored: pass it to Accelerator.prepare")
    counted = _COUNTED.fullmatch(tree.name)
    return SavedState(
        model=True,
        optimizer=bool(engine) or tree.has("optimizer.bin") or bool(tree.below("optimizer_0")),
        scheduler=tree.has("scheduler.bin") or bool(engine),
        random_states=len(list(tree.match(re.compile(r"random_states_\d+\.pkl")))),
        data_position="stored" if loader else "none",
        reshards=not engine,
        counted_name=None if counted is None else int(counted.group(1)),
        advice=advice,
    )


def _optimizer_step(tree: CheckpointTree) -> Optional[int]:
    """Return the optimizer's count of updates of its parameters; None without one."""
    if not tree.has("optimizer.bin"):
        return None
    with tree.archive("optimizer.bin") as archive:
        value = tree.checked("optimizer.bin", archive.load)
        states: object = object_or_empty(value).get("state")
        if not isinstance(states, dict):
            return None
        steps: List[float] = []
        for state in cast("Dict[JsonValue, JsonValue]", states).values():
            number = (
                archive.number(cast("Dict[JsonValue, JsonValue]", state).get("step"))
                if isinstance(state, dict)
                else None
            )
            if number is not None:
                steps.append(number)
    return int(max(steps)) if steps and 0 <= max(steps) < 1 << 53 else None


RULE = CheckpointRule(
    "checkpoints/checkpoint_*",
    named_step,
    check,
    saved_state,
    counts_updates=True,
    name_hint='save it as save_state(f"{out}/step_{updates}")',
)
