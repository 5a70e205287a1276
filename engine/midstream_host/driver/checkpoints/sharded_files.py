"""Weights in parts, distributed checkpoints and a file for each rank."""

from __future__ import annotations

import posixpath
import re
from typing import Dict, List, Optional, Set, cast

from midstream_core import dcp_metadata
from midstream_core.dcp_metadata import DcpMetadata
from midstream_core.json_types import JsonValue
from midstream_host.driver.checkpoints.checkpoint import IncompleteError
from midstream_host.driver.checkpoints.checkpoint_tree import CheckpointTree
from midstream_host.driver.checkpoints.step_names import STEP_NAMES, step_of_number

METADATA = ".metadata"
_OF_RANK = r"__(\d{1,6})\.metadata"
# Weights are stored beside the state, or in a folder for each adapter or part of the model.
_WEIGHTS = re.compile(
    r"(?:.*/)?(?:[^/]+\.safetensors"
    r"|(?:adapter_|diffusion_)?(?:pytorch_)?model(?:_fsdp)?(?:_\d+)?(?:_rank\d+)?(?:-\d+-of-\d+)?\.bin)"
)
_NUMBERED = re.compile(r"(?:.*/)?[^/]+-\d+-of-\d+\.(?:safetensors|bin)")
_INDEX = re.compile(r"(?:.*/)?[^/]+\.(?:safetensors|bin)\.index\.json")
# Parts of a state that count for themselves.
_COUNTED_APART = re.compile(
    r"(?:^|[._])(?:model|optim|optimizers?|(?:lr_)?schedulers?|(?:train_)?data_?loader|sampler)(?:[._]|$)"
)
_MAX_STATED = 16  # numbers that may be the step
_ADAPTER = re.compile(r"((?:.*/)?)adapter_config\.json")  # of PEFT, written after the weights


def check_weights(tree: CheckpointTree) -> bool:
    """Check the files of the model's weights; return False where there are none.

    Files in every folder of the checkpoint count. Raises IncompleteError.
    """
    names = [match.group(0) for match in tree.match(_WEIGHTS)]
    indexed: Set[str] = set()
    for match in tree.match(_INDEX):
        index = match.group(0)
        listed: object = tree.json(index).get("weight_map")
        if not isinstance(listed, dict):
            raise IncompleteError("{} lists no files".format(index))
        for name in sorted({str(value) for value in cast("Dict[str, JsonValue]", listed).values()}):
            path = posixpath.join(posixpath.dirname(index), name)
            if path not in names:
                raise IncompleteError("{} is missing, which {} lists".format(path[:200], index))
            indexed.add(path)
    for match in tree.match(_ADAPTER):
        folder = match.group(1)
        if not any(name.startswith(folder + "adapter_model") for name in names):
            raise IncompleteError("{}adapter_model.safetensors is missing, the weights of an adapter".format(folder))
    for name in names:
        if _NUMBERED.fullmatch(name) and name not in indexed:
            raise IncompleteError("no index of the weights lists {}, which is a part of them".format(name))
        tree.check_file(name)
    return bool(names)


def is_distributed(tree: CheckpointTree) -> bool:
    """Return whether a directory has metadata of a distributed checkpoint."""
    return tree.has(METADATA) or has_metadata_of_ranks(tree)


def has_metadata_of_ranks(tree: CheckpointTree, folder: str = "") -> bool:
    """Return whether each rank has saved metadata of its own.

    torch writes them with ``use_collectives=False``. Another number of ranks loads a part of such a checkpoint without
    an error.
    """
    prefix = folder + "/" if folder else ""
    return not tree.has(prefix + METADATA) and any(tree.match(re.compile(re.escape(prefix) + _OF_RANK)))


