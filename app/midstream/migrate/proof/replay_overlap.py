"""Replay overlap: losses of steps done by source and target from one checkpoint.

The overlap shows lost data order, optimizer state and random state of a trainer without touching the user's code. On
the same number of processes and the same kind of device the losses are usually equal bit by bit. Else they agree in a
band: a fifth of the typical difference between two neighbouring losses, at least 1e-4 and at most 2e-2, relative.
Batches in another order differ by as much as neighbours do.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from midstream.migrate.journal.facts import ReplayAgreement
from midstream_core import records
from midstream_core.json_types import LoggedRow

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
        begun: Step that the target began at.
    """

    steps: tuple[tuple[int, float, float], ...] = ()
    band: float = WIDEST
    learning_rates: tuple[tuple[int, float, float], ...] = ()
    batches: tuple[tuple[int, str, str], ...] = ()
    begun: int = 0

    @property
    def shows_update(self) -> bool:
        """Whether a loss follows an update of the target.

        The first one shows nothing of the optimizer.
        """
        return any(step > self.begun for step, _, _ in self.steps)

    @property
    def worst(self) -> float:
        """Largest relative difference of a loss; 0 without steps."""
        return max((records.relative_difference(before, after) for _, before, after in self.steps), default=0.0)

    @property
    def identical(self) -> bool:
        """Whether all losses are equal bit by bit."""
        return all(before == after for _, before, after in self.steps)

    @property
    def agrees(self) -> bool:
        """Whether all losses agree in the band."""
        return self.worst <= self.band

    @property
    def first_difference(self) -> int | None:
        """First step whose losses do not agree; None without one."""
        return next(
            (step for step, before, after in self.steps if records.relative_difference(before, after) > self.band), None
        )

    def facts(self) -> ReplayAgreement:
        """Return it for the journal."""
        steps = [step for step, _, _ in self.steps]
        worst = self.worst if math.isfinite(self.worst) else None
        return ReplayAgreement(len(steps), min(steps, default=None), max(steps, default=None), worst, self.band)


def overlap_of(source: Sequence[LoggedRow], target: Sequence[LoggedRow], begun: int) -> Overlap:
    """Compare the rows of both sides, step by step.

    ``source`` may have more: its neighbours give the band. Numbers that are NaN on both sides are left out: they say
    nothing. ``begun``: step that the target began at. Who logs every tenth step may log the mean of ten losses: that of
    a row is left out where the target did not do all of its steps.
    """
    steps = [row["global_step"] for row in source]
    gaps = [after - before for before, after in pairwise(steps) if after > before]
    mean_of = round(statistics.median(gaps)) if gaps else 1
    rows = {row["global_step"]: row for row in source}
    pairs = [(rows[row["global_step"]], row) for row in target if row["global_step"] in rows]
    batch = "batch_digest"
    done = [(before, row) for before, row in pairs if mean_of == 1 or row["global_step"] + 1 - mean_of >= begun]
    return Overlap(
        _numbers("train/loss", done),
        band_of([row["train/loss"] for row in source]),
        _numbers("optim/learning_rate", pairs),
        tuple(
            (row["global_step"], before[batch], row[batch])
            for before, row in pairs
            if before.get(batch) and row.get(batch)
        ),
        begun,
    )


def _numbers(name: str, pairs: Sequence[tuple[LoggedRow, LoggedRow]]) -> tuple[tuple[int, float, float], ...]:
    return tuple(
        (row["global_step"], before[name], row[name])
        for before, row in pairs
        if name in before and name in row and not records.both_nan(before[name], row[name])
    )


def band_of(losses: Sequence[float]) -> float:
    """Return the band for losses of consecutive rows, of finite losses alone."""
    finite = filter(math.isfinite, losses)
    differences = [records.relative_difference(before, after) for before, after in pairwise(finite)]
    if not differences:
        return WIDEST
    return max(NARROWEST, min(WIDEST, SHARE * statistics.median(differences)))
