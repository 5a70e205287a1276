"""Replay overlap: losses of steps done by source and target from one checkpoint.

It shows lost data order, optimizer state and random state of a trainer without touching the user's code. On the same
number of processes and the same kind of device the losses are usually equal bit by bit. Else they agree in a band: a
fifth of the typical difference between two neighbouring losses, at least 1e-4 and at most 2e-2, relative. Batches in
another order differ by as much as neighbours do.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from midstream.migrate.records.facts import ReplayAgreement
from midstream_engine import records

SHARE = 0.2  # of the typical difference between neighbouring losses
NARROWEST, WIDEST = 1e-4, 2e-2  # relative
LEARNING_RATE_TOLERANCE = 1e-6  # relative; trackers round to float32


@dataclass(frozen=True)
class Overlap:
    """Steps of both sides, with their losses and what else both logged.

    Attributes:
        steps: (step, loss of the source, loss of the target).
        band: Relative difference within which they agree.
        learning_rates: (step, of the source, of the target).
        batches: (step, digest of the source, of the target).
    """

    steps: tuple[tuple[int, float, float], ...] = ()
    band: float = WIDEST
    learning_rates: tuple[tuple[int, float, float], ...] = ()
    batches: tuple[tuple[int, str, str], ...] = ()

    @property
    def worst(self) -> float:
        """Largest relative difference of a loss; 0 without steps."""
        return max((records.relative_difference(one, other) for _, one, other in self.steps), default=0.0)

    @property
    def identical(self) -> bool:
        """Whether all losses are equal bit by bit."""
        return all(one == other for _, one, other in self.steps)

    @property
    def agrees(self) -> bool:
        """Whether all losses agree in the band."""
        return self.worst <= self.band

    @property
    def first_difference(self) -> int | None:
        """First step whose losses do not agree; None without one."""
        return next(
            (step for step, one, other in self.steps if records.relative_difference(one, other) > self.band), None
        )

    def facts(self) -> ReplayAgreement:
        """Return it for the journal."""
        steps = [step for step, _, _ in self.steps]
        worst = self.worst if math.isfinite(self.worst) else None
        return ReplayAgreement(len(steps), min(steps, default=None), max(steps, default=None), worst, self.band)


def overlap_of(source: Sequence[Mapping[str, Any]], target: Sequence[Mapping[str, Any]]) -> Overlap:
    """Compare the rows of both sides, step by step.

    ``source`` may have more: its neighbours give the band. Numbers that are NaN on both sides are left out: they say
    nothing.
    """
    known = {row["global_step"]: row for row in source}
    pairs = [(known[row["global_step"]], row) for row in target if row["global_step"] in known]
    batch = "batch_digest"
    return Overlap(
        _numbers("train/loss", pairs),
        band_of([row["train/loss"] for row in source]),
        _numbers("optim/learning_rate", pairs),
        tuple((row["global_step"], one[batch], row[batch]) for one, row in pairs if one.get(batch) and row.get(batch)),
    )


def _numbers(
    name: str, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> tuple[tuple[int, float, float], ...]:
    return tuple(
        (row["global_step"], one[name], row[name])
        for one, row in pairs
        if name in one and name in row and not records.both_nan(one[name], row[name])
    )


def band_of(losses: Sequence[float]) -> float:
    """Return the band for losses of consecutive rows.

    Those that are not finite are left out.
    """
    finite = filter(math.isfinite, losses)
    differences = [records.relative_difference(before, after) for before, after in pairwise(finite)]
    if not differences:
        return WIDEST
    return max(NARROWEST, min(WIDEST, SHARE * statistics.median(differences)))
