"""What is wrong with a run that goes on: it stands still, its loss is no number, or rises away. Judged by its own
past; nothing is done about it here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from midstream_engine import records

if TYPE_CHECKING:
    from midstream.watch.snapshot import RunView

STALLED, DIVERGING, NOT_A_NUMBER = "stalled", "diverging", "nan"
PATIENCE = 300.0  # seconds without a step, at least
STEPS_OF_PATIENCE = 20  # of the run's own median step
RECENT, BEFORE = 20, 200  # rows
RISE = 8.0  # of the spread that the losses had before
# Slow by nature: a start, a restore, a compilation or a save are not a standstill.
STEPPING = (records.TRAINING,)


@dataclass(frozen=True)
class Symptom:
    """One thing that a person should look at."""

    kind: str  # STALLED, DIVERGING or NOT_A_NUMBER
    message: str


def symptoms(run: RunView, now: float) -> list[Symptom]:
    """Of a run's copy as it was seen at ``now`` (UTC seconds on the run's host)."""
    rows = [row for row in run.curve[-(RECENT + BEFORE) :] if "train/loss" in row]
    found = []
    standstill = _stalled(run, rows, now)
    if standstill:
        found.append(Symptom(STALLED, standstill))
    if rows and not math.isfinite(rows[-1]["train/loss"]):
        step = next(row["global_step"] for row in rows if not math.isfinite(row["train/loss"]))
        found.append(Symptom(NOT_A_NUMBER, f"the loss is {rows[-1]['train/loss']} since step {step}"))
    elif rising := _diverging([row["train/loss"] for row in rows]):
        found.append(Symptom(DIVERGING, rising))
    return found


def _stalled(run: RunView, rows: Sequence[Mapping[str, Any]], now: float) -> str:
    if not run.running or run.state not in STEPPING or not rows or "time" not in rows[-1]:
        return ""
    durations = [row["throughput/duration"] for row in rows if "throughput/duration" in row]
    patience = max(PATIENCE, STEPS_OF_PATIENCE * statistics.median(durations or [0.0]))
    silent = now - rows[-1]["time"]
    if silent <= patience:
        return ""
    return f"no step for {silent:.0f} s after step {rows[-1]['global_step']}, and its process lives"


def _diverging(losses: Sequence[float]) -> str:
    """The median of the last losses against the median of those before, in units of their spread (the median absolute
    deviation, which single spikes do not move)."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    before, recent = finite[:-RECENT], finite[-RECENT:]
    if len(before) < RECENT:
        return ""
    usual = statistics.median(before)
    spread = statistics.median(abs(loss - usual) for loss in before)
    now = statistics.median(recent)
    if now <= usual + RISE * max(spread, 0.005 * abs(usual)):
        return ""
    return f"the loss has risen from about {usual:.4g} to {now:.4g} within {RECENT} steps"
