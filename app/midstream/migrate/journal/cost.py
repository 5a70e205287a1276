"""Cost and savings of a migration, where the fleet file has prices."""

from __future__ import annotations

from dataclasses import dataclass

from midstream.counts import agree, count
from midstream.format import money

HOUR = 3600.0


@dataclass(frozen=True)
class Cost:
    """Cost of a migration, in the currency of the fleet file's prices."""

    source_per_hour: float
    target_per_hour: float
    migration: float  # the target while it is prepared, and both during the downtime
    step_before: float
    step_after: float | None  # None: step time of the target not measured yet
    tokens: int  # of a step; 0: not known
    steps_left: int
    pays_after_steps: float | None  # None: never, or not known
    pays_after_hours: float | None  # of training on the target
    pays_below_seconds: float | None  # of a step on the target, below which it is cheaper than on the source


def estimate(
    prices: tuple[float | None, float | None],
    *,
    prepare_seconds: float,
    downtime: float,
    step_before: float,
    step_after: float | None,
    tokens: int,
    steps_left: int,
) -> Cost | None:
    """Estimate the cost of a migration; None where a price is not known.

    The migration costs the target while it is prepared, and both during the downtime. It pays for itself when the
    steps on the target have saved that amount, compared with the same steps on the source.

    Args:
        prices: An hour of the source and of the target, in the currency of the fleet file.
        prepare_seconds: Time for which the target is prepared while the source trains.
        downtime: Seconds in which neither trains.
        step_before: Seconds a step on the source.
        step_after: Seconds a step on the target; None: not measured.
        tokens: Tokens of a step; 0: not known.
        steps_left: Steps that remain to be done.
    """
    source, target = prices
    if source is None or target is None or step_before <= 0:
        return None
    migration = (target * prepare_seconds + (source + target) * downtime) / HOUR
    before = source * step_before / HOUR
    after = None if step_after is None else target * step_after / HOUR
    saved = None if after is None else before - after
    pays = None if saved is None or saved <= 0 else migration / saved
    return Cost(
        source_per_hour=source,
        target_per_hour=target,
        migration=migration,
        step_before=before,
        step_after=after,
        tokens=tokens,
        steps_left=steps_left,
        pays_after_steps=pays,
        pays_after_hours=None if pays is None or step_after is None else pays * step_after / HOUR,
        pays_below_seconds=source * step_before / target if target > 0 else None,
    )


def describe(cost: Cost) -> list[str]:
    """Describe the cost in lines for the user."""
    before = f"a step costs {money(cost.step_before)}"
    if cost.tokens:
        before += f", 1000 tokens {money(cost.step_before / cost.tokens * 1000)}"
    hour = f"{money(cost.source_per_hour)} an hour -> {money(cost.target_per_hour)}"
    lines = [f"{hour}; the migration costs {money(cost.migration)}"]
    if cost.step_after is None:
        lines.append(f"{before}; not measured on the target yet (the rehearsal measures it)")
        if cost.pays_below_seconds is not None:
            lines.append(f"cheaper if a step on the target takes less than {cost.pays_below_seconds:.3g} s")
        return lines
    after = money(cost.step_after)
    if cost.tokens:
        after += f", 1000 tokens {money(cost.step_after / cost.tokens * 1000)}"
    lines.append(f"{before}; on the target {after}")
    steps = count(round(cost.pays_after_steps or 0), "step")
    if cost.pays_after_steps is None or cost.pays_after_hours is None:
        lines.append("it never pays for itself: a step on the target costs no less")
    elif cost.pays_after_steps > cost.steps_left:
        lines.append(f"it would pay for itself after {steps}, and {cost.steps_left:,} {agree(cost.steps_left)} left")
    else:
        lines.append(f"it pays for itself after {steps} ({cost.pays_after_hours:.2g} h on the target)")
    return lines
