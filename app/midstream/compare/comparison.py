"""Rows of a comparison: time and cost to the end, cost of the migration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from midstream.compare.calibration import Calibration
from midstream.compare.candidates import Candidate
from midstream.compare.estimate import Range, StepEstimate
from midstream.compare.subject import PresentRun, Subject
from midstream.json_events.comparison_events import CandidateEvent
from midstream.migrate.journal import cost
from midstream.migrate.journal.cost import HOUR, Cost
from midstream.migrate.modes.registry import WARM, mode_of
from midstream.migrate.planning import downtime_estimate
from midstream.migrate.planning.measured_rates import PastMigration, rates_between
from midstream.migrate.planning.progress import pace_of


@dataclass(frozen=True)
class EstimatedMigration:
    """Duration, downtime and cost of a migration of the run to a candidate."""

    seconds: float  # until it trains there, without the installation and the copy of its data
    downtime: float  # seconds
    cost: Cost | None  # None where a price is not known


@dataclass(frozen=True)
class ComparisonRow:
    """One candidate. ``error`` says why there is no estimate."""

    candidate: Candidate
    estimate: StepEstimate | None = None
    error: str = ""
    step: Range | None = None  # seconds
    steps_left: int = 0
    calibration: Calibration | None = None
    migration: EstimatedMigration | None = None

    @property
    def fits(self) -> bool:
        return self.estimate is not None and self.estimate.fits

    @property
    def tokens_per_second(self) -> float | None:
        return self.estimate.tokens / self.step.value if self.estimate and self.step and self.step.value else None

    @property
    def remaining(self) -> Range | None:
        """Seconds to the end of the run, without the migration."""
        return self.step.times(self.steps_left) if self.step else None

    @property
    def price_to_end(self) -> Range | None:
        """Price of the time to the end, with that of the migration where it is known."""
        if self.remaining is None or self.candidate.price is None:
            return None
        cost = self.remaining.times(self.candidate.price / HOUR)
        extra = self.migration.cost.migration if self.migration and self.migration.cost else 0.0
        return Range(cost.value + extra, cost.low + extra, cost.high + extra)

    def event(self) -> CandidateEvent:
        """Return the line of ``--json``."""
        estimate, migration = self.estimate, self.migration
        fields: dict[str, Any] = dict.fromkeys(CandidateEvent.__dataclass_fields__)  # null: what is not estimated
        fields |= {
            "candidate": self.candidate.name,
            "accelerators": self.candidate.accelerators.name,
            "topology": self.candidate.accelerators.topology,
            "target": self.candidate.target or None,
            "price_per_hour": self.candidate.price,
            "error": self.error or None,
        }
        if estimate is not None:
            fields |= {
                "fits": estimate.fits,
                "devices": estimate.devices,
                "device_kind": estimate.device_kind,
                "device_memory": estimate.device_memory,
                "parameters": estimate.parameters,
                "batch": estimate.batch,
                "configured": estimate.configured,
                "largest": estimate.largest,
                "per_device_parallelism": estimate.per_device_parallelism,
                "accumulation": estimate.accumulation,
                "peak_memory": estimate.memory.peak if estimate.memory else None,
                "needed": estimate.needed,
                "compile_seconds": estimate.compile_seconds,
                "mfu": estimate.mfu,
            }
        if self.step is not None:
            assert estimate is not None
            fields |= {
                "step_seconds": vars(self.step),
                "parts": vars(estimate.parts) if estimate.parts else None,
                "tokens_per_second": self.tokens_per_second,
                "steps_left": self.steps_left,
                "seconds_to_end": vars(self.remaining) if self.remaining else None,
                "cost_to_end": vars(self.price_to_end) if self.price_to_end else None,
                "calibration": self.calibration.to_json() if self.calibration else None,
            }
        if migration is not None:
            fields |= {
                "migration_seconds": migration.seconds,
                "downtime": migration.downtime,
                "migration_cost": migration.cost.migration if migration.cost else None,
                "pays_after_steps": migration.cost.pays_after_steps if migration.cost else None,
                "pays_after_hours": migration.cost.pays_after_hours if migration.cost else None,
            }
        return CandidateEvent(**fields)


def row(
    subject: Subject,
    candidate: Candidate,
    estimate: StepEstimate,
    calibration: Calibration | None,
    migrations: Sequence[PastMigration] = (),
) -> ComparisonRow:
    """Return the row of a candidate with an estimate.

    Args:
        subject: What is compiled: a config or a run.
        candidate: The candidate.
        estimate: The estimate of its compiled step.
        calibration: Measured over estimated steps on devices of its kind; None: not measured.
        migrations: Earlier migrations, by which a migration of the run to the candidate is estimated.
    """
    steps = estimate.steps
    if subject.run is not None:
        steps = max(0, (subject.run.steps or estimate.steps) - subject.run.step)
    step = estimate.step
    if step is None:
        return ComparisonRow(candidate, estimate, steps_left=steps, calibration=calibration)
    if calibration is not None:
        step = calibration.applied(step)
    migration = None
    if subject.run is not None and subject.run.target != candidate.target:
        migration = _migration(subject.run, candidate, estimate, step.value, steps, migrations)
    return ComparisonRow(candidate, estimate, "", step, steps, calibration, migration)


def _migration(
    run: PresentRun,
    candidate: Candidate,
    estimate: StepEstimate,
    step: float,
    steps_left: int,
    migrations: Sequence[PastMigration],
) -> EstimatedMigration:
    rates = rates_between(migrations, run.run_id, run.host, candidate.target, WARM, run.checkpoint_bytes)
    mode = mode_of(WARM)
    downtime = sum(downtime_estimate.predict(mode, pace_of(run.curve), run.checkpoint_bytes, rates).values())
    prepared = mode.preparation_seconds(0, run.checkpoint_bytes, rates, estimate.compile_seconds, run.checkpoint_bytes)
    price = cost.estimate(
        (run.price, candidate.price),
        prepare_seconds=prepared,
        downtime=downtime,
        step_before=run.step_seconds,
        step_after=step,
        tokens=estimate.tokens,
        steps_left=steps_left,
    )
    return EstimatedMigration(prepared + downtime, downtime, price)


def ordered(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Return the rows, those that fit first.

    The cheapest is first where all of them have a price, else the fastest.
    """
    priced = all(row.price_to_end is not None for row in rows if row.step is not None)

    def key(row: ComparisonRow) -> tuple[int, float]:
        if row.step is None or row.remaining is None:
            return (2 if row.error else 1), math.inf
        paid = row.price_to_end
        return 0, paid.value if priced and paid is not None else row.remaining.value

    return sorted(rows, key=key)


def step_text(seconds: float) -> str:
    """Format the time of a step: ``9.1 ms``, ``2.35 s``."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
