"""Claim on the global batch: a step has as many examples as before.

The trainer's own records show it, in this order: digests of the batches of the same steps (`midstream_tap`); numbers in
the batches of a step (of the tap too); the epoch of transformers' Trainer, which it computes from the length of its
loader; and a counter of examples or tokens. Where none of them is there, nothing is concluded: a loss, or the number of
devices, shows no batch.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from midstream.counts import count
from midstream.migrate.journal.certificate import CLAIM_FAILED, NOT_CHECKED, VERIFIED, Claim
from midstream.migrate.journal.plan import TrainerPlan
from midstream.migrate.proof.replay_overlap import Overlap
from midstream_core.json_types import LoggedRow
from midstream_host.trainers.recorded_epoch import RecordedEpoch

NAME = "global batch"
ELEMENTS = "batch_elements"
EPOCH, COUNTER = "epoch", "progress"  # fields of a row
HINT = (
    "midstream_tap in the training script records it, or metrics: {names: {samples: NAME}} names a counter of examples"
)
SAME = 0.01  # relative difference of progress a step, up to which it is the same
OTHER = 0.1  # from which on it is another; between both nothing is concluded

Rows = Sequence[LoggedRow]


@dataclass(frozen=True)
class BatchProgress:
    """Progress a step of one side, in epochs, examples or tokens.

    ``error``: relative; it follows from the digits that are logged.
    """

    a_step: float
    error: float


def global_batch_claim(
    trainer: TrainerPlan | None,
    source: Rows,
    target: Rows,
    rehearsed: Rows,
    overlaps: Sequence[Overlap],
    epoch: RecordedEpoch | None,
) -> Claim:
    """Compare the examples of a step on both sides.

    Args:
        trainer: Part of the plan; None for midstream's own engine.
        source: Rows of the source's last attempt.
        target: Rows of the target.
        rehearsed: Rows of the rehearsal on the target.
        overlaps: Steps that both sides did.
        epoch: What the migrated checkpoint of transformers' Trainer says of its epochs; None: it is of another trainer.
    """
    agreed = trainer is not None and trainer.batch_may_differ

    def claim(verdict: str, statement: str, **evidence: Any) -> Claim:
        return Claim(NAME, verdict, statement, evidence, needed=False, agreed=agreed)

    batches = [pair for overlap in overlaps for pair in overlap.batches]
    if batches and all(before == after for _, before, after in batches):
        return claim(VERIFIED, f"{count(len(batches), 'step')} consumed the batches that the source consumed")
    before, after = _elements(source), _elements([*rehearsed, *target])
    if before and after and trainer is not None and trainer.one_node:
        if len(before) == len(after) == 1:
            (of_source,), (of_target,) = before, after
            what = f"a step has {of_source:,} numbers in its batches"
            if of_source == of_target:
                return claim(VERIFIED, f"{what}, on both sides", before=of_source, after=of_target)
            return claim(
                CLAIM_FAILED,
                f"{what} on the source, and {of_target:,} on the target",
                before=of_source,
                after=of_target,
            )
        return claim(NOT_CHECKED, "the batches of the steps have different sizes")
    if any(COUNTER in row for row in source) or not any(EPOCH in row for row in source):
        counted = _progress(source, COUNTER), _progress(target, COUNTER) or _progress(rehearsed, COUNTER)
        return claim(*_compared(*counted, "examples or tokens"))
    if epoch is None:
        return claim(NOT_CHECKED, f"an epoch that is logged does not show how its trainer computes it ({HINT})")
    if not epoch.sized:
        return claim(NOT_CHECKED, f"the data have no length, so that the epoch shows no examples ({HINT})")
    first = min((row["global_step"] for row in target if EPOCH in row), default=0)
    seam = [row for row in source if EPOCH in row and row["global_step"] < first][-1:]
    after = _progress([*seam, *target], EPOCH) or _progress(rehearsed, EPOCH)
    return claim(*_compared(_progress(source, EPOCH), after, "epochs"))


def _compared(before: BatchProgress | None, after: BatchProgress | None, unit: str) -> tuple[str, str]:
    """Return verdict and statement of the progress on both sides."""
    if before is None and after is None:
        return NOT_CHECKED, f"nothing that is logged shows the examples of a step ({HINT})"
    if before is None or after is None:
        return NOT_CHECKED, f"too few rows of the {'source' if before is None else 'target'} have their {unit}"
    ratio, error = after.a_step / before.a_step, before.error + after.error
    what = f"a step is {before.a_step:.6g} {unit} on the source, and {after.a_step:.6g} on the target"
    if abs(ratio - 1) <= SAME and error <= SAME:
        return VERIFIED, what
    if abs(ratio - 1) > OTHER + error:
        return CLAIM_FAILED, f"{what}: {ratio:.3g} times the global batch, or other data"
    return NOT_CHECKED, f"{what}: what is logged is not precise enough to distinguish them"


def _elements(rows: Rows) -> set[int]:
    return {row[ELEMENTS] for row in rows if row.get(ELEMENTS)}


def _progress(rows: Rows, name: str) -> BatchProgress | None:
    """Return the progress a step by a counter; None without two rows that have it.

    The last step of an epoch may be a shorter one: the median of the differences counts.
    """
    points = [(row["global_step"], float(row[name])) for row in rows if row.get(name) is not None]
    steps = [((b - a) / (t - s), t - s) for (s, a), (t, b) in pairwise(points) if t > s and b > a]
    if not steps:
        return None
    a_step = statistics.median(slope for slope, _ in steps)
    digits = max(len(f"{value:.12g}".partition(".")[2]) for _, value in points)
    if digits > 4:
        return BatchProgress(a_step, 0.0)
    span = points[-1][0] - points[0][0]  # rounded values: the complete range is more precise than its parts
    return BatchProgress((points[-1][1] - points[0][1]) / span, 10.0**-digits / (span * a_step))