def check_distributed(tree: CheckpointTree, folder: str = "", ranks: Optional[int] = None) -> DcpMetadata:
    """Check a distributed checkpoint of torch in a folder.

    ``ranks``: those of the run, None where the number is not known. Raises IncompleteError.
    """
    prefix = folder + "/" if folder else ""
    partial = prefix + METADATA + ".tmp"
    if tree.has(partial):
        raise IncompleteError("{} is there: the checkpoint is being written, or its writer was ended".format(partial))
    if not has_metadata_of_ranks(tree, folder):
        tree.require(prefix + METADATA, "it is written last")
        return _checked_metadata(tree, prefix, METADATA)
    pattern = re.compile(re.escape(prefix) + _OF_RANK)
    present = {int(match.group(1)) for match in tree.match(pattern)}
    expected = max(present) + 1 if ranks is None else ranks
    for rank in range(expected):
        tree.require("{}__{}.metadata".format(prefix, rank), "the metadata of rank {}".format(rank))
    if len(present) > expected:
        raise IncompleteError(
            "{} ranks saved it with use_collectives=False, and the run has {}: they would load a part of it".format(
                len(present), expected
            )
        )
    ends: Dict[str, int] = {}
    names: Dict[str, None] = {}
    small: Dict[str, dcp_metadata.Place] = {}
    for rank in sorted(present):
        metadata = _checked_metadata(tree, prefix, "__{}.metadata".format(rank))
        ends.update(metadata.ends)
        names.update(dict.fromkeys(metadata.names))
        small.update(metadata.small)
    return DcpMetadata(ends, list(names), small)


def distributed_step(tree: CheckpointTree, metadata: DcpMetadata) -> Optional[int]:
    """Return the step that a distributed checkpoint has in its state.

    It has one of the usual names. The least nested one counts: an optimizer, a schedule and a loader have counts of
    their own. None where there is none, or where two of them differ.
    """
    named = [(len(parts), name) for name in metadata.small for parts in [name.split(".")]
             if parts[-1] in STEP_NAMES and not _COUNTED_APART.search(".".join(parts[:-1]))]  # fmt: skip
    names = sorted(name for depth, name in named if depth == min(named)[0])[:_MAX_STATED]
    steps = {
        step_of_number(dcp_metadata.number(tree.full(place.file), place))
        for place in (metadata.small[name] for name in names)
    } - {None}
    return steps.pop() if len(steps) == 1 else None


def _checked_metadata(tree: CheckpointTree, prefix: str, name: str) -> DcpMetadata:
    path = prefix + name
    metadata = cast(DcpMetadata, tree.checked(path, lambda: dcp_metadata.read(tree.full(path))))
    if not metadata.ends:
        raise IncompleteError("{} names no files".format(path))
    for file, end in sorted(metadata.ends.items()):
        size = tree.sizes.get(prefix + file)
        if size is None:
            raise IncompleteError("{} is missing, which {} names".format(prefix + file, path))
        if size < end:
            raise IncompleteError("{} has {} bytes, and {} names {}".format(prefix + file, size, path, end))
    return metadata


def check_ranks(tree: CheckpointTree, template: str, ranks: Optional[int], what: str) -> int:
    """Check all ranks' torch files ``template.format(rank)``; return their number.

    ``ranks``: None where it is not known; the files that are there must then be those of ranks 0 to the highest.

    Raises:
        IncompleteError: One is missing or partial, or more ranks than ``ranks`` have one.
    """
    before, after = template.split("{}")
    pattern = re.compile(re.escape(before) + r"(\d{1,6})" + re.escape(after))
    present: List[int] = sorted(int(match.group(1)) for match in tree.match(pattern))
    expected = ranks if ranks is not None else (present[-1] + 1 if present else 0)
    for rank in range(expected):
        tree.require(template.format(rank), "the {} of rank {}".format(what, rank))
    if present and present[-1] >= expected:
        raise IncompleteError(
            "{} is there, and the run has {} ranks: another run has written here".format(
                template.format(present[-1]), expected
            )
        )
    for rank in range(expected):
        tree.check_file(template.format(rank))
    return expected


def distributed_folders(tree: CheckpointTree, pattern: str) -> List[str]:
    """Folders of the first level whose name matches and that have files."""
    expression = re.compile(pattern)
    return sorted(
        {path.split("/")[0] for path in tree.sizes if "/" in path and expression.fullmatch(path.split("/")[0])}
    )
