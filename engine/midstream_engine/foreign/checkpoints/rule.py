"""Interface of a module that holds a trainer's rule of completeness."""

from __future__ import annotations

from typing import Optional, Protocol

from midstream_engine.foreign.checkpoints.checkpoint import SavedState
from midstream_engine.foreign.checkpoints.checkpoint_tree import CheckpointTree


class Rule(Protocol):
    """A rule, which a module implements."""

    @property
    def PATTERN(self) -> str:
        """Pattern of the paths of checkpoints below a run's directory."""
        ...

    def named_step(self, name: str) -> Optional[int]:
        """Step in the name of a checkpoint; None where it has none."""
        ...

    def check(self, tree: CheckpointTree, ranks: Optional[int]) -> Optional[int]:
        """Return the step of a complete checkpoint.

        ``ranks``: those of the run, None where the number is not known.

        Raises:
            IncompleteError: It is not complete.
            OSError: A file cannot be read.
        """
        ...

    def saved_state(self, tree: CheckpointTree) -> SavedState:
        """Describe a complete checkpoint. Raises as `check`."""
        ...
