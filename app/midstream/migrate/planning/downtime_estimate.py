"""Prediction of a migration's downtime from measurements of runs and migrations."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from midstream.migrate.journal.downtime_report import DOWNTIME_PHASES
from midstream.migrate.journal.modes import COLD, LIVE, WARM
from midstream.migrate.planning.measured_rates import Rates
from midstream_core.json_types import JsonObject, LoggedRow

# Assumptions until the run or an earlier migration has measured better values.
DEFAULT_COPY_SPEED = 200e6  # bytes a second of a verified copy
DEFAULT_DISK_SPEED = 400e6  # bytes a second of a save with hashing
ENGINE_START_SECONDS = 6.0  # to start an interpreter with jax
COMMAND_SECONDS = 1.0  # until the engine has read the stop command


def predict(
    curve: Sequence[JsonObject],
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
        mode: Mode of the migration. In a warm migration the target has compiled before, and objects are copied while
            others are still being saved, so the copy counts with the time beyond the save; it is verified during the
            copy and again by the restore. A live migration has no downtime.
        rates: Measurements between the two hosts, which replace any assumption.
        copied_bytes: Bytes of it that are copied: none where both ends read one bucket; None: all, once.
        running: The source trains. If not, nothing is stopped or saved, and the checkpoint is copied before.
    """
    rates = rates or Rates()
    step, first = step_seconds(curve)
    target_step = step if rates.step is None else rates.step
    copied = checkpoint_bytes if copied_bytes is None else copied_bytes
    saving, copying = checkpoint_bytes / DEFAULT_DISK_SPEED, copied / (rates.copy or DEFAULT_COPY_SPEED)
    if mode == LIVE:
        return dict.fromkeys(DOWNTIME_PHASES, 0.0)
    if mode == WARM:
        defaults = {
            "quiesce": 0.3 + step,
            "save": 0.2 + saving,
            "copy": 0.5 + max(0.0, copying - saving),
            "verify": 0.0,
            "provision": 0.2,
            "install": 0.0,
            "compile": 0.0,
            "restore": 0.5 + checkpoint_bytes / DEFAULT_DISK_SPEED,
            "first_step": target_step,
        }
        return _without_source({**defaults, **rates.entries}, running)
    defaults = {
        "quiesce": COMMAND_SECONDS + step,
        "save": 0.5 + saving,
        "copy": 1.0 + copying,
        "verify": 0.3 + checkpoint_bytes / DEFAULT_DISK_SPEED,
        "provision": ENGINE_START_SECONDS,
        "install": 0.0,
        "compile": max(0.0, first - step),
        "restore": 1.0 + checkpoint_bytes / DEFAULT_DISK_SPEED,
        "first_step": target_step,
    }
    return _without_source({**defaults, **rates.entries}, running)


def _without_source(seconds: dict[str, float], running: bool) -> dict[str, float]:
    return seconds if running else {**seconds, "quiesce": 0.0, "save": 0.0, "copy": min(seconds["copy"], 0.5)}


def preparation_seconds(
    data_bytes: int,
    checkpoint_bytes: int,
    mode: str,
    rates: Rates,
    compile_seconds: float,
    *,
    copied_bytes: float | None = None,
) -> float:
    """Estimate the seconds in which the target is prepared while the source trains.

    The preparation consists of copies and, with a standby, an interpreter, a compilation and a restore. Building an
    environment and a replay are not included.

    Args:
        data_bytes: Bytes of data that are copied.
        checkpoint_bytes: Size of the state.
        mode: Mode of the migration. A cold one copies data alone, and has no standby.
        rates: Measurements between the two hosts.
        compile_seconds: Seconds of a compilation.
        copied_bytes: As in `predict`.
    """
    copied = checkpoint_bytes if copied_bytes is None else copied_bytes
    copy_bytes = data_bytes + (0 if mode == COLD else copied)
    ready = 0.0 if mode == COLD else ENGINE_START_SECONDS + compile_seconds + checkpoint_bytes / DEFAULT_DISK_SPEED
    return copy_bytes / (rates.copy or DEFAULT_COPY_SPEED) + ready


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
