"""Checkpoints of scripts that have a format of their own.

They are files or directories that match a pattern.
"""

from __future__ import annotations

import json
import re
import zipfile
from typing import Any, Dict, List, Optional, cast

from midstream_engine import records
from midstream_engine.foreign.checkpoints.checkpoint import Checkpoint, IncompleteError, SavedState
from midstream_engine.foreign.checkpoints.checkpoint_tree import TEXT_LIMIT, CheckpointTree, number_in
from midstream_engine.foreign.checkpoints.sharded_files import METADATA, check_distributed

PATTERN = "*.pt"
STEP_NAMES = ("global_step", "step", "steps", "iter_num", "iteration", "iterations", "iter", "it", "update")
_NAME = re.compile(r"(\d+)(?:\.[A-Za-z]\w*)*$")
_CHECKED = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
_JSON, _ARCHIVES = ".json", (".npz", ".zip")  # show their end, too
_LITERAL = 12  # characters before the end at which a value that is cut shows: -Infinity, an escape
_OPTIMIZER = re.compile(r"optim", re.IGNORECASE)
_SCHEDULER = re.compile(r"sched", re.IGNORECASE)
_RANDOM = re.compile(r"(?:^|_)(?:rng|random|seed_state)", re.IGNORECASE)
_LOADER = re.compile(r"loader|sampler|data_state|data_iter", re.IGNORECASE)


def named_step(name: str) -> Optional[int]:
    """Step at the end of the name of a checkpoint, before the suffixes of a file."""
    return number_in(name, _NAME)


def check(tree: CheckpointTree, ranks: Optional[int]) -> Optional[int]:  # noqa: ARG001  the files have no ranks
    """Return the step; see `Rule.check`.

    Files of torch, safetensors, JSON and archives of numpy have to be complete, others have bytes.
    """
    tree.refuse_partial()
    if not tree.sizes:
        raise IncompleteError("it has no files")
    if tree.has(METADATA):
        check_distributed(tree)
    checked = 0
    for path in sorted(tree.sizes):
        if (path or tree.name).endswith(_CHECKED):
            tree.check_file(path)
            checked += 1
        else:
            tree.require(path)
            _check_end(tree, path)
    if tree.has("") and checked:
        step = _stored_step(tree)
        if step is not None:
            return step
    return named_step(tree.name)


def shows_end(found: Checkpoint) -> bool:
    """Return whether a complete checkpoint shows that nothing more is written.

    It is a distributed checkpoint, or one file with its size in it. Of other files, and of the number of files in a
    directory, nothing says how many there will be.
    """
    if any(file.path == found.path for file in found.files):
        return found.path.endswith((*_CHECKED, *_ARCHIVES)) or (
            found.path.endswith(_JSON) and found.files[0].size <= TEXT_LIMIT
        )
    return any(file.path == "{}/{}".format(found.path, METADATA) for file in found.files)


def saved_state(tree: CheckpointTree) -> SavedState:
    """Describe a checkpoint, by the names in it; see `Rule.saved_state`."""
    names: List[str] = list(tree.sizes)
    if tree.has("") and tree.name.endswith(_CHECKED[:4]):
        names = [name for name in tree.torch_value("") if isinstance(name, str)]
    elif tree.has(METADATA):
        names += check_distributed(tree).names

    def any_of(pattern: "re.Pattern[str]") -> bool:
        return any(pattern.search(name) for name in names)

    advice: List[str] = []
    if not any_of(_OPTIMIZER):
        advice.append("no state of an optimizer is in it by any name: save optimizer.state_dict() too")
    if not any_of(_RANDOM):
        advice.append("no random state is in it by any name: dropout and augmentation differ after a resume")
    if not any_of(_LOADER):
        advice.append("no position in the data is in it by any name: the script has to find it by the step")
    return SavedState(
        model=True,
        optimizer=any_of(_OPTIMIZER),
        scheduler=any_of(_SCHEDULER),
        random_states=int(any_of(_RANDOM)),
        data_position="stored" if any_of(_LOADER) else "none",
        reshards=False,
        advice=cast("List[Any]", advice),
    )


def _check_end(tree: CheckpointTree, path: str) -> None:
    """Raise IncompleteError for a file of JSON or an archive that has no end."""
    name = path or tree.name
    if name.endswith(_JSON) and tree.sizes[path] <= TEXT_LIMIT:
        text = tree.text(path)
        if not path:  # the file is recorded at once
            tree.checked(path, lambda: records.parse_json(text, name))
        elif _is_cut(text):
            raise IncompleteError("{} is partial: the end of the JSON is missing".format(name))
    elif name.endswith(_ARCHIVES) and not tree.checked(path, lambda: _is_archive(tree.full(path))):
        raise IncompleteError("{} is partial: the end of the archive is missing".format(name))


def _is_cut(text: str) -> bool:
    """Return whether a JSON text ends in the middle.

    One of several values (a log), or with comments, is complete, although it is not JSON.
    """
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        end = text.rstrip()
        return error.msg.startswith("Unterminated") or error.pos >= len(end) - _LITERAL or end.endswith("\0")
    except (ValueError, RecursionError):  # a number, or a nesting, that Python does not read
        return False
    return False


def _is_archive(path: str) -> bool:
    with records.open_regular(path) as file:
        return zipfile.is_zipfile(file)


def _stored_step(tree: CheckpointTree) -> Optional[int]:
    """The step in a file of torch, by one of the usual names; None where it has none."""
    if tree.name.endswith(".safetensors"):
        return None
    with tree.archive("") as archive:
        value: Any = tree.checked("", archive.load)
        if not isinstance(value, dict):
            return None
        for name in STEP_NAMES:
            number = archive.number(cast("Dict[Any, Any]", value).get(name))
            if number is not None and 0 <= number < 1 << 53 and number == int(number):
                return int(number)
    return None
