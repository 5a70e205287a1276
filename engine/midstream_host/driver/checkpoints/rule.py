"""Interface of a module that holds a trainer's rule of completeness."""

from __future__ import annotations

from typing import Optional, Protocol

from midstream_host.driver.checkpoints.checkpoint import SavedState
from midstream_host.driver.checkpoints.checkpoint_tree import CheckpointTree


class CheckpointRule(Protocol):
    """A rule, which a module implements."""

    @property
    def PATTERN(self) -> str:
        """Pattern of the paths of checkpoints below a run's directory."""
        ...

    def named_step(self, name: str) -> Optional[int]:
        """Number in a checkpoint's name that may be its step; None where it has none."""
        ...

    def check(self, tree: CheckpointTree, ranks: Optional[int]) -> Optional[int]:
        """Return the step in the state of a complete checkpoint; None where it has none.

        ``ranks``: those of the run, None where the number is not known.

        Raises:
            IncompleteError: The checkpoint is not complete.
            OSError: A file cannot be read.
        """
        ...

    def saved_state(self, tree: CheckpointTree) -> SavedState:
        """Describe a complete checkpoint. Raises as `check`."""
        ...
