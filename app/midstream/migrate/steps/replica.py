"""Replay of the run by a target's replica, until it catches up with the source.

Each step that both have done is compared: the batch by its digest, the loss within the tolerance of the precision. If
the replica cannot catch up, its losses leave the tolerance, or the user ends the wait, the migration continues as a
warm migration: the state is copied, not computed twice.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from midstream.counts import count
from midstream.errors import MidstreamError
from midstream.migrate.host_group import HostGroup
from midstream.migrate.journal.facts import Facts, ReplayAgreement, required
from midstream.migrate.proof.copy_certificate import CONTINUITY_TOLERANCE, precision
from midstream.migrate.steps import estimate_update, prepare_standby
from midstream.migrate.steps.migration import Migration
from midstream_core import records
from midstream_core.json_types import JsonObject, LoggedRow
from midstream_host.runs import run_state, standby_state

COMMAND_LEAD = 2.0  # seconds between a takeover command and its step: time for it to arrive
CALLS_BEFORE_STOP = 8  # calls of hosts from then until the source has its command, of which a slow link makes seconds
RATE_SAMPLE = 32  # newest steps from which step times are measured
MIN_RATE_SAMPLE = 8  # steps of the replica before its step time is used
CATCH_UP_LIMIT = 6 * 3600.0  # seconds of predicted catching up that are accepted
MIN_GAIN = 0.05  # the replica has to gain this share of the source's rate
POLL_INTERVAL = 0.5  # seconds
REPORT_INTERVAL = 10.0  # seconds between two progress notes


class ReplicaUnfitError(Exception):
    """The replica cannot take over; the migration continues as a warm migration."""


@dataclass
class Agreement:
    """Comparison of the steps that source and replica have both done."""

    tolerance: float
    steps: int = 0
    first: int | None = None
    last: int | None = None
    worst: float = 0.0
    _unmatched: tuple[dict[int, JsonObject], dict[int, JsonObject]] = field(
        default_factory=lambda: ({}, {}), repr=False
    )

    def add_rows(self, source: Sequence[LoggedRow], replica: Sequence[LoggedRow]) -> None:
        """Add new rows of either, and compare the steps that both have.

        Raises:
            MidstreamError: a batch differs.
            ReplicaUnfitError: a loss leaves the tolerance.
        """
        source_rows, replica_rows = self._unmatched
        source_rows.update({row["global_step"]: row for row in source if "train/loss" in row})
        replica_rows.update({row["global_step"]: row for row in replica if "train/loss" in row})
        for step in sorted(source_rows.keys() & replica_rows.keys()):
            self._compare(step, source_rows.pop(step), replica_rows.pop(step))

    def _compare(self, step: int, source_rows: LoggedRow, replica_rows: LoggedRow) -> None:
        if source_rows["batch_digest"] != replica_rows["batch_digest"]:
            raise MidstreamError(
                f"batch {step} of the replica is not the source's",
                "the data differs: compare the files that data: names on both hosts",
            )
        losses = source_rows["train/loss"], replica_rows["train/loss"]
        difference = 0.0 if records.both_nan(*losses) else records.relative_difference(*losses)
        self.steps += 1
        self.first = step if self.first is None else min(self.first, step)
        self.last = step if self.last is None else max(self.last, step)
        self.worst = max(self.worst, difference)
        if difference > self.tolerance:
            raise ReplicaUnfitError(
                f"at step {step} the replica's loss differs by {records.difference_text(difference)} "
                f"(allowed {self.tolerance:.0e})"
            )

    def facts(self) -> ReplayAgreement:
        """Return the comparison as a fact for the journal."""
        return ReplayAgreement(self.steps, self.first, self.last, self.worst, self.tolerance)


@dataclass(frozen=True)
class ReplicaProgress:
    """Steps of source and replica, their seconds a step, and the seconds of a call."""

    source_step: int
    replica_step: int
    source_pace: float
    replica_pace: float
    call: float = 0.0

    @property
    def gap(self) -> int:
        return self.source_step - self.replica_step

    @property
    def measured(self) -> bool:
        """Return whether both paces have been measured."""
        return self.source_pace > 0 and self.replica_pace > 0

    @property
    def takeover_step(self) -> int | None:
        """The next step at which the replica can take over, in the future of both.

        None while the replica is behind, or a pace is not measured: after a lost connection there may be one row of the
        source only.
        """
        if self.gap > 0 or not self.measured:
            return None
        quickest = max(min(self.source_pace, self.replica_pace), 1e-3)
        lead = COMMAND_LEAD + CALLS_BEFORE_STOP * self.call
        return max(self.source_step, self.replica_step) + 2 + math.ceil(lead / quickest)

    def takeover_step_before(self, num_train_steps: int) -> int | None:
        """Return `takeover_step`, for a run of ``num_train_steps`` (0: not known).

        A replica that has caught up may run ahead: while the source's link stalls, a faster target continues.

        Raises:
            ReplicaUnfitError: the takeover step is at the end of the run or past it, and only increases.
        """
        step = self.takeover_step
        if step is not None and 0 < num_train_steps <= step:
            raise ReplicaUnfitError(
                f"the replica is at step {self.replica_step} and the source at step {self.source_step}: it could "
                f"take over at step {step} at the earliest, and the run ends at step {num_train_steps}"
            )
        return step

    @property
    def seconds(self) -> float:
        """Seconds until the replica has caught up; infinity if it never does."""
        if self.gap <= 0:
            return 0.0
        if not self.measured:
            return math.inf
        closing = 1 / self.replica_pace - 1 / self.source_pace
        return self.gap / closing if closing > MIN_GAIN / self.source_pace else math.inf


def pace(rows: Sequence[LoggedRow]) -> float:
    """Return the median seconds a step of the newest rows; 0 if there are too few."""
    times = [row["time"] for row in rows[-RATE_SAMPLE:] if "time" in row]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    return statistics.median(gaps) if len(gaps) >= 2 else 0.0


def follow(migration: Migration) -> int | None:
    """Wait until the replica has caught up; return the step at which it takes over.

    The replica keeps its parameters of that step. None if the migration continues as a warm migration: the journal's
    fact ``fallback_reason`` has the reason.

    Raises:
        MidstreamError: source and replica do not read the same batches.
    """
    if migration.journal.facts.fallback_reason:
        return None
    step = migration.journal.facts.takeover_step
    if step is not None:
        return step  # an earlier process of this migration has scheduled it
    try:
        return _follow(migration)
    except ReplicaUnfitError as why:
        fall_back(migration, str(why))
        return None


def fall_back(migration: Migration, why: str) -> None:
    """Continue as a warm migration, and journal the reason."""
    migration.journal.record(Facts(fallback_reason=why))
    migration.note(f"{why}: continuing as a warm migration")
    estimate_update.update_estimate(migration)


def _follow(migration: Migration) -> int:
    plan = migration.plan
    source_attempt = migration.source.call(run_state.running_attempt)(root=migration.source.root, run_id=plan.run_id)
    replica_attempt = prepare_standby.running_standby(migration)
    if not source_attempt:
        raise ReplicaUnfitError("the source does not run")
    if replica_attempt is None:
        failure = migration.target_group.first_failure(migration.journal.facts.standby_attempt or 0)
        raise ReplicaUnfitError(f"the replica has ended ({failure})" if failure else "no replica runs")
    agreement = Agreement(CONTINUITY_TOLERANCE[precision(plan)])
    source = AttemptRows(migration.source_group, source_attempt, "metrics.jsonl")
    replica = AttemptRows(migration.target_group, replica_attempt, "replay.jsonl")
    rehearsed = migration.journal.facts.rehearsed_step_seconds or 0.0
    first = required(migration.journal.facts.rehearsal, "rehearsal").step
    reported_at = 0.0
    while True:
        migration.check_requests()
        if migration.directory.mode_file.exists():
            raise ReplicaUnfitError("the user ended the wait")
        before, looked = replica.start, time.monotonic()
        seen = (source.more(first), replica.more(first))
        call = (time.monotonic() - looked) / 2
        if before not in (0, replica.start):  # another process of the attempt replays from the beginning
            agreement = Agreement(agreement.tolerance)
            seen = (source.again(first), seen[1])
        agreement.add_rows(*seen)
        progress = ReplicaProgress(
            source.step or first,
            replica.step or first,
            pace(source.rows),
            pace(replica.rows) if len(replica.rows) >= MIN_RATE_SAMPLE else rehearsed,
            call,
        )
        seconds = progress.seconds
        if len(source.rows) >= MIN_RATE_SAMPLE and seconds > CATCH_UP_LIMIT:
            raise ReplicaUnfitError(
                f"the replica takes {progress.replica_pace:.3f} s a step and the source {progress.source_pace:.3f} s: "
                f"{count(progress.gap, 'step')} to catch up take more than {CATCH_UP_LIMIT / 3600:.0f} hours"
            )
        step = progress.takeover_step_before(plan.shape.num_train_steps)
        if agreement.steps and step is not None and _schedule_takeover(migration, replica_attempt, step):
            migration.journal.record(Facts(takeover_step=step, agreement=agreement.facts()))
            migration.note(
                f"{count(agreement.steps, 'step')} replayed, losses within {agreement.worst:.1e} relative "
                f"of the source's; the replica takes over at step {step}"
            )
            return step
        if time.monotonic() - reported_at > REPORT_INTERVAL:
            reported_at = time.monotonic()
            when = f"about {seconds:.0f} s to go" if math.isfinite(seconds) else "its step time is not measured yet"
            migration.note(
                f"the replica is at step {progress.replica_step}, the source at step {progress.source_step}: {when}; "
                f"midstream --continue {plan.migration} --mode warm ends the wait"
            )
        time.sleep(POLL_INTERVAL)


def _schedule_takeover(migration: Migration, replica: int, step: int) -> bool:
    """Have the replica keep its parameters of ``step``. False if it is past that step."""
    command = records.Command(
        records.STANDBY, epoch=migration.plan.epoch, step=step, migration=migration.plan.migration
    )
    sequence, status = prepare_standby.send_and_wait(migration, replica, command)
    if status is None or status.state in records.ENDED:
        raise ReplicaUnfitError(f"the replica ended: {status.message if status else 'no status'}")
    return status.acknowledged >= sequence


class AttemptRows:
    """Reads the metric rows of a running attempt, which process 0 writes."""

    def __init__(self, group: HostGroup, attempt: int, name: str) -> None:
        self._group, self._attempt, self._name = group, attempt, name
        self._offset = self.start = 0
        self.rows: list[LoggedRow] = []

    @property
    def step(self) -> int | None:
        """Updates done, by its newest row."""
        return self.rows[-1]["global_step"] + 1 if self.rows else None

    def more(self, first: int) -> Sequence[LoggedRow]:
        """Return the new rows from step ``first`` on.

        Raises:
            ReplicaUnfitError: The attempt ended.
        """
        host = self._group.first
        new = host.call(standby_state.rows)(
            root=host.root,
            run_id=self._group.run_id,
            attempt=self._attempt,
            name=self._name,
            offset=self._offset,
            first=first,
            start=self.start,
        )
        if new.start != self.start:
            self.rows.clear()
        self._offset, self.start = new.offset, new.start
        self.rows = [*self.rows[-RATE_SAMPLE:], *new.rows]
        status = new.status
        if not new.running or (status and status.state in records.ENDED):
            why = self._group.first_failure(self._attempt)
            why = why or ((status.message or status.state) if status else "no status")
            raise ReplicaUnfitError(f"attempt {self._attempt} on {self._group.target.name} has ended ({why})")
        return new.rows

    def again(self, first: int) -> Sequence[LoggedRow]:
        """Return all rows from step ``first`` on; errors as of `more`."""
        self._offset = 0
        self.rows.clear()
        return self.more(first)
