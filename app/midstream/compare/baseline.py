"""The run as it trains now: measured step, time and cost to the end."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from midstream.compare.estimate import Range
from midstream.compare.subject import PresentRun
from midstream.json_events.comparison_events import BaselineEvent
from midstream.migrate.journal.cost import HOUR
from midstream_core.json_types import LoggedRow

NEWEST = 200  # steps that count
TENTHS = 10  # the range leaves out the fastest and the slowest tenth


@dataclass(frozen=True)
class Baseline:
    """Measured steps of the run on its own accelerators."""

    target: str
    host: str
    devices: int
    device_kind: str
    price: float | None  # an hour of all of it
    step: Range  # seconds: the median, and without the fastest and slowest tenth
    tokens_per_second: float | None  # None: the run does not report it
    steps_left: int | None  # None: the run does not report its length

    @property
    def name(self) -> str:
        """The first cell of its row."""
        return f"{self.target} (measured)"

    @property
    def remaining(self) -> Range | None:
        """Seconds to the end of the run; None where its length is not known."""
        return None if self.steps_left is None else self.step.times(self.steps_left)

    @property
    def price_to_end(self) -> Range | None:
        """Price of the time to the end."""
        if self.remaining is None or self.price is None:
            return None
        return self.remaining.times(self.price / HOUR)

    def event(self) -> BaselineEvent:
        """Return the line of ``--json``."""
        return BaselineEvent(
            target=self.target,
            host=self.host,
            devices=self.devices,
            device_kind=self.device_kind,
            price_per_hour=self.price,
            step_seconds=vars(self.step),
            tokens_per_second=self.tokens_per_second,
            steps_left=self.steps_left,
            seconds_to_end=vars(self.remaining) if self.remaining else None,
            cost_to_end=vars(self.price_to_end) if self.price_to_end else None,
        )


def baseline(run: PresentRun | None) -> Baseline | None:
    """Return what a run has measured where it is.

    None for a config, and before its first step is measured.
    """
    if run is None or run.step_seconds <= 0:
        return None
    durations = _values(run.curve, "throughput/duration")
    low = high = run.step_seconds
    if len(durations) >= TENTHS:
        tenths = statistics.quantiles(durations, n=TENTHS, method="inclusive")
        low, high = tenths[0], tenths[-1]
    elif durations:
        low, high = min(durations), max(durations)
    rates = _values(run.curve, "throughput/tokens_per_second")
    return Baseline(
        run.target,
        run.host,
        len(run.kinds),
        run.kinds[0] if run.kinds else "",
        run.price,
        Range(run.step_seconds, low, high),
        statistics.median(rates) if rates else None,
        max(0, run.steps - run.step) if run.steps else None,
    )


def _values(curve: Sequence[LoggedRow], name: str) -> list[float]:
    return [float(row[name]) for row in curve[-NEWEST:] if name in row]
