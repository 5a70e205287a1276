"""Checkpoints of MaxText, written by Orbax: the newest one, settings in a log.

Standard library only; Python 3.8.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable

from midstream_core.json_types import JsonValue, object_or_empty
from midstream_core.levanter_checkpoints import Places

ITEM, TREE = "items", "_METADATA"  # of a checkpoint: its arrays, and what describes them
COMMITTED, COMMITTED_MARK = "_CHECKPOINT_METADATA", "commit_success.txt"
STEPS = "checkpoints"  # folder of a run
CONFIGS = ("maxtext.yml", "../maxtext.yml", "../../maxtext.yml")  # near a checkpoint
_STEP = re.compile(r"\d{1,12}")
_LOGGED = re.compile(r".*\bConfig param (\w+): (.*)")


def is_committed(places: Places, path: str) -> bool:
    """Return whether a checkpoint was finished.

    Its mark says so, or the time of its commit.

    Raises ValueError where what has that time is damaged: that is no evidence for an older checkpoint.
    """
    if places.is_file(posixpath.join(path, COMMITTED_MARK)):
        return True
    described = posixpath.join(path, COMMITTED)
    if not places.is_file(described):
        return False
    try:
        value: JsonValue = json.loads(places.text(described))
    except ValueError as error:
        raise ValueError(f"{described}: not JSON, perhaps cut off ({error})") from None
    return type(object_or_empty(value).get("commit_timestamp_nsecs")) is int


def newest(places: Places, directory: str) -> str | None:
    """Return the finished checkpoint with the highest number.

    ``directory``: a folder of them, or a run. None: there is none. Raises ValueError, and what ``places`` raises.
    """
    for folder in (directory, posixpath.join(directory, STEPS)):
        try:
            names = places.names(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        for name in sorted(filter(_STEP.fullmatch, names), key=int, reverse=True):
            path = posixpath.join(folder, name)
            if is_committed(
                places, path
            ):  # Orbax continues from it; also where its arrays are missing: an older one is not the newest
                return path
    return None


def saved_step(path: str) -> int | None:
    """Return the updates that a checkpoint has by its name.

    The name is the number of the update before. None: it has another name.
    """
    name = posixpath.basename(path.rstrip("/"))
    return int(name) + 1 if _STEP.fullmatch(name) else None


def logged_settings(lines: Iterable[str]) -> dict[str, str]:
    """Return the last value of each setting in a log, in Python's form.

    Nothing where it is another file.
    """
    return {match[1]: match[2] for match in map(_LOGGED.match, lines) if match}
