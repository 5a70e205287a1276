"""Orbax checkpoints, of MaxText and others: ``N/`` or ``NAME_N/``, once complete."""

from __future__ import annotations

import json
import posixpath
import re
from typing import Dict, Iterable, List, Optional

from midstream_core.json_types import JsonObject, JsonValue, int_of, object_or_empty, optional_list, str_of
from midstream_host.driver.checkpoints.array_files import check_arrays
from midstream_host.driver.checkpoints.checkpoint import IncompleteError, SavedState
from midstream_host.driver.checkpoints.checkpoint_tree import CheckpointTree
from midstream_host.driver.checkpoints.rule import CheckpointRule
from midstream_host.driver.checkpoints.step_names import step_in

METADATA = "_CHECKPOINT_METADATA"
TREE = "_METADATA"  # of an item that is a tree of arrays
MARKER = "commit_success.txt"
UNFINISHED = ".orbax-checkpoint-tmp"
SHARDING = "_sharding"
_JSON_ITEM = "metadata"  # file of an item of JSON
_PROCESS = re.compile(r"ocdbt\.process_(\d{1,6})/")
_LISTED = re.compile(r"array_metadatas/process_(\d{1,6})")
_ARRAYS = ("jax.Array", "np.ndarray", "scalar")
_DESCRIBED = re.compile(r"(?:^|/)(?:_sharding|array_metadatas/process_\d+)$")  # JSON
_LOADER = re.compile(r"(?:^|/)(?:iter|data_iter|dataloader|grain|dataset)(?:/|$)|process_\d+-of-\d+\.json$")


def named_step(name: str) -> Optional[int]:
    """Number in the name of a checkpoint, also of one that is not complete."""
    return step_in(name.partition(UNFINISHED)[0])


def check(tree: CheckpointTree, ranks: Optional[int]) -> Optional[int]:
    """Check the files; see `CheckpointRule.check`.

    ``ranks``: processes that save. Each that had a part of an array to write has a store of its own.
    """
    if UNFINISHED in tree.name:
        raise IncompleteError("its name has {}: it is renamed when it is complete".format(UNFINISHED))
    for path in tree.sizes:
        if UNFINISHED in path:
            raise IncompleteError("{} is there: the checkpoint is being written".format(path))
    if not tree.has(METADATA) and not tree.has(MARKER):
        raise IncompleteError("neither {} nor {} is there: they are written last".format(METADATA, MARKER))
    described = tree.json(METADATA) if tree.has(METADATA) else {}
    if type(described.get("commit_timestamp_nsecs")) is not int and not tree.has(MARKER):
        raise IncompleteError("{} has no time of the commit".format(METADATA))
    handlers = object_or_empty(described.get("item_handlers"))
    named = sorted(handlers)
    for item in named:
        names = tree.below(item)
        if not names:
            raise IncompleteError("{} is missing, an item that {} names".format(item, METADATA))
        if "JsonCheckpointHandler" in str(handlers[item]):
            tree.json("{}/{}".format(item, _JSON_ITEM))
        elif TREE not in names and _has_stores(names):
            raise IncompleteError("{}/{} is missing, which describes its arrays".format(item, TREE))
    trees = [path for path in sorted(tree.sizes) if posixpath.basename(path) == TREE]
    if not trees and not named:
        raise IncompleteError("no item in it has {}".format(TREE))
    items = [_checked_item(tree, posixpath.dirname(path), ranks) for path in trees]
    check_arrays(tree, every_chunk=all(item.get("store_array_data_equal_to_fill_value") is True for item in items))
    for path in sorted(tree.sizes):
        if _DESCRIBED.search(path):
            tree.json(path)
    return None


def _checked_item(tree: CheckpointTree, item: str, ranks: Optional[int]) -> Dict[str, object]:
    """Check that a tree of arrays has its stores; return its metadata.

    Raises IncompleteError.
    """
    prefix = item + "/" if item else ""
    names = tree.below(item) if item else tree.sizes
    described = tree.json(prefix + TREE)
    if not _has_stores(names):
        raise IncompleteError("{}manifest.ocdbt is missing, and there are no arrays of zarr".format(prefix))
    processes = {int(match.group(1)) for match in map(_PROCESS.match, names) if match}
    if "manifest.ocdbt" not in names:
        if processes:
            raise IncompleteError(
                "{}manifest.ocdbt is missing: the parts of the processes were not merged".format(prefix)
            )
        _check_each_array(described, prefix, names)
    if ranks is None or not processes:
        return described
    if processes - set(range(ranks)):
        raise IncompleteError("{} processes wrote it, and the run has {}".format(max(processes) + 1, ranks))
    # A process that had no part of an array to write has no store, and lists the arrays all the same.
    lists = {int(match.group(1)) for match in map(_LISTED.fullmatch, names) if match}
    split = _is_split(tree.json(prefix + SHARDING)) if SHARDING in names else False
    for rank in range(ranks):
        if rank not in processes and (split or rank not in lists):
            raise IncompleteError("{}ocdbt.process_{} is missing, the arrays of a process".format(prefix, rank))
    return described


def _has_stores(names: Iterable[str]) -> bool:
    return any(posixpath.basename(name) in ("manifest.ocdbt", ".zarray", "zarr.json") for name in names)


def _check_each_array(described: JsonObject, prefix: str, names: Dict[str, int]) -> None:
    """Check that each array of a tree has a folder of its own. Raises IncompleteError."""
    for leaf in map(object_or_empty, object_or_empty(described.get("tree_metadata")).values()):
        keys = [str(object_or_empty(key).get("key")) for key in optional_list(leaf.get("key_metadata"))]
        folder = ".".join(keys)
        if object_or_empty(leaf.get("value_metadata", {})).get("value_type") not in _ARRAYS:
            continue
        if not any(posixpath.join(folder, name) in names for name in (".zarray", "zarr.json")):
            raise IncompleteError("{}{} is missing, an array that {}{} names".format(prefix, folder, prefix, TREE))


def _is_split(shardings: JsonObject) -> bool:
    """Return whether each device has another part of some array.

    In that case each process has written a part.
    """
    for text in shardings.values():
        try:
            sharding = object_or_empty(json.loads(str_of(text)))
        except (TypeError, ValueError):
            continue
        if sharding.get("sharding_type") != "NamedSharding":
            continue
        spec = {str(axis) for entry in optional_list(sharding.get("partition_spec")) for axis in _axes(entry)}
        lengths = map(int_of, optional_list(sharding.get("shape")))
        sizes = dict(zip(map(str_of, optional_list(sharding.get("axis_names"))), lengths))
        if any(size > 1 for size in sizes.values()) and all(axis in spec for axis in sizes if sizes[axis] > 1):
            return True
    return False


def _axes(entry: JsonValue) -> List[JsonValue]:
    return entry if isinstance(entry, list) else [entry]


def saved_state(tree: CheckpointTree) -> SavedState:
    """Describe a checkpoint by the names of the arrays; see `CheckpointRule`."""
    names = " ".join(
        " ".join(object_or_empty(tree.json(path).get("tree_metadata")))
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
        advice=advice,
    )


RULE = CheckpointRule(
    "*[0-9]*",
    named_step,
    check,
    saved_state,
    one_process=True,
)
