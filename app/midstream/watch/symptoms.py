"""Symptoms of a running run: a stall, or a loss that is NaN or diverges.

The loss is compared with its own history.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from midstream.watch.snapshot import RunView
from midstream_core import records
from midstream_core.json_types import LoggedRow

STALLED, DIVERGING, NOT_A_NUMBER = "stalled", "diverging", "nan"
MIN_STALL_TIME = 300.0  # seconds without a step
STALL_STEPS = 20  # the same in median steps of the run
RECENT, BEFORE = 20, 200  # rows
DIVERGENCE = 8.0  # rise of the loss in units of its earlier spread
MIN_SPREAD = 0.005  # of the earlier loss
# A start, a restore, a compilation or a save is slow, and not a stall.
STEPPING = (records.TRAINING,)


@dataclass(frozen=True)
class Symptom:
    """A symptom that the user should look at."""

    kind: str  # STALLED, DIVERGING or NOT_A_NUMBER
    message: str


def symptoms(run: RunView, now: float) -> list[Symptom]:
    """Return the symptoms of a run's copy at ``now`` (UTC seconds on the run's host)."""
    rows = [row for row in run.curve[-(RECENT + BEFORE) :] if "train/loss" in row]
    shown = []
    stalled = _stalled(run, rows, now)
    if stalled:
        shown.append(Symptom(STALLED, stalled))
    bad = list(itertools.takewhile(lambda row: not math.isfinite(row["train/loss"]), reversed(rows)))
    if bad:
        earlier = " or earlier" if len(bad) == len(rows) and len(rows) < len(run.curve) else ""
        since = f"since step {bad[-1]['global_step']}{earlier}"
        shown.append(Symptom(NOT_A_NUMBER, f"the loss is NaN or infinite {since}"))
    elif rising := _diverging([row["train/loss"] for row in rows]):
        shown.append(Symptom(DIVERGING, rising))
    return shown


def _stalled(run: RunView, rows: Sequence[LoggedRow], now: float) -> str:
    if not run.running or run.state not in STEPPING or not rows or "time" not in rows[-1]:
        return ""
    durations = [row["throughput/duration"] for row in rows if "throughput/duration" in row]
    stall_time = max(MIN_STALL_TIME, STALL_STEPS * statistics.median(durations or [0.0]))
    elapsed = now - rows[-1]["time"]
    if elapsed <= stall_time:
        return ""
    return f"no step for {elapsed:.0f} s after step {rows[-1]['global_step']}, and its process is running"


def _diverging(losses: Sequence[float]) -> str:
    """Compare the median of the last losses with the median of those before.

    The difference is in units of their spread.

    The spread is the median absolute deviation, which single spikes do not change.
    """
    finite = [loss for loss in losses if math.isfinite(loss)]
    before, recent = finite[:-RECENT], finite[-RECENT:]
    if len(before) < RECENT:
        return ""
    usual = statistics.median(before)
    spread = statistics.median(abs(loss - usual) for loss in before)
    now = statistics.median(recent)
    if now <= usual + DIVERGENCE * max(spread, MIN_SPREAD * abs(usual)):
        return ""
    return f"the loss has risen from about {usual:.4g} to {now:.4g} within {RECENT} steps"
