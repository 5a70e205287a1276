"""Distributed checkpoints of torch: a directory with ``.metadata``.

They come from torchrun with FSDP2, and torchtitan.
"""

from __future__ import annotations

import re
from typing import Any, List, Optional, cast

from midstream_engine.foreign.checkpoints.checkpoint import SavedState
from midstream_engine.foreign.checkpoints.checkpoint_tree import CheckpointTree, number_in
from midstream_engine.foreign.checkpoints.sharded_files import check_distributed

PATTERN = "step*"
_NAME = re.compile(r"(\d+)$")
_OPTIMIZER = re.compile(r"(?:^|[._])(?:optim|optimizer|optimizers)(?:[._]|$)|exp_avg")
_SCHEDULER = re.compile(r"(?:^|[._])(?:lr_)?schedulers?(?:[._]|$)")
_LOADER = re.compile(r"(?:^|[._])(?:train_)?(?:data_?loader|sampler)")
_RANDOM = re.compile(r"(?:^|[._])(?:rng|random)(?:_states?)?(?:[._]|$)")


def named_step(name: str) -> Optional[int]:
    """Step at the end of the name of a checkpoint."""
    return number_in(name, _NAME)


def check(tree: CheckpointTree, ranks: Optional[int]) -> Optional[int]:  # noqa: ARG001  it loads on any number
    """Return the step; see `Rule.check`."""
    check_distributed(tree)
    return named_step(tree.name)


def saved_state(tree: CheckpointTree) -> SavedState:
    """Describe a checkpoint, by the names of its state; see `Rule.saved_state`."""
    names = check_distributed(tree).names

    def count(pattern: "re.Pattern[str]") -> int:
        return sum(1 for name in names if pattern.search(name))

    advice: List[str] = []
    if not count(_LOADER):
        advice.append("no state of a data loader is in it: the script has to find its position by the step")
    if not count(_RANDOM):
        advice.append("no random state is in it: dropout and augmentation differ after a resume")
    return SavedState(
        model=any(not _OPTIMIZER.search(name) for name in names),
        optimizer=bool(count(_OPTIMIZER)),
        scheduler=bool(count(_SCHEDULER)),
        random_states=count(_RANDOM),
        data_position="stored" if count(_LOADER) else "none",
        reshards=True,
        advice=cast("List[Any]", advice),
    )
