"""What a move costs and what it saves, where the fleet file has prices."""

from __future__ import annotations

import math

from midstream.migrate.model import Cost

HOUR = 3600.0


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
    """``prices``: an hour of source and of target, in the currency of the fleet file. ``step_before``, ``step_after``:
    seconds a step on either (None: nobody has measured it); ``tokens`` of a step. None where a price is not known.

    The move costs the target while it is made ready, and both while neither trains. It has paid when the steps that
    were done on the target have cost so much less than they would have on the source."""
    source, target = prices
    if source is None or target is None or step_before <= 0:
        return None
    move = (target * prepare_seconds + (source + target) * downtime) / HOUR
    before = source * step_before / HOUR
    after = None if step_after is None else target * step_after / HOUR
    saved = None if after is None else before - after
    pays = None if saved is None or saved <= 0 else move / saved
    return Cost(
        source_per_hour=source,
        target_per_hour=target,
        move=move,
        step_before=before,
        step_after=after,
        tokens=tokens,
        steps_left=steps_left,
        pays_after_steps=pays,
        pays_after_hours=None if pays is None or step_after is None else pays * step_after / HOUR,
        pays_below_seconds=source * step_before / target if target > 0 else None,
    )


def describe(cost: Cost) -> list[str]:
    """In lines for a person."""
    before = f"a step costs {_money(cost.step_before)}"
    if cost.tokens:
        before += f", 1000 tokens {_money(cost.step_before / cost.tokens * 1000)}"
    lines = [
        f"{_money(cost.source_per_hour)} an hour -> {_money(cost.target_per_hour)}; the move costs {_money(cost.move)}",
    ]
    if cost.step_after is None:
        lines.append(f"{before}; there it has not been measured: the rehearsal will")
        if cost.pays_below_seconds is not None:
            lines.append(f"cheaper where a step takes less than {cost.pays_below_seconds:.3g} s there")
        return lines
    after = _money(cost.step_after)
    if cost.tokens:
        after += f", 1000 tokens {_money(cost.step_after / cost.tokens * 1000)}"
    lines.append(f"{before}; there {after}")
    if cost.pays_after_steps is None or cost.pays_after_hours is None:
        lines.append("it never pays for itself: a step costs no less there")
    elif cost.pays_after_steps > cost.steps_left:
        lines.append(f"it would pay for itself after {cost.pays_after_steps:.0f} steps, and {cost.steps_left} are left")
    else:
        lines.append(
            f"it pays for itself after {cost.pays_after_steps:.0f} steps ({cost.pays_after_hours:.2g} h there)"
        )
    return lines


def _money(amount: float) -> str:
    """Four digits that matter, two at least after the point, never in powers of ten: ``12.00``, ``0.0003214``."""
    places = 2 if amount <= 0 else max(2, 3 - math.floor(math.log10(amount)))
    return f"{amount:.{places}f}"
