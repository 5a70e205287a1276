"""Orbax checkpoints: ``N/`` or ``NAME_N/``, renamed when complete.

They are those of MaxText and other trainers in JAX.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any, List, Optional, cast

from midstream_engine.foreign.checkpoints.array_files import check_arrays
from midstream_engine.foreign.checkpoints.checkpoint import IncompleteError, SavedState
from midstream_engine.foreign.checkpoints.checkpoint_tree import CheckpointTree, number_in

PATTERN = "*[0-9]*"
METADATA = "_CHECKPOINT_METADATA"
TREE = "_METADATA"  # of an item that is a tree of arrays
MARKER = "commit_success.txt"  # where a rename is not atomic, as in a bucket
UNFINISHED = ".orbax-checkpoint-tmp"
_NAME = re.compile(r"^(?:[A-Za-z]\w*[_-])?(\d+)$")
_PROCESS = re.compile(r"(?:.*/)?ocdbt\.process_(\d{1,6})/manifest\.ocdbt")
_DESCRIBED = re.compile(r"(?:^|/)(?:_sharding|array_metadatas/process_\d+)$")  # JSON
_LOADER = re.compile(r"(?:^|/)(?:iter|data_iter|dataloader|grain|dataset)(?:/|$)|process_\d+-of-\d+\.json$")


def named_step(name: str) -> Optional[int]:
    """Step in the name of a checkpoint, also of one that is not complete."""
    return number_in(name.partition(UNFINISHED)[0], _NAME)


def check(tree: CheckpointTree, ranks: Optional[int]) -> Optional[int]:
    """Return the step; see `Rule.check`.

    ``ranks``: processes that save, each of which has a store of its own.
    """
    if UNFINISHED in tree.name:
        raise IncompleteError("its name has {}: it is renamed when it is complete".format(UNFINISHED))
    for path in tree.sizes:
        if UNFINISHED in path:
            raise IncompleteError("{} is there: the checkpoint is being written".format(path))
    if not tree.has(METADATA) and not tree.has(MARKER):
        raise IncompleteError("neither {} nor {} is there: they are written last".format(METADATA, MARKER))
    committed = tree.json(METADATA).get("commit_timestamp_nsecs") if tree.has(METADATA) else None
    if type(committed) is not int and not tree.has(MARKER):
        raise IncompleteError("{} has no time of the commit".format(METADATA))
    trees = [path for path in sorted(tree.sizes) if posixpath.basename(path) == TREE]
    if not trees:
        raise IncompleteError("no item in it has {}".format(TREE))
    for path in trees:
        tree.json(path)
        item = posixpath.dirname(path)
        prefix = item + "/" if item else ""
        names = tree.below(item) if item else tree.sizes
        if not any(posixpath.basename(name) in ("manifest.ocdbt", ".zarray", "zarr.json") for name in names):
            raise IncompleteError("{}manifest.ocdbt is missing, and there are no arrays of zarr".format(prefix))
        if any(name.startswith("ocdbt.process_") for name in names) and "manifest.ocdbt" not in names:
            raise IncompleteError(
                "{}manifest.ocdbt is missing: the parts of the processes were not merged".format(prefix)
            )
    check_arrays(tree)
    for path in sorted(tree.sizes):
        if _DESCRIBED.search(path):
            tree.json(path)
    processes = {int(found.group(1)) for found in tree.match(_PROCESS)}
    if ranks is not None and processes and processes != set(range(ranks)):
        missing = sorted(set(range(ranks)) - processes)
        if missing:
            raise IncompleteError("ocdbt.process_{} is missing, the arrays of a process".format(missing[0]))
        raise IncompleteError("{} processes wrote it, and the run has {}".format(len(processes), ranks))
    return named_step(tree.name)


def saved_state(tree: CheckpointTree) -> SavedState:
    """Describe a checkpoint, by the names of the arrays; see `Rule.saved_state`."""
    names = " ".join(
        " ".join(cast("Any", tree.json(path).get("tree_metadata") or {}))
        for path in sorted(tree.sizes)
        if posixpath.basename(path) == TREE
    )
    loader = any(_LOADER.search(path) for path in tree.sizes)
    advice: List[str] = []
    if not loader:
        advice.append("no state of a data iterator is in it: save one (grain), or find the position by the step")
    return SavedState(
        model=True,
        optimizer="opt_state" in names or "'mu'" in names,
        scheduler="opt_state" in names,  # the schedule follows the optimizer's count
        random_states=int(bool(re.search(r"\b(?:rng|prng|key)s?\b", names))),
        data_position="stored" if loader else "none",
        reshards=True,
        advice=cast("List[Any]", advice),
    )
