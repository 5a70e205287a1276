"""Checkpoints of DeepSpeed: ``TAG/`` beside the file ``latest``.

``latest`` names the newest and is written last.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import Dict, List, Optional, Set, Tuple

from midstream_core import records
from midstream_core.json_types import JsonValue, list_or_empty, object_or_empty
from midstream_host.driver.checkpoints.checkpoint import IncompleteError, SavedState
from midstream_host.driver.checkpoints.checkpoint_tree import CheckpointTree
from midstream_host.driver.checkpoints.rule import CheckpointRule
from midstream_host.driver.checkpoints.step_names import step_in

LATEST = "latest"
LATEST_LIMIT = 4096  # bytes
_MODEL = re.compile(r"mp_rank_(\d{1,6})_model_states\.pt")
_SHARD = re.compile(r"zero_pp_rank_(\d{1,6})_mp_rank_(\d{1,6})_model_states\.pt")  # of stage 3
_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d{1,6})_mp_rank_(\d{1,6})_?optim_states\.pt")
_LAYER = re.compile(r"layer_(\d{1,6})-model_(\d{1,6})-model_states\.pt")
_ANY_MODEL = re.compile(r"(?:zero_pp_rank_0_)?mp_rank_(\d{1,6})_model_states\.pt")
_EXPERTS = re.compile(r"(?:layer_\d+_)?expert_|expp_rank_")  # divided over processes in another way
_MAX_RANKS = 1 << 20


def named_step(name: str) -> Optional[int]:
    """Number in the tag."""
    return step_in(name)


def check(tree: CheckpointTree, ranks: Optional[int]) -> Optional[int]:
    """Return the step; see `CheckpointRule.check`."""
    tree.refuse_partial()
    step = check_tag(tree, "", ranks)
    newest = _latest(posixpath.dirname(tree.path))
    if newest is None:
        raise IncompleteError("the file latest is missing beside it: it is written last", step)
    if newest != tree.name and not _is_older(tree, step, newest):
        raise IncompleteError("the file latest names {}: this one was not finished".format(newest[:80]), step)
    return step


def tag_in(tree: CheckpointTree) -> str:
    """Return the folder of DeepSpeed's state in another trainer's checkpoint.

    Empty where there is none. Raises as `check`.
    """
    if not tree.has(LATEST):
        folders = {path.split("/")[0] for path in tree.sizes if _MODEL.search(path) and "/" in path}
        if folders:
            raise IncompleteError("latest is missing, which names {}: it is written last".format(min(folders)))
        return ""
    tag = tree.text(LATEST, LATEST_LIMIT).strip()
    if not tag or posixpath.basename(tag) != tag or not tree.below(tag):
        raise IncompleteError("latest names {!r}, which is not there".format(tag[:80]))
    return tag


def check_tag(tree: CheckpointTree, folder: str, ranks: Optional[int]) -> Optional[int]:
    """Check the files of every rank in a folder of a tree; return the step.

    Raises IncompleteError.
    """
    prefix = folder + "/" if folder else ""
    names = sorted(tree.below(folder)) if folder else sorted(tree.sizes)
    models = {int(match.group(1)) for match in map(_MODEL.fullmatch, names) if match}
    shards = {_pair(match) for match in map(_SHARD.fullmatch, names) if match}
    optimizers = {_pair(match): match.group(0) for match in map(_OPTIMIZER.fullmatch, names) if match}
    if 0 not in models and (0, 0) not in shards:
        first = _shard_name(0, 0) if shards else "mp_rank_00_model_states.pt"
        raise IncompleteError("{}{} is missing, the state of a rank".format(prefix, first))
    first = "mp_rank_00_model_states.pt" if 0 in models else _shard_name(0, 0)
    state = tree.torch_value(prefix + first)
    data, model = _ranks_of(state, prefix + first)
    if ranks is not None and data * model != ranks:
        raise IncompleteError("it was written by {} ranks, and the run has {}".format(data * model, ranks))
    everyone = [(rank, shard) for rank in range(data) for shard in range(model)]
    if shards:
        _require(prefix, {pair: _shard_name(*pair) for pair in everyone}, shards, "the weights")
    else:
        _require(prefix, {(0, shard): "mp_rank_{:02d}_model_states.pt".format(shard) for shard in range(model)},
                 {(0, shard) for shard in models}, "the state")  # fmt: skip
    if optimizers or state.get("optimizer") is None:
        style = "bf16_" if any(name.startswith("bf16_") for name in optimizers.values()) else ""
        expected = {
            pair: optimizers.get(pair, style + _shard_name(*pair).replace("model_", "optim_")) for pair in everyone
        }
        _require(prefix, expected, set(optimizers), "the optimizer")
    for name in names:
        if name.endswith(".pt"):
            tree.check_file(prefix + name)
    if state.get("module") is None and not shards:
        _check_layers(tree, prefix, names, models)
    return _step(state)


def saved_state(tree: CheckpointTree) -> SavedState:
    """Describe a checkpoint; see `CheckpointRule.saved_state`."""
    state = tree.torch_value(
        "mp_rank_00_model_states.pt" if tree.has("mp_rank_00_model_states.pt") else _shard_name(0, 0)
    )
    sampler = isinstance(state.get("data_sampler"), dict)
    random = sum(1 for name in state if isinstance(name, str) and "rng_state" in name)
    advice: List[str] = []
    if not sampler:
        advice.append("no position in the data is stored: the script has to find it by the step")
    experts = any(_EXPERTS.match(name) for name in tree.sizes)
    return SavedState(
        model=True,
        optimizer=True,
        scheduler=isinstance(state.get("lr_scheduler"), dict),
        random_states=1 if random else 0,
        data_position="stored" if sampler else "none",
        reshards=not experts,
        model_ranks=max(1, len({match.group(1) for match in map(_ANY_MODEL.fullmatch, tree.sizes) if match})),
        advice=advice,
    )


def _pair(match: "re.Match[str]") -> Tuple[int, int]:
    return int(match.group(1)), int(match.group(2))


def _shard_name(rank: int, shard: int) -> str:
    return "zero_pp_rank_{}_mp_rank_{:02d}_model_states.pt".format(rank, shard)


def _latest(directory: str) -> Optional[str]:
    """The tag that ``latest`` names; None where there is no such file."""
    try:
        return records.read_bytes(os.path.join(directory, LATEST), LATEST_LIMIT).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    except records.RecordError as error:
        raise IncompleteError("latest: {}".format(error)) from None


def _ranks_of(state: Dict[JsonValue, JsonValue], name: str) -> Tuple[int, int]:
    """Data-parallel and model-parallel ranks, which the state has."""
    data, model = state.get("dp_world_size"), state.get("mp_world_size")
    if type(data) is not int or type(model) is not int or min(data, model) < 1 or data * model > _MAX_RANKS:
        raise IncompleteError("{} does not say how many ranks wrote it".format(name))
    return data, model


def _require(prefix: str, expected: Dict[Tuple[int, int], str], present: Set[Tuple[int, int]], what: str) -> None:
    for pair, name in sorted(expected.items()):
        if pair not in present:
            raise IncompleteError("{}{} is missing, {} of a rank".format(prefix, name, what))


def _check_layers(tree: CheckpointTree, prefix: str, names: List[str], models: Set[int]) -> None:
    """Check that every pipeline layer with parameters has a file of each tensor rank."""
    layers = {_pair(match) for match in map(_LAYER.fullmatch, names) if match}
    parts = 1 + max((shard for _, shard in layers), default=0)
    needed: Set[int] = set()
    for rank in models:
        groups: JsonValue = tree.torch_value("{}mp_rank_{:02d}_model_states.pt".format(prefix, rank)).get(
            "param_shapes"
        )
        for group in list_or_empty(groups):
            for parameter in object_or_empty(group):
                head = str(parameter).split(".")[0]
                if head.isdecimal():
                    needed.add(int(head))
    for layer in sorted(needed):
        for shard in range(parts):
            if (layer, shard) not in layers:
                name = "layer_{:02d}-model_{:02d}-model_states.pt".format(layer, shard)
                raise IncompleteError("{}{} is missing, the weights of a layer".format(prefix, name))


def _step(state: Dict[JsonValue, JsonValue]) -> Optional[int]:
    """Updates by the engine's own count. A tag may have any number: it is the user's."""
    step = state.get("global_steps")
    return step if type(step) is int and step >= 0 else None


def _is_older(tree: CheckpointTree, step: Optional[int], newest: str) -> bool:
    """Return whether a checkpoint's state is older than that of the one in ``latest``."""
    if step is None or posixpath.basename(newest) != newest:
        return False
    try:
        other = CheckpointTree(posixpath.join(posixpath.dirname(tree.path), newest))
        first = next((name for name in ("mp_rank_00_model_states.pt", _shard_name(0, 0)) if other.has(name)), "")
        later = _step(other.torch_value(first)) if first else None
    except (OSError, IncompleteError):  # it is being written again, or was removed
        later = None
    if later is None:
        later = step_in(newest)
    return later is not None and step <= later


RULE = CheckpointRule(
    "global_step*",
    named_step,
    check,
    saved_state,
    newest_file=LATEST,
)
