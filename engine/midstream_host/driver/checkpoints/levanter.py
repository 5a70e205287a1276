"""Checkpoints of Levanter: ``step-N/`` with ``metadata.json``, written last.

Those that it saves by time are in another place.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import List, Mapping, Optional, Sequence

from midstream_core import records
from midstream_host.driver.checkpoints.array_files import check_arrays
from midstream_host.driver.checkpoints.checkpoint import IncompleteError, SavedState
from midstream_host.driver.checkpoints.checkpoint_tree import CheckpointTree, number_in
from midstream_host.driver.checkpoints.rule import CheckpointRule, OtherPlace

METADATA = "metadata.json"
_NAME = re.compile(r"^step-(\d+)$")

CONFIG_LIMIT = 1 << 20  # bytes of a configuration
_CONFIG = ("config_path", "config")
_TEMPORARY, _APPEND, _ID = "temporary_base_path", "append_run_id_to_base_path", "trainer.id"
_TRAINER = re.compile(
    r"^(?P<indent> *)[\"']?trainer[\"']?\s*:(?P<flow>.*(?:\n|$))(?P<block>(?:(?P=indent) +.*\n|\s*\n)*)", re.M
)
_VALUE = r"[\"']?{}[\"']?\s*:\s*[\"']?([^\"'#\s,}}]+)"


def named_step(name: str) -> Optional[int]:
    """Return a checkpoint's number of updates, from its name.

    ``step-N`` is written after update N, counted from 0.
    """
    number = number_in(name, _NAME)
    return None if number is None else number + 1


def check(tree: CheckpointTree, ranks: Optional[int]) -> Optional[int]:  # noqa: ARG001  it loads on any number
    """Return the step; see `CheckpointRule.check`."""
    tree.require(METADATA, "it is written last")
    metadata = tree.json(METADATA)
    step, named = metadata.get("step"), number_in(tree.name, _NAME)
    if type(step) is not int or step < 0:
        raise IncompleteError("{} has no step".format(METADATA))
    if named is not None and named != step:
        raise IncompleteError("{} has step {}, and the name has step {}".format(METADATA, step, named))
    if not check_arrays(tree):
        raise IncompleteError("it has no arrays")
    return step + 1


def saved_state(tree: CheckpointTree) -> SavedState:
    """Describe a checkpoint; see `CheckpointRule.saved_state`."""
    advice: List[str] = []
    if tree.json(METADATA).get("is_temporary") is True:
        advice.append("it is a temporary checkpoint, which Levanter deletes when it has written a newer one")
    return SavedState(
        model=True,
        optimizer=True,
        scheduler=True,  # the schedule follows the optimizer's count
        random_states=1,  # one key for all ranks
        data_position="recomputed",
        reshards=True,
        advice=advice,
    )


def other_place(words: Sequence[str], directory: str, environment: Mapping[str, str]) -> OtherPlace:
    """Return where Levanter writes the checkpoints that it saves by time.

    ``temporary_base_path`` has checkpoints that are newer than the ones that Levanter keeps.

    Args:
        words: Its command.
        directory: Its working directory.
        environment: Its environment, whose RUN_ID names a run without an id.
    """
    text = _config(words, directory)
    base = _flag(words, "trainer.checkpointer." + _TEMPORARY) or _named(text, _TEMPORARY)
    if not base or base in ("null", "~"):
        return OtherPlace()
    if "://" in base:
        return OtherPlace(base, "", "{} {} is a bucket, and is not looked at".format(_TEMPORARY, base))
    base = posixpath.normpath(posixpath.join(directory, os.path.expanduser(base)))
    append = _flag(words, "trainer.checkpointer." + _APPEND) or _named(text, _APPEND)
    if append.lower() == "false":
        return OtherPlace(base, base)
    name = _flag(words, _ID) or _id_of(text) or environment.get("RUN_ID", "")
    if not name or not records.safe_relative(name):
        what = "{} {} is not looked at: the run's id is not known (hint: --{} in the command)"
        return OtherPlace(base, "", what.format(_TEMPORARY, base, _ID))
    return OtherPlace(base, posixpath.join(base, name))


def _config(words: Sequence[str], directory: str) -> str:
    """Return the text of a command's configuration; empty if it is unreadable."""
    path = next(filter(None, (_flag(words, name) for name in _CONFIG)), "")
    try:
        return (
            records.read_bytes(posixpath.join(directory, path), CONFIG_LIMIT).decode("utf-8", "replace") if path else ""
        )
    except (OSError, records.RecordError):
        return ""


def _flag(words: Sequence[str], name: str) -> str:
    """Return the last value of a flag in a command; empty without one."""
    flag_value = ""
    for word, after in zip(words, [*words[1:], ""]):
        flag, equals, value = word.partition("=")
        if flag == "--" + name:
            flag_value = value if equals else after
    return flag_value


def _named(text: str, name: str) -> str:
    """Return a value of a YAML text by its name, wherever it is."""
    match = re.search(r"(?:^\s+|[{,]\s*)" + _VALUE.format(name), text, re.M)
    return match.group(1) if match else ""


def _id_of(text: str) -> str:
    """Return the ``id`` of a YAML text's ``trainer``: trackers have one too."""
    trainer = _TRAINER.search(text)
    if trainer is None:
        return ""
    flow = re.search(r"[{,]\s*" + _VALUE.format("id"), trainer.group("flow"))
    block = trainer.group("block")
    indent = re.match(r" *", block.lstrip("\n")) if flow is None else None
    match = flow or re.search("^" + (indent.group(0) if indent else "") + _VALUE.format("id"), block, re.M)
    return match.group(1) if match else ""


RULE = CheckpointRule(
    "**/step-*",
    named_step,
    check,
    saved_state,
    one_process=True,
    other_place=other_place,
)
