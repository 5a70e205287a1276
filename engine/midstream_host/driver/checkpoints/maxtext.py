"""Checkpoints of MaxText: those of Orbax, whose names count updates from 0."""

from __future__ import annotations

from typing import Optional

from midstream_host.driver.checkpoints import orbax
from midstream_host.driver.checkpoints.checkpoint import SavedState
from midstream_host.driver.checkpoints.checkpoint_tree import CheckpointTree
from midstream_host.driver.checkpoints.rule import CheckpointRule


def named_step(name: str) -> Optional[int]:
    """Return a checkpoint's number of updates, from its name.

    ``N`` is written after update N, counted from 0.
    """
    step = orbax.named_step(name)
    return None if step is None else step + 1


def check(tree: CheckpointTree, ranks: Optional[int]) -> Optional[int]:
    """Check the files; see `CheckpointRule.check`."""
    return orbax.check(tree, ranks)


def saved_state(tree: CheckpointTree) -> SavedState:
    """Describe a checkpoint; see `CheckpointRule.saved_state`."""
    return orbax.saved_state(tree)


RULE = CheckpointRule(
    "**/checkpoints/*[0-9]*",  # below the directory of the run's name
    named_step,
    check,
    saved_state,
    one_process=True,
)
