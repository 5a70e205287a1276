"""Places where a trainer writes checkpoints beside its directory of them.

Levanter's ``temporary_base_path`` has those that it saves by time, which are newer than the ones it keeps.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import List, Mapping, NamedTuple, Optional, Sequence

from midstream_core import records
from midstream_host.driver.checkpoints.checkpoint import Checkpoint, CheckpointFile
from midstream_host.driver.checkpoints.checkpoint_finder import CheckpointFinder
from midstream_host.driver.run_file import RunFile

CONFIG_LIMIT = 1 << 20  # bytes of a configuration
_CONFIG = ("config_path", "config")
_TEMPORARY, _APPEND, _ID = "temporary_base_path", "append_run_id_to_base_path", "trainer.id"
_TRAINER = re.compile(
    r"^(?P<indent> *)[\"']?trainer[\"']?\s*:(?P<flow>.*(?:\n|$))(?P<block>(?:(?P=indent) +.*\n|\s*\n)*)", re.M
)
_VALUE = r"[\"']?{}[\"']?\s*:\s*[\"']?([^\"'#\s,}}]+)"


class OtherPlace(NamedTuple):
    """A configured place of checkpoints.

    ``base``: as it is configured, absolute, or the address of a bucket; empty: none is. ``folder``: the run's own below
    it; empty where it cannot be looked at, which is the ``problem``.
    """

    base: str = ""
    folder: str = ""
    problem: str = ""


def other_place(run: RunFile, words: Sequence[str], directory: str, environment: Mapping[str, str]) -> OtherPlace:
    """Return where a trainer writes checkpoints too.

    Args:
        run: Its run file.
        words: Its command.
        directory: Its working directory.
        environment: Its environment, whose RUN_ID names a run of Levanter without an id.
    """
    if run.checkpoints.rule != "levanter":
        return OtherPlace()
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


class CheckpointPlaces:
    """Finder of the checkpoints in a run's directory of them and in another place.

    Paths in the other place are absolute.

    Args:
        run: The run file.
        directory: The run's directory of checkpoints.
        ranks: Processes of the run.
        other: Folder of the other place; empty: there is none.
    """

    def __init__(self, run: RunFile, directory: str, ranks: Optional[int], other: str = "") -> None:
        rule, pattern = run.checkpoints.rule, run.checkpoints.pattern
        self._own = CheckpointFinder(rule, directory, pattern, ranks)
        self._other = other if other and not _is_below(other, directory) else ""
        self._temporary = CheckpointFinder(rule, self._other, "", ranks) if self._other else None

    def find(self) -> List[Checkpoint]:
        """Return the newest checkpoints; see `CheckpointFinder.find`."""
        found = self._own.find()
        for each in self._temporary.find() if self._temporary is not None else ():
            files = [CheckpointFile(posixpath.join(self._other, file.path), file.size) for file in each.files]
            path = posixpath.join(self._other, each.path)
            found.append(Checkpoint(path, each.complete, each.reason, each.modified, files, each.stated, each.named))
        return found

    def relative(self, directory: str, path: str) -> "tuple[str, str]":
        """Return the directory of a path that was found, and the path below it."""
        return (self._other, posixpath.relpath(path, self._other)) if posixpath.isabs(path) else (directory, path)


def environment_of(pid: int) -> Mapping[str, str]:
    """Return the environment of a running process; empty where it cannot be read."""
    try:
        with open("/proc/{}/environ".format(pid), "rb") as file:
            pairs = file.read().decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def _is_below(path: str, directory: str) -> bool:
    """Return whether a path is searched with a directory anyway."""
    one, other = os.path.realpath(path), os.path.realpath(directory)
    return os.path.commonpath([one, other]) == other


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
    found = ""
    for word, after in zip(words, [*words[1:], ""]):
        flag, equals, value = word.partition("=")
        if flag == "--" + name:
            found = value if equals else after
    return found


def _named(text: str, name: str) -> str:
    """Return a value of a YAML text by its name, wherever it is."""
    found = re.search(r"(?:^\s+|[{,]\s*)" + _VALUE.format(name), text, re.M)
    return found.group(1) if found else ""


def _id_of(text: str) -> str:
    """Return the ``id`` of a YAML text's ``trainer``: trackers have one too."""
    trainer = _TRAINER.search(text)
    if trainer is None:
        return ""
    flow = re.search(r"[{,]\s*" + _VALUE.format("id"), trainer.group("flow"))
    block = trainer.group("block")
    indent = re.match(r" *", block.lstrip("\n")) if flow is None else None
    found = flow or re.search("^" + (indent.group(0) if indent else "") + _VALUE.format("id"), block, re.M)
    return found.group(1) if found else ""
