"""Checkpoints of a trainer, in its directory of them and in another place."""

from __future__ import annotations

import os
import posixpath
from typing import List, Mapping, Optional, Sequence

from midstream_host.driver.checkpoints.checkpoint import Checkpoint, CheckpointFile
from midstream_host.driver.checkpoints.checkpoint_finder import CheckpointFinder, rule_of
from midstream_host.driver.checkpoints.rule import OtherPlace
from midstream_host.driver.run_file import RunFile


def other_place(run: RunFile, words: Sequence[str], directory: str, environment: Mapping[str, str]) -> OtherPlace:
    """Return where a trainer writes checkpoints too.

    Args:
        run: Its run file.
        words: Its command.
        directory: Its working directory.
        environment: Its environment.
    """
    find = rule_of(run.checkpoints.rule).other_place
    return find(words, directory, environment) if find is not None else OtherPlace()


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
        checkpoints = self._own.find()
        for checkpoint in self._temporary.find() if self._temporary is not None else ():
            files = [CheckpointFile(posixpath.join(self._other, file.path), file.size) for file in checkpoint.files]
            path = posixpath.join(self._other, checkpoint.path)
            checkpoints.append(
                Checkpoint(
                    path,
                    checkpoint.complete,
                    checkpoint.reason,
                    checkpoint.modified,
                    files,
                    checkpoint.stated,
                    checkpoint.named,
                )
            )
        return checkpoints

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
    here, other = os.path.realpath(path), os.path.realpath(directory)
    return os.path.commonpath([here, other]) == other
