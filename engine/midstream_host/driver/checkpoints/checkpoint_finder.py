"""The checkpoints of a run of another trainer, complete or not.

Finds which are complete, and why the others are not. Only reads.
"""

from __future__ import annotations

import dataclasses
import os
import posixpath
from typing import Dict, List, NamedTuple, Optional, Tuple, cast

from midstream_host.driver.checkpoints import (
    accelerate,
    dcp,
    deepspeed,
    glob,
    huggingface,
    levanter,
    lightning,
    maxtext,
    orbax,
)
from midstream_host.driver.checkpoints.checkpoint import Checkpoint, CheckpointFile, IncompleteError, SavedState
from midstream_host.driver.checkpoints.checkpoint_tree import CheckpointTree
from midstream_host.driver.checkpoints.rule import CheckpointRule
from midstream_host.driver.checkpoints.search import search

RULES: Dict[str, CheckpointRule] = {
    "huggingface": huggingface.RULE,
    "lightning": lightning.RULE,
    "dcp": dcp.RULE,
    "accelerate": accelerate.RULE,
    "deepspeed": deepspeed.RULE,
    "levanter": levanter.RULE,
    "orbax": orbax.RULE,
    "maxtext": maxtext.RULE,
    "glob": glob.RULE,
}
MAX_CHECKPOINTS = 256  # the newest of a run


class _Known(NamedTuple):
    signature: Tuple[Tuple[str, int, int], ...]
    checkpoint: Checkpoint


class CheckpointFinder:
    """Finder of a run's checkpoints, for repeated use.

    A checkpoint whose files did not change is not read again.

    Args:
        rule: Name in `RULES`.
        directory: Where the run writes.
        pattern: Of the checkpoints' paths below it; empty: the rule's own.
        ranks: Processes of the run; None where it is not known.

    Raises:
        ValueError: There is no such rule.
    """

    def __init__(self, rule: str, directory: str, pattern: str = "", ranks: Optional[int] = None) -> None:
        self._rule = rule_of(rule)
        self._directory = os.path.abspath(os.path.expanduser(directory))
        self._pattern = pattern or self._rule.pattern
        self._ranks = ranks
        self._looked: Dict[str, _Known] = {}

    def find(self) -> List[Checkpoint]:
        """Return the newest checkpoints, by step, those without a step first.

        A checkpoint that is still being written, or that is being deleted, is incomplete and no error.

        Raises:
            SearchError: The pattern is no relative one, or the directory has too many entries.
            OSError: The directory cannot be read.
        """
        paths = [path for path in search(self._directory, self._pattern) if self._is_own(path)]
        checkpoints = sorted(map(self._look, self._newest(paths)), key=_order)
        self._looked = {
            path: looked
            for path, looked in self._looked.items()
            if path in {checkpoint.path for checkpoint in checkpoints}
        }
        return checkpoints

    def _is_own(self, path: str) -> bool:
        """Return whether ``path`` is no link to another file of the directory.

        A link such as ``last.ckpt`` would have the same files a second time.
        """
        full = posixpath.join(self._directory, path)
        if not os.path.islink(full):
            return True
        parent = posixpath.dirname(full)
        place = os.path.realpath(posixpath.dirname(posixpath.join(parent, os.readlink(full))))
        folders = {os.path.realpath(folder) for folder in (self._directory, parent)}
        return os.path.exists(full) and not any(os.path.commonpath([place, folder]) == folder for folder in folders)

    def _newest(self, paths: List[str]) -> List[str]:
        if len(paths) <= MAX_CHECKPOINTS:
            return paths
        numbers = [self._named(path) for path in paths]
        if None in numbers:  # a name may have a date, or a count of another kind
            return sorted(paths, key=lambda path: (_changed(posixpath.join(self._directory, path)), path))[
                -MAX_CHECKPOINTS:
            ]
        return [path for _, path in sorted(zip(cast("List[int]", numbers), paths))[-MAX_CHECKPOINTS:]]

    def _named(self, path: str) -> Optional[int]:
        return self._rule.named_step(posixpath.basename(path))

    def _look(self, path: str) -> Checkpoint:
        try:
            tree = CheckpointTree(posixpath.join(self._directory, path))
        except IncompleteError as error:
            return Checkpoint(path, False, str(error), 0.0, [], named=self._named(path))
        except OSError as error:
            return Checkpoint(path, False, _unreadable(error), 0.0, [], named=self._named(path))
        looked = self._looked.get(path)
        if looked is not None and looked.signature == tree.signature and looked.checkpoint.complete:
            return looked.checkpoint
        stated: Optional[int] = None
        reason = ""
        try:
            stated = self._rule.check(tree, self._ranks)
        except IncompleteError as error:
            reason = str(error) or "it is not complete"
            stated = error.step
        except OSError as error:
            reason = _unreadable(error)
        files = [
            CheckpointFile(posixpath.join(path, name) if name else path, size)
            for name, size in sorted(tree.sizes.items())
        ]
        checkpoint = Checkpoint(path, not reason, reason, tree.modified, files, stated, self._named(path))
        if tree.has_changed():
            reason = reason or "its files changed while they were looked at: it is being written"
            return dataclasses.replace(checkpoint, complete=False, reason=reason)
        self._looked[path] = _Known(tree.signature, checkpoint)
        return checkpoint


def find_checkpoints(rule: str, directory: str, pattern: str = "", ranks: Optional[int] = None) -> List[Checkpoint]:
    """Find a run's checkpoints once; see `CheckpointFinder`."""
    return CheckpointFinder(rule, directory, pattern, ranks).find()


def saved_state(rule: str, path: str) -> SavedState:
    """Describe what a resume from the complete checkpoint at ``path`` continues with.

    Raises:
        ValueError: There is no such rule.
        IncompleteError: The checkpoint is not complete.
        OSError: The checkpoint cannot be read.
    """
    return rule_of(rule).saved_state(CheckpointTree(os.path.abspath(os.path.expanduser(path))))


def rule_of(name: str) -> CheckpointRule:
    """Return the rule of that name. Raises ValueError."""
    if name not in RULES:
        raise ValueError("{!r} is no rule of checkpoints (hint: one of {})".format(name[:80], ", ".join(RULES)))
    return RULES[name]


def _order(checkpoint: Checkpoint) -> Tuple[int, float, str]:
    return -1 if checkpoint.step is None else checkpoint.step, checkpoint.modified, checkpoint.path


def _changed(path: str) -> float:
    """Return when a file or a folder was changed; 0 where it is deleted."""
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


def _unreadable(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "a file disappeared while it was looked at: it is being written or deleted"
    return "it cannot be read: {}".format(error.strerror or type(error).__name__)
