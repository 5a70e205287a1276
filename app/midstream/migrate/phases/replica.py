"""Follow a shadow as it replays the run on the target, until it is level with the source.

Each step that both have done is compared: the batch by its digest, the loss within the band that the precision allows.
Where the shadow cannot catch up, or its losses leave the band, or a person will not wait, the move goes on as a
handover: the state is then copied, not computed twice.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from midstream.errors import MidstreamError
from midstream.migrate.execution.migration import Migration
from midstream.migrate.phases import prepare_standby
from midstream.migrate.planning import estimate
from midstream.migrate.proof.certificate import CONTINUITY_TOLERANCE, precision
from midstream_engine import records

LEAD = 2.0  # seconds between naming a step and its coming: orders take a moment to arrive
SAMPLE = 32  # newest steps that rates are taken from
ENOUGH = 8  # steps of the shadow before its rate is believed
LONGEST = 6 * 3600.0  # seconds of catching up that are waited for
CLOSING = 0.05  # the shadow has to gain this share of the source's pace
LOOK = 0.5  # seconds between two looks
TELL = 10.0  # seconds between two lines of how far it is


class NotLevel(Exception):
    """The shadow will not do; the message says why. The move goes on as a warm migration."""


@dataclass
class Agreement:
    """The steps that both have done."""

    tolerance: float
    steps: int = 0
    first: int | None = None
    last: int | None = None
    worst: float = 0.0
    worst_step: int | None = None
    _waiting: tuple[dict[int, Mapping[str, Any]], dict[int, Mapping[str, Any]]] = field(
        default_factory=lambda: ({}, {}), repr=False
    )

    def take(self, source: Sequence[Mapping[str, Any]], shadow: Sequence[Mapping[str, Any]]) -> None:
        """More rows of either. MidstreamError where a batch differs, NotLevel where a loss leaves the band."""
        theirs, ours = self._waiting
        theirs.update({row["global_step"]: row for row in source if "train/loss" in row})
        ours.update({row["global_step"]: row for row in shadow if "train/loss" in row})
        for step in sorted(theirs.keys() & ours.keys()):
            self._compare(step, theirs.pop(step), ours.pop(step))

    def _compare(self, step: int, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
        if theirs["batch_digest"] != ours["batch_digest"]:
            raise MidstreamError(
                f"batch {step} of the shadow is not the source's", "the data differs: midstream --verify on both hosts"
            )
        difference = records.relative_difference(theirs["train/loss"], ours["train/loss"])
        self.steps += 1
        self.first = step if self.first is None else min(self.first, step)
        self.last = step if self.last is None else max(self.last, step)
        if difference >= self.worst:
            self.worst, self.worst_step = difference, step
        if difference > self.tolerance:
            raise NotLevel(
                f"at step {step} the shadow's loss differs by {difference:.1e} relative (allowed {self.tolerance:.0e})"
            )

    def facts(self) -> dict[str, Any]:
        """For the journal and the certificate."""
        return {
            "steps": self.steps,
            "first": self.first,
            "last": self.last,
            "largest_relative_difference": self.worst,
            "tolerance": self.tolerance,
        }


@dataclass(frozen=True)
class ReplicaProgress:
    """Whether and when the shadow catches up. Steps of the run; seconds a step."""

    source_step: int
    replica_step: int
    source_pace: float
    replica_pace: float

    @property
    def gap(self) -> int:
        return self.source_step - self.replica_step

    @property
    def known(self) -> bool:
        """Whether both paces have been measured."""
        return self.source_pace > 0 and self.replica_pace > 0

    @property
    def crossing(self) -> int | None:
        """The step at which the run can cross over, still to come for both; None while the shadow is behind, or where
        a pace is not known yet: after a lost contact the newest row of the source may stand alone."""
        if self.gap > 0 or not self.known:
            return None
        quickest = max(min(self.source_pace, self.replica_pace), 1e-3)
        return max(self.source_step, self.replica_step) + 2 + math.ceil(LEAD / quickest)

    @property
    def seconds(self) -> float:
        """Until it is level; infinity where it never will be."""
        if self.gap <= 0:
            return 0.0
        if not self.known:
            return math.inf
        closing = 1 / self.replica_pace - 1 / self.source_pace
        return self.gap / closing if closing > CLOSING / self.source_pace else math.inf


def pace(rows: Sequence[Mapping[str, Any]]) -> float:
    """Seconds a step, from the times at which the newest steps ended; 0 where there are too few."""
    times = [row["time"] for row in rows[-SAMPLE:] if "time" in row]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    return statistics.median(gaps) if len(gaps) >= 2 else 0.0


def follow(move: Migration) -> int | None:
    """Wait until the shadow is level with the source, and have it keep the parameters of the step at which they cross:
    that step. None where the move is to go on as a warm migration; the journal's fact ``fallen_back`` says why.

    MidstreamError where source or shadow ends, or where they do not read the same batches."""
    if move.journal.known("fallen_back"):
        return None
    at: int | None = move.journal.known("crossing_step")
    if at is not None:
        return at  # an earlier try got so far
    try:
        return _follow(move)
    except NotLevel as why:
        fall_back(move, str(why))
        return None


def fall_back(move: Migration, why: str) -> None:
    """From here on the move is a warm migration."""
    move.journal.fact(fallen_back=why)
    move.note(f"{why}: the move goes on as a warm migration")
    estimate.again(move)


def _follow(move: Migration) -> int:
    plan = move.plan
    source_attempt = move.source.call("runs.run_state.running_attempt", root=move.source.root, run_id=plan.run_id)
    shadow_attempt = prepare_standby.living(move)
    if not source_attempt or shadow_attempt is None:
        raise NotLevel("the source does not run" if not source_attempt else "no shadow runs")
    agreement = Agreement(CONTINUITY_TOLERANCE[precision(plan)])
    source = _Rows(move, move.source, source_attempt, "metrics.jsonl")
    shadow = _Rows(move, move.target, shadow_attempt, "replay.jsonl")
    rehearsed: float = move.journal.known("rehearsed_seconds", 0.0)
    first = move.journal.known("rehearsal")["step"]
    told = 0.0
    while True:
        move.check_requests()
        if move.directory.mode_file.exists():
            raise NotLevel("a person will not wait")
        agreement.take(source.more(first), shadow.more(first))
        ahead = ReplicaProgress(
            source.step or first,
            shadow.step or first,
            pace(source.rows),
            pace(shadow.rows) if len(shadow.rows) >= ENOUGH else rehearsed,
        )
        seconds = ahead.seconds
        if len(source.rows) >= ENOUGH and seconds > LONGEST:
            raise NotLevel(
                f"the shadow takes {ahead.replica_pace:.3f} s a step and the source {ahead.source_pace:.3f} s: "
                f"{ahead.gap} steps are not caught up with in {LONGEST / 3600:.0f} hours"
            )
        if agreement.steps and (at := ahead.crossing) is not None and _cross(move, shadow_attempt, at):
            move.journal.fact(crossing_step=at, agreement=agreement.facts())
            move.note(
                f"{agreement.steps} steps replayed, losses within {agreement.worst:.1e} relative of the source's; "
                f"the run crosses over at step {at}"
            )
            return at
        if time.monotonic() - told > TELL:
            told = time.monotonic()
            when = f"about {seconds:.0f} s to go" if math.isfinite(seconds) else "its pace is not known yet"
            move.note(
                f"the shadow is at step {ahead.replica_step}, the source at step {ahead.source_step}: {when}; "
                f"midstream --continue {plan.migration} --mode warm stops waiting"
            )
        time.sleep(LOOK)


def _cross(move: Migration, shadow: int, at: int) -> bool:
    """Have the shadow keep its parameters at step ``at``. False where it was quicker."""
    order = records.Command(records.STANDBY, epoch=move.plan.epoch, step=at, migration=move.plan.migration)
    serial, status = prepare_standby.give(move, shadow, order)
    if status is None or status.state in records.ENDED:
        raise NotLevel(f"the shadow ended: {status.message if status else 'no word of it'}")
    return status.acknowledged >= serial


class _Rows:
    """The rows of an attempt that is under way, as they come."""

    def __init__(self, move: Migration, host: Any, attempt: int, name: str):
        self._host, self._run, self._attempt, self._name = host, move.plan.run_id, attempt, name
        self._offset = 0
        self.rows: list[Mapping[str, Any]] = []

    @property
    def step(self) -> int | None:
        """Updates done, by its newest row."""
        return self.rows[-1]["global_step"] + 1 if self.rows else None

    def more(self, first: int) -> Sequence[Mapping[str, Any]]:
        """What is new, from step ``first`` on. NotLevel where the attempt has ended."""
        news = self._host.call(
            "runs.standby_state.rows",
            root=self._host.root,
            run_id=self._run,
            attempt=self._attempt,
            name=self._name,
            offset=self._offset,
            first=first,
        )
        self._offset = news["offset"]
        self.rows = [*self.rows[-SAMPLE:], *news["rows"]]
        status = news["status"]
        if not news["running"] or (status and status["state"] in records.ENDED):
            said = (status or {}).get("message") or (status or {}).get("state", "no word of it")
            raise NotLevel(f"attempt {self._attempt} on {self._host.name} has ended ({said})")
        return news["rows"]
