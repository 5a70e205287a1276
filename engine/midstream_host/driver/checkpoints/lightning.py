"""Checkpoints of Lightning: a file ``*.ckpt``, or a directory of sharded state."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, cast

from midstream_host.driver.checkpoints import deepspeed
from midstream_host.driver.checkpoints.checkpoint import IncompleteError, SavedState
from midstream_host.driver.checkpoints.checkpoint_tree import CheckpointTree, number_in
from midstream_host.driver.checkpoints.rule import CheckpointRule
from midstream_host.driver.checkpoints.sharded_files import METADATA, check_distributed

META = "meta.pt"  # of a sharded checkpoint: everything but tensors
_NAME = re.compile(r"step=(\d+)")
_ENGINE = "checkpoint"  # folder of DeepSpeed's state


def named_step(name: str) -> Optional[int]:
    """Step in the name of a checkpoint."""
    return number_in(name, _NAME)


def check(tree: CheckpointTree, ranks: Optional[int]) -> Optional[int]:
    """Return the step; see `CheckpointRule.check`."""
    tree.refuse_partial()
    if not tree.has(""):
        if tree.below(_ENGINE):
            deepspeed.check_tag(tree, _ENGINE, ranks)
        else:
            check_distributed(tree)
    value = _value(tree)
    step = value.get("global_step")  # a metric that is logged as "step" goes into the name
    if type(step) is not int or step < 0:
        raise IncompleteError("{} has no global_step: it was not written by Lightning".format(tree.name))
    if tree.has("") and not value.get("optimizer_states"):
        raise IncompleteError("has no state of the optimizer: it was saved with save_weights_only")
    return step


def saved_state(tree: CheckpointTree) -> SavedState:
    """Describe a checkpoint; see `CheckpointRule.saved_state`."""
    value = _value(tree)
    sharded = not tree.has("")
    stored = _loader_states(value)
    advice: List[str] = []
    if not stored:
        advice.append(
            "a resume within an epoch starts the epoch's data again: use StatefulDataLoader of torchdata as the loader"
        )
    advice.append("no random state is stored: dropout and augmentation differ after a resume")
    return SavedState(
        model="state_dict" in value or sharded,
        optimizer=bool(value.get("optimizer_states")) or sharded,
        scheduler=bool(value.get("lr_schedulers")),
        random_states=0,
        data_position="stored" if stored else "none",
        reshards=tree.has("") or tree.has(METADATA),
        advice=cast("List[Any]", advice),
    )


def _value(tree: CheckpointTree) -> Dict[Any, Any]:
    """Return what the checkpoint has beside tensors."""
    if tree.has(""):
        return tree.torch_value("")
    if tree.has(META):
        return tree.torch_value(META)
    if tree.below(_ENGINE):
        first = next((path for path in sorted(tree.below(_ENGINE)) if path.endswith("model_states.pt")), None)
        if first is not None:
            return tree.torch_value(_ENGINE + "/" + first)
    raise IncompleteError("{} is missing, which has the step".format(META))


def _loader_states(value: Dict[Any, Any]) -> bool:
    """Return whether a loader has stored its position, as StatefulDataLoader does."""
    place: Any = value
    for name in ("loops", "fit_loop", "state_dict", "combined_loader"):
        place = cast("Dict[Any, Any]", place).get(name) if isinstance(place, dict) else None
    return isinstance(place, list) and any(bool(state) for state in cast("List[Any]", place))


RULE = CheckpointRule(
    "**/*.ckpt",
    named_step,
    check,
    saved_state,
)
