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
    """

    def __init__(self, rule: str, first: int) -> None:
        self._rule, self._first = rule_of(rule), first
        self._appeared: Dict[str, _Appearance] = {}
        self._before: Optional[int] = None
        self.problem = ""

    def look(self, found: List[Checkpoint], logged: Optional[Logged]) -> None:
        """Note when each checkpoint appeared.

        ``logged``: None where it is not known.
        """
        if logged is None or not logged.rows:
            return
        known, self._appeared = self._appeared, {}
        for each in found:
            complete = identity_of(each) if each.complete else None
            seen = known.get(each.path)
            if seen is None or (seen.identity is not None and seen.identity != complete):
                seen = _Appearance(complete, self._before, logged.step, time.monotonic())
            if time.monotonic() <= seen.time + PROMPT:
                seen = seen._replace(after=logged.step)
            self._appeared[each.path] = seen._replace(identity=complete or seen.identity)
        self._before = logged.step

    def step_of(self, found: Checkpoint, others: List[Checkpoint], logged: Optional[Logged]) -> Optional[int]:
        """Return the step of a complete checkpoint; None if unknown: see `problem`.

        Args:
            found: The checkpoint.
            others: All checkpoints, whose names show how far apart they are.
            logged: What the trainer has logged; None: it is not known, and names are believed.
        """
        self.problem = ""
        stated, named = found.stated, found.named
        behind = self._steps_behind(found, others, logged)
        if behind:
            if named not in (None, stated) and self._agrees(found, others, logged):
                return named
            what = "{} has step {}, and {} steps were logged when it appeared (hint: {})"
            self.problem = what.format(found.path, stated, behind, LOG_HINT)
            return None
        if named is None or named == stated:
            if stated is None:
                self.problem = "{}: {}".format(found.path, why_left_out(self._rule.name_hint, found))
            return stated
        if stated is not None and not self._rule.counts_updates:
            return stated
        if logged is None or self._agrees(found, others, logged):
            return named
        if stated is None:
            done = "no step is logged yet"
            if logged.rows:
                done = "{} steps were logged when it appeared".format(self._appeared[found.path].after)
            what = "the number {} in the name of {} is not shown to be its step: {} (hint: {})"
            self.problem = what.format(named, found.path, done, self._rule.name_hint)
        return stated

    def is_older(self, found: Checkpoint, step: int) -> bool:
        """Return whether a checkpoint is of a step below the attempt's first."""
        counted = found.named if self._rule.counts_updates else None  # the optimizer's count may be behind it
        return max(step, counted or 0) < self._first

    def _steps_behind(self, found: Checkpoint, others: List[Checkpoint], logged: Optional[Logged]) -> int:
        """Return the steps that were logged when a script's checkpoint appeared, or 0.

        The result is 0 where the step in the checkpoint's state may be right. A save in the background may be late,
        by less than two save intervals.
        """
        appeared = self._appeared.get(found.path)
        if not self._rule.of_scripts or found.stated is None or logged is None or appeared is None:
            return 0
        lower = [other.stated for other in others if other.stated is not None and other.stated < found.stated]
        interval = found.stated - max([self._first if self._first < found.stated else 0, *lower])
        before = appeared.before if appeared.before is not None else 0
        return before if before - 2 * interval - logged.interval > found.stated else 0

    def _agrees(self, found: Checkpoint, others: List[Checkpoint], logged: Optional[Logged]) -> bool:
        """Return whether the number in a name is the step, by the curve.

        The step is about the one that was logged when the checkpoint appeared. If the trainer saves in the background,
        it is at most a save interval behind, by the other names.
        """
        appeared, named = self._appeared.get(found.path), found.named
        if appeared is None or named is None or logged is None:
            return False
        names = [other.named for other in others if other.named is not None]
        interval = named - max([self._first if self._first < named else 0, *(name for name in names if name < named)])
        before = appeared.before if appeared.before is not None else appeared.after - interval
        last = logged.step if logged.lags and named == max(names) else appeared.after
        return before - interval - logged.interval <= named <= last + logged.interval


def why_left_out(hint: str, found: Checkpoint) -> str:
    """Return the reason for which a checkpoint is not used; empty where none shows.

    ``hint``: what makes its step known.

    A complete checkpoint without a step is unknown, not absent.
    """
    if found.complete and found.step is None:
        return "it is complete, and nothing shows its step (hint: {})".format(hint)
    return found.reason


def identity_of(found: Checkpoint) -> Tuple[JsonValue, ...]:
    """Return what changes when a checkpoint is written again."""
    return found.modified, found.step, tuple((file.path, file.size) for file in found.files)
