"""A checkpoint of another trainer, and what of a run's state is in it."""

from __future__ import annotations

import dataclasses
from typing import List, Literal, Optional, cast

RuleName = Literal[
    "huggingface", "lightning", "dcp", "accelerate", "deepspeed", "levanter", "orbax", "maxtext", "glob"
]  # fmt: skip


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

    ``path``: relative to the directory that was searched; a directory or a file. ``step``: number of updates, None
    where nothing says it. ``reason``: why it is not complete, empty where it is. ``modified``: seconds, of the newest
    file. DeepSpeed's ``latest`` is beside its checkpoints and not in ``files``: who copies one writes it.
    """

    path: str
    step: Optional[int]
    complete: bool
    reason: str
    modified: float
    files: List[CheckpointFile]


@dataclasses.dataclass(frozen=True)
class SavedState:
    """State that a resume from a checkpoint continues with.

    ``random_states``: number of ranks whose random state is in it. ``data_position``: ``stored`` (the loader's own
    state), ``recomputed`` (the trainer skips the batches of the steps that are done), ``none`` (the data restart).
    ``reshards``: whether its trainer loads it on another number of ranks. ``advice``: what the user can switch on, one
    line each.
    """

    model: bool = False
    optimizer: bool = False
    scheduler: bool = False
    random_states: int = 0
    data_position: Literal["stored", "recomputed", "none"] = "none"
    reshards: bool = False
    advice: List[str] = dataclasses.field(default_factory=lambda: cast("List[str]", []))


class IncompleteError(Exception):
    """Error for a checkpoint that is not complete.

    The message is the reason, in plain words. ``step``: where it is known.
    """

    def __init__(self, reason: str, step: Optional[int] = None) -> None:
        super().__init__(reason[:400])
        self.step = step
