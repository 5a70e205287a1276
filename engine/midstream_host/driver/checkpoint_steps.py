"""Steps of a trainer's checkpoints.

The state in a checkpoint has its step, or else a name that agrees with the logged steps.

A number in a name may count epochs, minutes or checkpoints: the number is the step only if the trainer had logged about
as many steps when the checkpoint appeared.
"""

from __future__ import annotations

import time
from typing import Dict, List, NamedTuple, Optional, Tuple

from midstream_core.json_types import JsonValue
from midstream_host.driver.checkpoints.checkpoint import Checkpoint
from midstream_host.driver.checkpoints.checkpoint_finder import rule_of

PROMPT = 2.0  # seconds in which the rows of a source that does not lag are read
LOG_HINT = "both have to be updates since the run's beginning; metrics: {names: {step: NAME}} names another field"


class Logged(NamedTuple):
    """Steps and times that the trainer has logged since its start.

    ``step``: updates. ``interval``: largest difference of two neighbouring rows. ``lags``: rows come later than steps.
    """

    step: int
    interval: int
    rows: int
    lags: bool


class _Appearance(NamedTuple):
    identity: Optional[Tuple[JsonValue, ...]]  # of the complete checkpoint; None: it was not complete yet
    before: Optional[int]  # step that was logged at the last look without it; None: it was there at the first look
    after: int  # the same, `PROMPT` seconds after the first look with it
    time: float  # of that look, of a clock that only grows


class CheckpointSteps:
    """Steps of the checkpoints of one attempt, and why one has none.

    Args:
        rule: Name of the rule of completeness.
        first: Step that the attempt started from.
        added: What is added to a checkpoint's number: 1 where that is its last step, and not the number of updates.
    """

    def __init__(self, rule: str, first: int, added: int = 0) -> None:
        self._rule, self._first, self.added = rule_of(rule), first, added
        self._appeared: Dict[str, _Appearance] = {}
        self._before: Optional[int] = None
        self.problem = ""

    def look(self, checkpoints: List[Checkpoint], logged: Optional[Logged]) -> None:
        """Note when each checkpoint appeared.

        ``logged``: None where it is not known.
        """
        if logged is None or not logged.rows:
            return
        before, self._appeared = self._appeared, {}
        for checkpoint in checkpoints:
            complete = identity_of(checkpoint) if checkpoint.complete else None
            seen = before.get(checkpoint.path)
            if seen is None or (seen.identity is not None and seen.identity != complete):
                seen = _Appearance(complete, self._before, logged.step, time.monotonic())
            if time.monotonic() <= seen.time + PROMPT:
                seen = seen._replace(after=logged.step)
            self._appeared[checkpoint.path] = seen._replace(identity=complete or seen.identity)
        self._before = logged.step

    def step_of(self, checkpoint: Checkpoint, others: List[Checkpoint], logged: Optional[Logged]) -> Optional[int]:
        """Return the step of a complete checkpoint; None if unknown: see `problem`.

        Arguments as of `_number_of`.
        """
        number = self._number_of(checkpoint, others, logged)
        return None if number is None else number + self.added

    def _number_of(self, checkpoint: Checkpoint, others: List[Checkpoint], logged: Optional[Logged]) -> Optional[int]:
        """Return the number of a checkpoint that counts updates; None if unknown.

        Args:
            checkpoint: The checkpoint.
            others: All checkpoints, whose names show how far apart they are.
            logged: What the trainer has logged; None: it is not known, and names are believed.
        """
        self.problem = ""
        stated, named = checkpoint.stated, checkpoint.named
        behind = self._steps_behind(checkpoint, others, logged)
        if behind:
            if named not in (None, stated) and self._agrees(checkpoint, others, logged):
                return named
            what = "{} has step {}, and {} steps were logged when it appeared (hint: {})"
            self.problem = what.format(checkpoint.path, stated, behind, LOG_HINT)
            return None
        if named is None or named == stated:
            if stated is None:
                self.problem = "{}: {}".format(checkpoint.path, why_left_out(self._rule.name_hint, checkpoint))
            return stated
        if stated is not None and not self._rule.counts_updates:
            return stated
        if logged is None or self._agrees(checkpoint, others, logged):
            return named
        if stated is None:
            done = "no step is logged yet"
            if logged.rows:
                done = "{} steps were logged when it appeared".format(self._appeared[checkpoint.path].after)
            what = "the number {} in the name of {} is not shown to be its step: {} (hint: {})"
            self.problem = what.format(named, checkpoint.path, done, self._rule.name_hint)
        return stated

    def is_older(self, checkpoint: Checkpoint, step: int) -> bool:
        """Return whether a checkpoint is of a step below the attempt's first."""
        counted = checkpoint.named if self._rule.counts_updates else None  # the optimizer's count may be behind it
        return max(step, (counted or 0) + self.added) < self._first

    def _steps_behind(self, checkpoint: Checkpoint, others: List[Checkpoint], logged: Optional[Logged]) -> int:
        """Return the steps that were logged when a script's checkpoint appeared, or 0.

        The result is 0 where the step in the checkpoint's state may be right. A save in the background may be late,
        by less than two save intervals.
        """
        appeared = self._appeared.get(checkpoint.path)
        if not self._rule.of_scripts or checkpoint.stated is None or logged is None or appeared is None:
            return 0
        lower = [other.stated for other in others if other.stated is not None and other.stated < checkpoint.stated]
        interval = checkpoint.stated - max([self._first if self._first < checkpoint.stated else 0, *lower])
        before = appeared.before if appeared.before is not None else 0
        return before if before - 2 * interval - logged.interval > checkpoint.stated else 0

    def _agrees(self, checkpoint: Checkpoint, others: List[Checkpoint], logged: Optional[Logged]) -> bool:
        """Return whether the number in a name is the step, by the curve.

        The step is about the one that was logged when the checkpoint appeared. If the trainer saves in the background,
        it is at most a save interval behind, by the other names.
        """
        appeared, named = self._appeared.get(checkpoint.path), checkpoint.named
        if appeared is None or named is None or logged is None:
            return False
        names = [other.named for other in others if other.named is not None]
        interval = named - max([self._first if self._first < named else 0, *(name for name in names if name < named)])
        before = appeared.before if appeared.before is not None else appeared.after - interval
        last = logged.step if logged.lags and named == max(names) else appeared.after
        return before - interval - logged.interval <= named <= last + logged.interval


def why_left_out(hint: str, checkpoint: Checkpoint) -> str:
    """Return the reason for which a checkpoint is not used; empty where none shows.

    ``hint``: what makes its step known.

    A complete checkpoint without a step is unknown, not absent.
    """
    if checkpoint.complete and checkpoint.step is None:
        return "it is complete, and nothing shows its step (hint: {})".format(hint)
    return checkpoint.reason


def identity_of(checkpoint: Checkpoint) -> Tuple[JsonValue, ...]:
    """Return what changes when a checkpoint is written again."""
    return checkpoint.modified, checkpoint.step, tuple((file.path, file.size) for file in checkpoint.files)
