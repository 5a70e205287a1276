"""A trainer's rule of completeness, and other properties of its checkpoints."""

from __future__ import annotations

import dataclasses
from typing import Callable, Mapping, NamedTuple, Optional, Sequence

from midstream_host.driver.checkpoints.checkpoint import Checkpoint, SavedState
from midstream_host.driver.checkpoints.checkpoint_tree import CheckpointTree

# How a script makes the step of a checkpoint known.
NAME_HINT = "name it step_{updates}"


class OtherPlace(NamedTuple):
    """A configured place of checkpoints.

    ``base``: as it is configured, absolute, or the address of a bucket; empty: none is. ``folder``: the run's own below
    it; empty where it cannot be looked at, which is the ``problem``.
    """

    base: str = ""
    folder: str = ""
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class RecordedEpoch:
    """Epoch of a checkpoint: its step, and whether the epoch shows examples.

    ``sized``: the data have a length, by which the trainer computes the part of an epoch that a step is; else it
    divides by the number of steps, and the epoch says nothing of the examples.
    """

    step: int
    sized: bool


def _always(checkpoint: Checkpoint) -> bool:  # noqa: ARG001 (of `CheckpointRule.shows_end`)
    return True


class CheckpointRule(NamedTuple):
    """A rule of checkpoints. Each module that is listed in `RULES` has one.

    Attributes:
        pattern: Pattern of the paths of checkpoints below a run's directory.
        named_step: Returns the number in a checkpoint's name that may be its step; None where it has none.
        check: Returns the step in the state of a complete checkpoint, given the run's number of ranks, None where that
            is not known; None where the state has no step. Raises IncompleteError where it is not complete, OSError
            where a file cannot be read.
        saved_state: Describes a complete checkpoint. Raises as ``check``.
        newest_file: File beside the checkpoints that names the newest, and is written last; empty: none.
        counts_updates: The step is the optimizer's count, without the updates that a loss scale skips: a name that
            agrees with the log is better.
        of_scripts: The state is of a script: a step in it may be that of an epoch, or count other steps than the log.
        states_processes: The files show whether another number of processes can load them.
        one_process: Its trainers have one process on each node, as programs in jax.
        name_hint: What makes the step known.
        shows_end: Returns whether a complete checkpoint shows that nothing more is written.
        other_place: Returns where a command, its working directory and its environment let it write too.
        epoch: Returns the epoch of the checkpoint in a directory; None where it has none.
    """

    pattern: str
    named_step: Callable[[str], Optional[int]]
    check: Callable[[CheckpointTree, Optional[int]], Optional[int]]
    saved_state: Callable[[CheckpointTree], SavedState]
    newest_file: str = ""
    counts_updates: bool = False
    of_scripts: bool = False
    states_processes: bool = True
    one_process: bool = False
    name_hint: str = NAME_HINT
    shows_end: Callable[[Checkpoint], bool] = _always
    other_place: Optional[Callable[[Sequence[str], str, Mapping[str, str]], OtherPlace]] = None
    epoch: Optional[Callable[[str], Optional[RecordedEpoch]]] = None
