"""Checkpoints of Levanter: ``step-N/`` with ``metadata.json``, written last."""

from __future__ import annotations

import re
from typing import List, Optional

from midstream_host.driver.checkpoints.array_files import check_arrays
from midstream_host.driver.checkpoints.checkpoint import IncompleteError, SavedState
from midstream_host.driver.checkpoints.checkpoint_tree import CheckpointTree, number_in

PATTERN = "**/step-*"
METADATA = "metadata.json"
_NAME = re.compile(r"^step-(\d+)$")


def named_step(name: str) -> Optional[int]:
    """Return a checkpoint's number of updates, from its name.

    ``step-N`` is written after update N, counted from 0.
    """
    found = number_in(name, _NAME)
    return None if found is None else found + 1


def check(tree: CheckpointTree, ranks: Optional[int]) -> Optional[int]:  # noqa: ARG001  it loads on any number
    """Return the step; see `Rule.check`."""
    tree.require(METADATA, "it is written last")
    metadata = tree.json(METADATA)
    step, named = metadata.get("step"), number_in(tree.name, _NAME)
    if type(step) is not int or step < 0:
        raise IncompleteError("{} has no step".format(METADATA))
    if named is not None and named != step:
        raise IncompleteError("{} has step {}, and the name has step {}".format(METADATA, step, named))
    if not check_arrays(tree):
        raise IncompleteError("it has no arrays")
    return step + 1


def saved_state(tree: CheckpointTree) -> SavedState:
    """Describe a checkpoint; see `Rule.saved_state`."""
    advice: List[str] = []
    if tree.json(METADATA).get("is_temporary") is True:
        advice.append("it is a temporary checkpoint, which Levanter deletes when it has written a newer one")
    return SavedState(
        model=True,
        optimizer=True,
        scheduler=True,  # the schedule follows the optimizer's count
        random_states=1,  # one key for all ranks
        data_position="recomputed",
        reshards=True,
        advice=advice,
    )
