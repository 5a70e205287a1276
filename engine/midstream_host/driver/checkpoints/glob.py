"""Checkpoints in a script's own format: files or directories that match a pattern."""

from __future__ import annotations

import json
import re
import zipfile
from typing import Any, Callable, Dict, List, Optional, Set, cast

from midstream_core import records
from midstream_core.json_types import JsonValue
from midstream_host.driver.checkpoints.checkpoint import Checkpoint, IncompleteError, SavedState
from midstream_host.driver.checkpoints.checkpoint_tree import TEXT_LIMIT, CheckpointTree
from midstream_host.driver.checkpoints.rule import CheckpointRule
from midstream_host.driver.checkpoints.sharded_files import (
    METADATA,
    check_distributed,
    distributed_step,
    is_distributed,
)
from midstream_host.driver.checkpoints.step_names import STEP_NAMES, step_in, step_of_number

_CHECKED = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
_JSON, _ARCHIVES = ".json", (".npz", ".zip")  # show their end, too
_SETTINGS = re.compile(r"config|args|arguments|param|settings|index|tokenizer", re.IGNORECASE)  # of a run
_MAX_STATED = 16  # files in which a step is looked for
_LITERAL = 12  # characters before the end at which a value that is cut shows: -Infinity, an escape
_OPTIMIZER = re.compile(r"optim", re.IGNORECASE)
_SCHEDULER = re.compile(r"sched", re.IGNORECASE)
_RANDOM = re.compile(r"(?:^|_)(?:rng|random|seed_state)", re.IGNORECASE)
_LOADER = re.compile(r"loader|sampler|data_state|data_iter", re.IGNORECASE)


def named_step(name: str) -> Optional[int]:
    """Number in the name of a checkpoint, before the suffixes of a file."""
    return step_in(name)


def check(tree: CheckpointTree, ranks: Optional[int]) -> Optional[int]:
    """Return the step; see `CheckpointRule.check`.

    Files of torch, safetensors, JSON and archives of numpy have to be complete, others have bytes.
    """
    tree.refuse_partial()
    if not tree.sizes:
        raise IncompleteError("it has no files")
    distributed = distributed_step(tree, check_distributed(tree, ranks=ranks)) if is_distributed(tree) else None
    for path in sorted(tree.sizes):
        if (path or tree.name).endswith(_CHECKED):
            tree.check_file(path)
        else:
            tree.require(path)
            _check_end(tree, path)
    return _stored_step(tree) if distributed is None else distributed


def shows_end(checkpoint: Checkpoint) -> bool:
    """Return whether a complete checkpoint shows that nothing more is written.

    A distributed checkpoint shows its end, and so does a single file that has its own size. Of other files, and of the
    number of files in a directory, nothing says how many there will be.
    """
    if any(file.path == checkpoint.path for file in checkpoint.files):
        return checkpoint.path.endswith((*_CHECKED, *_ARCHIVES)) or (
            checkpoint.path.endswith(_JSON) and checkpoint.files[0].size <= TEXT_LIMIT
        )
    ends = ["{}/{}".format(checkpoint.path, name) for name in (METADATA, "__0.metadata")]
    return any(file.path in ends for file in checkpoint.files)


def saved_state(tree: CheckpointTree) -> SavedState:
    """Describe a checkpoint, by the names in it; see `CheckpointRule.saved_state`."""
    names: List[str] = list(tree.sizes)
    if tree.has("") and tree.name.endswith(_CHECKED[:4]):
        names = [name for name in tree.torch_value("") if isinstance(name, str)]
    elif is_distributed(tree):
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
        advice=advice,
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

    A text of several values (a log), or with comments, is complete, although it is not JSON.
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
    """Return the step that the files have, by one of the usual names.

    Files of torch and JSON are looked at, in a directory those of its first level. None where they have none, or
    different ones.
    """
    steps: Set[int] = set()
    for path in sorted(path for path in tree.sizes if "/" not in path)[:_MAX_STATED]:
        name = path or tree.name
        if name.endswith(_CHECKED[:4]):
            with tree.archive(path) as archive:
                step = _step_of(tree.checked(path, archive.load), archive.number)
        elif name.endswith(_JSON) and tree.sizes[path] <= TEXT_LIMIT and not _SETTINGS.search(name):
            step = _step_of(_json_value(tree, path), _number)
        else:
            continue
        if step is not None:
            steps.add(step)
    return steps.pop() if len(steps) == 1 else None


def _step_of(value: object, number_of: Callable[[Any], Optional[float]]) -> Optional[int]:
    for name in STEP_NAMES if isinstance(value, dict) else ():
        step = step_of_number(number_of(cast("Dict[JsonValue, JsonValue]", value).get(name)))
        if step is not None:
            return step
    return None


def _number(value: JsonValue) -> Optional[float]:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _json_value(tree: CheckpointTree, path: str) -> JsonValue:
    """Return the value of a JSON file; None where it is another text, as a log."""
    try:
        return records.parse_json(tree.text(path), path)
    except records.RecordError:
        return None


RULE = CheckpointRule(
    "*.pt",
    named_step,
    check,
    saved_state,
    of_scripts=True,
    states_processes=False,
    shows_end=shows_end,
    name_hint='save the number of updates as "step" in it, or at the end of its name: ckpt-{updates}.pt',
)
