"""Prediction of a migration's downtime from measurements of runs and migrations."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from midstream.migrate.modes.assumptions import DEFAULT_COPY_SPEED, DEFAULT_DISK_SPEED
from midstream.migrate.modes.registry import COLD, mode_of
from midstream.migrate.modes.work import DowntimeSeconds, Rates
from midstream_core.json_types import LoggedRow


def predict(
    curve: Sequence[LoggedRow],
    checkpoint_bytes: int,
    mode: str = COLD,
    rates: Rates | None = None,
    *,
    running: bool = True,
    copied_bytes: float | None = None,
) -> dict[str, float]:
    """Predict the seconds of each phase of the downtime.

    Args:
        curve: The run's metric rows; steps are timed by them.
        checkpoint_bytes: Size of the state.
        mode: Mode of the migration.
        rates: Measurements between the two hosts, which replace any assumption.
        copied_bytes: Bytes of it that are copied: none where both ends read one bucket; None: all, once.
        running: The source trains. If not, nothing is stopped or saved, and the checkpoint is copied before.
    """
    rates = rates or Rates()
    step, first = step_seconds(curve)
    copied = checkpoint_bytes if copied_bytes is None else copied_bytes
    seconds = DowntimeSeconds(
        step=step,
        first_step=first,
        target_step=step if rates.step is None else rates.step,
        save=checkpoint_bytes / DEFAULT_DISK_SPEED,
        copy=copied / (rates.copy or DEFAULT_COPY_SPEED),
        read=checkpoint_bytes / DEFAULT_DISK_SPEED,
    )
    return mode_of(mode).predicted(seconds, rates.entries, running=running)


def step_seconds(curve: Sequence[LoggedRow]) -> tuple[float, float]:
    """Return seconds of the median step, and of the newest attempt's first step.

    0 where unknown. The first step includes the compilation.
    """
    if not curve:
        return 0.0, 0.0
    durations = [row["throughput/duration"] for row in curve[-200:] if "throughput/duration" in row]
    newest = curve[-1].get("attempt")
    first = next((row.get("throughput/duration", 0.0) for row in curve if row.get("attempt") == newest), 0.0)
    return (statistics.median(durations) if durations else 0.0), float(first)
