"""A migration as its directory describes it, for screens and flags."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from midstream.migrate.journal import phase_names
from midstream.migrate.journal.certificate import Certificate
from midstream.migrate.journal.downtime_report import DowntimeReport
from midstream.migrate.journal.event import Event
from midstream.migrate.journal.facts import Facts, facts_of
from midstream.migrate.journal.migration_state import (
    INTERRUPTED,
    OPEN_STATES,
    ROLLBACK_INCOMPLETE,
    ROLLED_BACK,
    RUNNING,
)
from midstream.migrate.journal.plan import Plan
from midstream.migrate.journal.stage_times import Remaining, StageTimes, estimates, remaining, stage_times
from midstream.migrate.stages import HEALTHY
from midstream_core.records import Fence

CERTIFIED, NOT_CERTIFIED, VOID = "certified", "failed", "void"  # see `MigrationView.verdict`


@dataclass(frozen=True)
class MigrationView:
    """A migration as its directory describes it. Screens and flags read nothing else."""

    migration: str
    plan: Plan
    state: str  # RUNNING, INTERRUPTED, COMPLETED, ROLLED_BACK, ROLLBACK_INCOMPLETE, MOVED_ON or DAMAGED
    phase: str  # the newest phase that was begun
    events: tuple[Event, ...]
    downtime: DowntimeReport | None = None
    certificate: Certificate | None = None
    finished: bool = False  # the source is retired: no rollback any more
    error: str = ""
    damage: tuple[str, ...] = ()  # what is wrong with its files, one line each
    newer: bool = False  # a newer midstream wrote its journal, which is not read

    @property
    def open(self) -> bool:
        return self.state in OPEN_STATES

    @property
    def rolled_back(self) -> bool:
        """Return whether the run has returned to its source, or is returning.

        Phases and certificate then count no more.
        """
        if self.state in (ROLLED_BACK, ROLLBACK_INCOMPLETE):
            return True
        return self.phase == phase_names.ROLLBACK and self.state in (RUNNING, INTERRUPTED)

    @property
    def verdict(self) -> str:
        """Certificate's verdict: ``certified``, ``failed``, ``void``; empty without one.

        ``void``: certified, then rolled back.
        """
        if self.certificate is None:
            return ""
        if not self.certificate.valid:
            return NOT_CERTIFIED
        return VOID if self.rolled_back else CERTIFIED

    @cached_property
    def facts(self) -> Facts:
        return facts_of(self.events)

    @property
    def sealed_step(self) -> int | None:
        """The step at which the target takes over; None before the seal."""
        if self.certificate is not None:
            return self.certificate.step
        return None if self.facts.sealed is None else self.facts.sealed.step

    @property
    def predicted_seconds(self) -> Mapping[str, float]:
        """Return the newest prediction of the downtime's phases, in seconds."""
        if self.downtime is not None:
            return self.downtime.predicted
        return self.facts.predicted or self.plan.estimate.predicted_seconds

    @cached_property
    def stage_times(self) -> StageTimes:
        """Measured seconds of the stages in the journal, and the stage that runs."""
        return stage_times(self.events)

    @property
    def expected_seconds(self) -> Mapping[str, float | None]:
        """Return the expected seconds by stage, as measured or planned; None: unknown."""
        return estimates(self.plan, self.facts)

    def remaining(self, now: float, target_step: int | None = None) -> Remaining | None:
        """Return what is left at ``now`` (UTC seconds), or None.

        None: it does not run, or its plan has no estimate.

        ``target_step`` is the target's step, None where it is unknown: it says how many healthy steps are done.
        """
        if self.state != RUNNING or not self.plan.estimate.duration or self.phase == phase_names.ROLLBACK:
            return None
        times, healthy = self.stage_times, self.plan.policy.healthy_steps
        if times.current == HEALTHY and healthy:
            times = replace(times, share=min(1.0, self.steps_given_up(target_step) / healthy))
        return remaining(self.expected_seconds, times, now)

    def steps_given_up(self, target_step: int | None, fence: Fence | None = None) -> int:
        """Return the steps of the target past the seal, which a rollback loses.

        ``target_step`` is the target's step. A journal that is older than the migration (a backup, or a copy that
        another machine has continued) lacks the seal: the target's ``fence`` has it, too.
        """
        sealed = self.sealed_step
        if sealed is None and fence is not None and fence.epoch == self.plan.epoch:
            sealed = fence.sealed_step or 0
        return 0 if sealed is None or target_step is None else max(0, target_step - sealed)


def lost_attempt(plan: Plan, facts: Facts, attempts: Collection[int]) -> str:
    """Return what a rollback gives up where the target has lost its attempt.

    Its copy was put back, or its disk is not mounted: the attempt may train. Empty where the target shows the attempt
    that was started there, or none was.
    """
    started = facts.target_attempt
    if started is None or started in attempts:
        return ""
    return (
        f"{plan.target_host} shows no attempt {started} of {plan.run_id}, which was started there: its copy is an "
        "older one, restored perhaps, or its disk is not mounted, and a rollback discards the steps of that attempt"
    )
