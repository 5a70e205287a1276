"""Symptoms of a running run: a stall, or a loss that is NaN or diverges.

The loss is compared with its own history.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from midstream.watch.loss_curve import numbers
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
    recent = _Recent(run.curve)
    shown = []
    stalled = _stalled(run, recent, now)
    if stalled:
        shown.append(Symptom(STALLED, stalled))
    losses = recent.losses
    bad = sum(1 for _ in itertools.takewhile(lambda loss: not math.isfinite(loss), reversed(losses)))
    if bad:
        earlier = " or earlier" if bad == len(losses) and len(losses) < len(run.curve) else ""
        since = f"since step {recent.step(-bad)}{earlier}"
        shown.append(Symptom(NOT_A_NUMBER, f"the loss is NaN or infinite {since}"))
    elif rising := _diverging(losses):
        shown.append(Symptom(DIVERGING, rising))
    return shown


class _Recent:
    """The newest rows with a loss.

    A guard looks at them at every report, so they are read by column.
    """

    def __init__(self, curve: Sequence[LoggedRow]) -> None:
        self._curve, self._begin = curve, max(0, len(curve) - (RECENT + BEFORE))
        losses, exists = self._numbers("train/loss")
        self._rows = [index for index, logged in enumerate(exists) if logged]
        self.losses = [losses[index] for index in self._rows]

    def _numbers(self, name: str) -> tuple[Sequence[float], bytes]:
        return numbers(self._curve, name, self._begin, len(self._curve))

    def step(self, index: int) -> int:
        """Return the step of a row."""
        return self._curve[self._begin + self._rows[index]]["global_step"]

    def last_time(self) -> float | None:
        """Return when the last row was complete, None if it has no time.

        UTC seconds by its host's clock.
        """
        return self._curve[self._begin + self._rows[-1]].get("time") if self._rows else None

    def durations(self) -> list[float]:
        """Return the seconds of the steps."""
        values, exists = self._numbers("throughput/duration")
        return [values[index] for index in self._rows if exists[index]]


def _stalled(run: RunView, recent: _Recent, now: float) -> str:
    last = recent.last_time()
    if not run.running or run.state not in STEPPING or last is None:
        return ""
    elapsed = now - last
    if elapsed <= MIN_STALL_TIME:
        return ""
    stall_time = max(MIN_STALL_TIME, STALL_STEPS * statistics.median(recent.durations() or [0.0]))
    if elapsed <= stall_time:
        return ""
    return f"no step for {elapsed:.0f} s after step {recent.step(-1)}, and its process is running"


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
