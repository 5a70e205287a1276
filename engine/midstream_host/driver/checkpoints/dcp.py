"""Distributed checkpoints of torch: a directory with ``.metadata``.

FSDP2 under torchrun and torchtitan write this format.
"""

from __future__ import annotations

import re
from typing import List, Optional, Sequence

from midstream_host.driver.checkpoints.checkpoint import SavedState
from midstream_host.driver.checkpoints.checkpoint_tree import CheckpointTree
from midstream_host.driver.checkpoints.rule import CheckpointRule
from midstream_host.driver.checkpoints.sharded_files import check_distributed, distributed_step, has_metadata_of_ranks
from midstream_host.driver.checkpoints.step_names import step_in

_OPTIMIZER = re.compile(r"(?:^|[._])(?:optim|optimizer|optimizers)(?:[._]|$)|exp_avg")
_SCHEDULER = re.compile(r"(?:^|[._])(?:lr_)?schedulers?(?:[._]|$)")
_LOADER = re.compile(r"(?:^|[._])(?:train_)?(?:data_?loader|sampler)")
_LOADER_RANK = re.compile(r"dp_rank_(\d{1,6})$")  # of torchtitan: each data-parallel rank's loader
_LOADER_RANKS = re.compile(r"(?:^|[._])(?:train_)?data_?loader[._]world_size$")  # another number is an AssertionError
_RANDOM = re.compile(r"(?:^|[._])(?:rng|random)(?:_states?)?(?:[._]|$)")


def named_step(name: str) -> Optional[int]:
    """Number in the name of a checkpoint."""
    return step_in(name)


def check(tree: CheckpointTree, ranks: Optional[int]) -> Optional[int]:
    """Return the step in the state; see `CheckpointRule.check`."""
    return distributed_step(tree, check_distributed(tree, ranks=ranks))


def saved_state(tree: CheckpointTree) -> SavedState:
    """Describe a checkpoint by the names of its state; see `CheckpointRule`."""
    names = check_distributed(tree).names

    def count(pattern: "re.Pattern[str]") -> int:
        return sum(1 for name in names if pattern.search(name))

    alone = has_metadata_of_ranks(tree)
    advice: List[str] = []
    if alone:
        advice.append("another number of processes loads a part of it without an error: save with use_collectives=True")
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
        reshards=not alone,
        loader_ranks=_loader_ranks(names),
        advice=advice,
    )


def _loader_ranks(names: Sequence[str]) -> Optional[int]:
    """Return the number of loaders in the state; None where any number loads it."""
    ranks = [int(match.group(1)) for match in map(_LOADER_RANK.search, names) if match]
    return max(ranks) + 1 if ranks and any(map(_LOADER_RANKS.search, names)) else None


RULE = CheckpointRule(
    "step*",
    named_step,
    check,
    saved_state,
    of_scripts=True,
)
