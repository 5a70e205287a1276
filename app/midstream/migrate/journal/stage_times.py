"""Durations of a migration's stages, measured from its journal; the time left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from midstream.format import duration as shown
from midstream.migrate.journal.event import STAGE, Event
from midstream.migrate.journal.facts import Facts
from midstream.migrate.journal.plan import Plan
from midstream.migrate.stages import (
    DOWNTIME,
    HEALTHY,
    STAGES,
    Durations,
    known_seconds,
    shown_stage,
    unknown_stages,
)

UNKNOWN = "unknown"
STARTED, PROGRESS, DONE = "started", "progress", "done"


@dataclass(frozen=True)
class StageTimes:
    """Times of the stages in the journal.

    Seconds by stage; the times are UTC seconds of the operator's clock.
    """

    measured: Mapping[str, float]  # of stages that have ended; one that ran twice has the sum
    current: str = ""  # the stage that runs; empty: none
    since: float = 0.0  # when it began
    share: float = 0.0  # of its work that is done, 0 to 1; 0: unknown


@dataclass(frozen=True)
class Remaining:
    """Expected time until a migration ends."""

    seconds: float  # of what is known
    unknown: tuple[str, ...]  # stages of unknown duration, which add to it
    overdue: float = 0.0  # seconds that the current stage takes longer than estimated

    def text(self) -> str:
        """Return ``about 2m10``, or ``at least 40s, with compile unknown``."""
        if self.unknown:
            return f"at least {shown(self.seconds)}, with {', '.join(self.unknown)} unknown"
        return f"about {shown(self.seconds)}"


def stage_times(events: Sequence[Event]) -> StageTimes:
    """Read the stages from a journal's events."""
    times = StageTimes({})
    for event in events:
        name = str(event.detail.get("stage", ""))
        if event.event != STAGE or not name:
            continue
        if event.state == STARTED:
            times = replace(times, current=name, since=event.time)
        elif event.state == DONE:
            seconds = event.detail.get("seconds")
            spent = float(seconds) if isinstance(seconds, int | float) else 0.0
            measured = {**times.measured, name: times.measured.get(name, 0.0) + spent}
            times = StageTimes(measured)
    return times


def estimates(plan: Plan, facts: Facts) -> dict[str, float | None]:
    """Return the seconds of each stage: measured since, else estimated by the plan."""
    seconds = dict(plan.estimate.duration)
    if facts.predicted is not None and DOWNTIME in seconds:
        seconds[DOWNTIME] = sum(facts.predicted.values())
    if facts.rehearsed_step_seconds and HEALTHY in seconds:
        seconds[HEALTHY] = plan.policy.healthy_steps * facts.rehearsed_step_seconds
    return seconds


def remaining(expected: Durations, times: StageTimes, now: float) -> Remaining:
    """Return what is left of a running migration.

    What is left of the stage that runs follows from the share of its work that is done; where that is unknown, a stage
    that takes longer than estimated adds nothing further. ``overdue`` says by how much it does.
    """
    seconds, overdue, unknown = 0.0, 0.0, list[str]()
    for name in (name for name in STAGES if name in expected or name == times.current):
        estimated = expected.get(name)
        if name == times.current:
            elapsed = max(0.0, now - times.since) + times.measured.get(name, 0.0)
            if times.share > 0.0:
                seconds += elapsed * (1.0 / times.share - 1.0)
            elif estimated is None:
                unknown.append(name)
            else:
                seconds += max(0.0, estimated - elapsed)
            if estimated is not None:
                overdue = max(0.0, elapsed - estimated)
        elif name in times.measured:
            continue
        elif estimated is None:
            unknown.append(name)
        else:
            seconds += estimated
    return Remaining(seconds, tuple(unknown), overdue)


def report(plan: Plan, times: StageTimes) -> dict[str, Any]:
    """Return the plan's estimate and measured seconds by stage, for `--verify`."""
    measured = {name: times.measured[name] for name in STAGES if name in times.measured}
    return {
        "estimated": dict(plan.estimate.duration),
        "estimated_seconds": known_seconds(plan.estimate.duration),
        "unknown": list(unknown_stages(plan.estimate.duration)),
        "measured": measured,
        "measured_seconds": sum(measured.values()),
    }


def report_lines(times: Mapping[str, Any]) -> list[str]:
    """Return a `report` as text: one line for the total, one for each stage."""
    estimated = cast("dict[str, float | None]", times.get("estimated") or {})
    measured = cast("dict[str, float]", times.get("measured") or {})
    names = [name for name in STAGES if name in estimated or name in measured]
    if not measured or not estimated:
        return []
    unknown = cast("list[str]", times.get("unknown") or [])
    rows = [("duration", times.get("estimated_seconds"), times.get("measured_seconds"))]
    rows += [(f"  {shown_stage(name)}", estimated.get(name), measured.get(name)) for name in names]
    lines = [
        f"{name:<16} estimated {UNKNOWN if before is None else shown(before):<8} "
        f"measured {'-' if after is None else shown(after)}"
        for name, before, after in rows
    ]
    if unknown:
        lines[0] += f" (the estimate is without {', '.join(unknown)})"
    return lines
