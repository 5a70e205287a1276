"""Prediction of a migration's downtime from measurements of runs and migrations."""

from __future__ import annotations

from midstream.migrate.modes.assumptions import DEFAULT_COPY_SPEED, DEFAULT_DISK_SPEED
from midstream.migrate.modes.mode import Mode
from midstream.migrate.modes.work import DowntimeSeconds, Rates
from midstream.migrate.planning.progress import Pace


def predict(
    mode: Mode,
    pace: Pace,
    checkpoint_bytes: int,
    rates: Rates | None = None,
    *,
    running: bool = True,
    copied_bytes: float | None = None,
) -> dict[str, float]:
    """Predict the seconds of each phase of the downtime.

    Args:
        mode: Mode of the migration.
        pace: The run's on its source.
        checkpoint_bytes: Size of the state.
        rates: Measurements between the two hosts, which replace any assumption.
        copied_bytes: Bytes of it that are copied: none where both ends read one bucket; None: all, once.
        running: The source trains. If not, nothing is stopped or saved, and the checkpoint is copied before.
    """
    rates = rates or Rates()
    copied = checkpoint_bytes if copied_bytes is None else copied_bytes
    seconds = DowntimeSeconds(
        step=pace.step,
        first_step=pace.first_step,
        target_step=pace.step if rates.step is None else rates.step,
        save=checkpoint_bytes / DEFAULT_DISK_SPEED,
        copy=copied / (rates.copy or DEFAULT_COPY_SPEED),
        read=checkpoint_bytes / DEFAULT_DISK_SPEED,
    )
    return mode.predicted(seconds, rates.entries, running=running)
