"""Checkpoints of MaxText: those of Orbax, whose names count updates from 0."""

from __future__ import annotations

from typing import Optional

from midstream_engine.foreign.checkpoints import orbax
from midstream_engine.foreign.checkpoints.checkpoint import SavedState
from midstream_engine.foreign.checkpoints.checkpoint_tree import CheckpointTree

PATTERN = "**/checkpoints/*[0-9]*"  # below the directory of the run's name


def named_step(name: str) -> Optional[int]:
    """Return a checkpoint's number of updates, from its name.

    ``N`` is written after update N, counted from 0.
    """
    found = orbax.named_step(name)
    return None if found is None else found + 1


def check(tree: CheckpointTree, ranks: Optional[int]) -> Optional[int]:
    """Return the step; see `Rule.check`."""
    found = orbax.check(tree, ranks)
    return None if found is None else found + 1


def saved_state(tree: CheckpointTree) -> SavedState:
    """Describe a checkpoint; see `Rule.saved_state`."""
    return orbax.saved_state(tree)
