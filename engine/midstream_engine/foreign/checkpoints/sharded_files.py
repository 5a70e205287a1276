"""Files that several trainers use.

They are weights in parts, distributed checkpoints, and a file for each rank.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, cast

from midstream_engine.foreign.checkpoints.checkpoint import IncompleteError
from midstream_engine.foreign.checkpoints.checkpoint_tree import CheckpointTree
from midstream_engine.foreign.formats import dcp_metadata
from midstream_engine.foreign.formats.dcp_metadata import DcpMetadata

METADATA = ".metadata"
_WEIGHTS = re.compile(r"(?:adapter_)?(?:pytorch_)?model(?:-\d+-of-\d+|_\d+)?\.(?:safetensors|bin)|adapter_model\.\w+")
_NUMBERED = re.compile(r"(?:pytorch_)?model-(\d+)-of-(\d+)\.(safetensors|bin)")
_INDEX = re.compile(r"(?:pytorch_)?model\.(?:safetensors|bin)\.index\.json")


def check_weights(tree: CheckpointTree) -> bool:
    """Check the files of the model's weights; return False where there are none.

    Raises IncompleteError.
    """
    names = [found.group(0) for found in tree.match(_WEIGHTS)]
    indexes = [found.group(0) for found in tree.match(_INDEX)]
    for index in indexes:
        listed: Any = tree.json(index).get("weight_map")
        if not isinstance(listed, dict):
            raise IncompleteError("{} lists no files".format(index))
        for name in sorted({str(value) for value in cast("Dict[str, Any]", listed).values()}):
            if name not in names:
                raise IncompleteError("{} is missing, which {} lists".format(name[:200], index))
    for name in names:
        part = _NUMBERED.fullmatch(name)
        if part and not indexes:
            raise IncompleteError("the index of the weights is missing, of which {} is a part".format(name))
        tree.check_file(name)
    return bool(names)


def check_distributed(tree: CheckpointTree, folder: str = "") -> DcpMetadata:
    """Check a distributed checkpoint of torch in a folder. Raises IncompleteError."""
    prefix = folder + "/" if folder else ""
    path = prefix + METADATA
    if tree.has(prefix + METADATA + ".tmp"):
        raise IncompleteError("{}.tmp is there: the checkpoint is being written, or its writer was ended".format(path))
    tree.require(path, "it is written last")
    found = cast(DcpMetadata, tree.checked(path, lambda: dcp_metadata.read(tree.full(path))))
    if not found.ends:
        raise IncompleteError("{} names no files".format(path))
    for file, end in sorted(found.ends.items()):
        size = tree.sizes.get(prefix + file)
        if size is None:
            raise IncompleteError("{} is missing, which {} names".format(prefix + file, path))
        if size < end:
            raise IncompleteError("{} has {} bytes, and {} names {}".format(prefix + file, size, path, end))
    return found


def check_ranks(tree: CheckpointTree, template: str, ranks: Optional[int], what: str) -> int:
    """Check all ranks' torch files ``template.format(rank)``; return their number.

    ``ranks``: None where it is not known; the files that are there must then be those of ranks 0 to the highest.

    Raises:
        IncompleteError: One is missing or partial, or more ranks than ``ranks`` have one.
    """
    before, after = template.split("{}")
    pattern = re.compile(re.escape(before) + r"(\d{1,6})" + re.escape(after))
    present: List[int] = sorted(int(found.group(1)) for found in tree.match(pattern))
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
    wanted = re.compile(pattern)
    return sorted({path.split("/")[0] for path in tree.sizes if "/" in path and wanted.fullmatch(path.split("/")[0])})
