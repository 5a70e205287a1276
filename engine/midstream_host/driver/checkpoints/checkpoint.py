"""A checkpoint of another trainer, and what of a run's state is in it."""

from __future__ import annotations

import dataclasses
from typing import List, Literal, Optional, cast


@dataclasses.dataclass(frozen=True)
class CheckpointFile:
    """A file of a checkpoint.

    ``path``: relative to the directory that was searched. ``size``: bytes.
    """

    path: str
    size: int


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, complete or not.

    ``path``: relative to the directory that was searched; a directory or a file. ``reason``: why it is not complete,
    empty where it is. ``modified``: seconds, of the newest file. DeepSpeed's ``latest`` is beside its checkpoints and
    not in ``files``: who copies one writes it. ``stated``: number of updates by the state in it, None where that has
    none. ``named``: number in its name, which counts as the step only where the logged steps agree with it.
    """

    path: str
    complete: bool
    reason: str
    modified: float
    files: List[CheckpointFile]
    stated: Optional[int] = None
    named: Optional[int] = None

    @property
    def step(self) -> Optional[int]:
        """Step by its state, else the number in its name."""
        return self.stated if self.stated is not None else self.named


@dataclasses.dataclass(frozen=True)
class SavedState:
    """State that a resume from a checkpoint continues with.

    ``random_states``: number of ranks whose random state is in it. ``data_position``: ``stored`` (the loader's own
    state), ``recomputed`` (the trainer skips the batches of the steps that are done), ``none`` (the data restart).
    ``reshards``: whether it is loaded on another number of ranks. ``model_ranks``: ranks of tensor and pipeline
    parallelism, of which that number has to be a multiple. ``loader_ranks``: number of data-parallel
    ranks that have a loader's state in it, where the loader refuses another number; else None. ``counted_name``: its
    number among the checkpoints, where its writer numbers them by itself; else None. ``advice``: what the user can
    switch on, one line each. ``final``: the run was complete with it.
    """

    model: bool = False
    optimizer: bool = False
    scheduler: bool = False
    random_states: int = 0
    data_position: Literal["stored", "recomputed", "none"] = "none"
    reshards: bool = False
    model_ranks: int = 1
    loader_ranks: Optional[int] = None
    counted_name: Optional[int] = None
    advice: List[str] = dataclasses.field(default_factory=lambda: cast("List[str]", []))
    final: bool = False


class IncompleteError(Exception):
    """Error for a checkpoint that is not complete.

    The message is the reason, in plain words. ``step``: where it is known.
    """

    def __init__(self, reason: str, step: Optional[int] = None) -> None:
        super().__init__(reason[:400])
        self.step = step
