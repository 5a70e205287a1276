"""Claim of a trainer's certificate on losses of the same steps on both sides."""

from __future__ import annotations

from collections.abc import Sequence

from midstream.counts import agree, count
from midstream.migrate.journal.certificate import CLAIM_FAILED, NOT_CHECKED, VERIFIED, Claim
from midstream.migrate.journal.plan import Plan
from midstream.migrate.proof.replay_overlap import NARROWEST, Overlap
from midstream_core import records


def overlap_claim(plan: Plan, *overlaps: Overlap) -> Claim:
    """Compare losses of the steps that both sides did."""
    accepted = plan.trainer is not None and plan.trainer.losses_may_differ
    steps = [step for overlap in overlaps for step in overlap.steps]
    if not steps:
        hint = "--mode warm compares those of a rehearsal" if not plan.has_standby else "the rehearsal logged too few"
        return Claim("replay overlap", NOT_CHECKED, f"no step with a loss was done by both ({hint})", needed=False)
    worst = max(overlap.worst for overlap in overlaps)
    band = min(overlap.band for overlap in overlaps if overlap.steps)
    holds, identical = all(overlap.agrees for overlap in overlaps), all(overlap.identical for overlap in overlaps)
    number = count(len(steps), "loss", "losses")
    verdict = VERIFIED if worst <= NARROWEST else NOT_CHECKED if holds else CLAIM_FAILED
    updated = any(overlap.shows_update for overlap in overlaps)
    if verdict == VERIFIED and not updated:
        verdict = NOT_CHECKED
    if identical:
        what = f"{number} of the same steps {agree(len(steps), 'is', 'are')} equal bit by bit"
        if not updated:
            what += ", and the first loss after a start shows nothing of the optimizer"
    elif holds:
        why = "" if plan.trainer is None or plan.trainer.same_world else ", on another number of processes"
        what = f"{number} of the same steps agree within {worst:.1e} relative (allowed {band:.0e}{why})"
        if verdict == NOT_CHECKED:
            what += f"; above {NARROWEST:.0e} other rounding and another random state look alike"
    else:
        first = next(overlap.first_difference for overlap in overlaps if overlap.first_difference is not None)
        what = (
            f"losses differ from the source's by up to {records.difference_text(worst)} from step {first} on "
            f"(allowed {band:.0e}): {_lost_state(overlaps)}"
        )
        if plan.trainer is not None and plan.trainer.advice:
            what += f" ({plan.trainer.advice[0]})"
    return Claim(
        "replay overlap",
        verdict,
        what,
        {"steps": [list(step) for step in steps], "largest_relative_difference": worst, "tolerance": band},
        needed=False,
        agreed=accepted,
    )


def _lost_state(overlaps: Sequence[Overlap]) -> str:
    """Return which state other losses speak of; digests of the batches exclude one."""
    pairs = [pair for overlap in overlaps for pair in overlap.batches]
    if not pairs:
        return "the order of the data, or the random state, begins again"
    if any(before != after for _, before, after in pairs):
        return "the batches are others"
    return "the batches are the same, so the random state or the optimizer's state begins again"
