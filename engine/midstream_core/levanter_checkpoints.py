"""Newest checkpoint of a run of Levanter, as the release that wrote it chooses it.

Levanter 1.1 and 1.2 take the newest by time, then by step: a run that went back continues from its new branch. 0.2.20
takes the newest by step, then by time, of two places: the base path and ``temporary_base_path``. Standard library only;
Python 3.8.
"""

from __future__ import annotations

import datetime
import json
import posixpath
import re
from collections.abc import Callable
from typing import NamedTuple

from midstream_core.json_types import JsonValue, object_or_empty

METADATA = "metadata.json"
OCDBT = "manifest.ocdbt"  # of the releases after 1.2
_TEMPORARY = re.compile(r"""^\s+["']?temporary_base_path["']?\s*:\s*(["']?)([^"'#\s]+)\1\s*(?:#.*)?$""", re.MULTILINE)


class LevanterCheckpoint(NamedTuple):
    """A checkpoint that is finished. ``timestamp``: None where it has none."""

    path: str
    step: int
    timestamp: datetime.datetime | None
    by_time: bool  # the release that wrote it takes the newest by time


class Places(NamedTuple):
    """Functions that read a place with checkpoints, and raise OSError or its errors."""

    names: Callable[[str], list[str]]  # names in a directory
    is_file: Callable[[str], bool]
    text: Callable[[str], str]


class Choice(NamedTuple):
    """The newest checkpoint, and where checkpoints were looked for.

    ``unread``: a place that the configuration names and that could not be looked at; empty without one.
    """

    path: str
    looked: list[str]
    unread: str = ""


def choose(places: Places, directory: str, config: str = "") -> Choice | None:
    """Return the newest checkpoint of a run's directory; None without one.

    Args:
        places: How files are read.
        directory: Of the run's checkpoints.
        config: Text of the run's configuration, whose ``temporary_base_path`` is looked at too.
    """
    finished, looked, unread = checkpoints_in(places, directory), [directory], ""
    named = _TEMPORARY.search(config)
    temporary = named.group(2) if named else ""
    if temporary and temporary not in ("null", "~"):
        other = posixpath.join(temporary, posixpath.basename(directory.rstrip("/")))
        if "://" in directory or not temporary.startswith("/"):
            unread = other
        else:
            try:
                finished += checkpoints_in(places, other)
                looked.append(other)
            except OSError:  # nothing temporary is there, it is on another machine, or it cannot be read
                unread = other
    best = newest(finished)
    return None if best is None else Choice(best.path, looked, unread)


def checkpoints_in(places: Places, directory: str) -> list[LevanterCheckpoint]:
    """Return the finished checkpoints of a directory."""
    finished: list[LevanterCheckpoint] = []
    for name in sorted(places.names(directory)):
        path = posixpath.join(directory, name)
        if name[:5] != "step-" or not name[5:].isdecimal() or not places.is_file(posixpath.join(path, METADATA)):
            continue
        by_time = not places.is_file(posixpath.join(path, OCDBT))
        checkpoint = described(path, places.text(posixpath.join(path, METADATA)), by_time=by_time)
        if checkpoint is not None:
            finished.append(checkpoint)
    return finished


def described(path: str, metadata: str, *, by_time: bool) -> LevanterCheckpoint | None:
    """Return a checkpoint by its ``metadata.json``; None without a step.

    Raises ValueError where it is not JSON, or its step is no number: that is no evidence of an older checkpoint.
    """
    try:
        value: JsonValue = json.loads(metadata)
    except ValueError as error:
        raise ValueError(f"{posixpath.join(path, METADATA)}: not JSON, perhaps truncated ({error})") from None
    fields = object_or_empty(value)
    if "step" not in fields:
        return None
    step = fields["step"]
    if type(step) is not int:
        raise ValueError(f"{posixpath.join(path, METADATA)} has step {step!r}, which is no whole number")
    try:
        timestamp: datetime.datetime | None = datetime.datetime.fromisoformat(str(fields.get("timestamp")))
    except ValueError:
        timestamp = None
    if timestamp is not None and timestamp.tzinfo is not None:
        timestamp = timestamp.astimezone().replace(tzinfo=None)
    return LevanterCheckpoint(path, step, timestamp, by_time)


def newest(checkpoints: list[LevanterCheckpoint]) -> LevanterCheckpoint | None:
    """Return the checkpoint that the release which wrote the last one continues from."""
    if not checkpoints:
        return None
    by_time = max(checkpoints, key=lambda checkpoint: (checkpoint.timestamp or datetime.datetime.min, checkpoint.step))
    return by_time if by_time.by_time else max(
        checkpoints, key=lambda entry: (entry.step, entry.timestamp or datetime.datetime.min, entry.path)
    )  # fmt: skip
