"""The downtime of a migration and what it is made of: predicted from what the run has shown, measured from marks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midstream.migrate.model import COLD, DOWNTIME_PHASES, LIVE, WARM, DowntimeReport
from midstream.migrate.planning.measured_rates import Rates

# Used only until the run or an earlier migration has shown better: bytes a second of a verified copy, of a save with
# hashing, and seconds to start an interpreter with jax.
COPY_RATE = 200e6
DISK_RATE = 400e6
ENGINE_START = 6.0
HANDSHAKE = 1.0


def predict(
    curve: Sequence[Mapping[str, Any]], checkpoint_bytes: int, mode: str = COLD, rates: Rates | None = None
) -> dict[str, float]:
    """Seconds for each entry, from the run's own steps, the bytes that have to travel, and ``rates``: what was measured
    between the two hosts, which is believed before anything else.

    In a warm migration the target has compiled before, and objects travel while others are still being saved: the
    copy takes what it takes beyond the save, and is verified as it flows and once more by the restore. A live
    migration stands still for nothing."""
    rates = rates or Rates()
    step, first = step_seconds(curve)
    there = step if rates.step is None else rates.step
    saving, copying = checkpoint_bytes / DISK_RATE, checkpoint_bytes / (rates.copy or COPY_RATE)
    if mode == LIVE:
        return dict.fromkeys(DOWNTIME_PHASES, 0.0)
    if mode == WARM:
        assumed = {
            "quiesce": 0.3 + step,
            "save": 0.2 + saving,
            "copy": 0.5 + max(0.0, copying - saving),
            "verify": 0.0,
            "provision": 0.2,
            "install": 0.0,
            "compile": 0.0,
            "restore": 0.5 + checkpoint_bytes / DISK_RATE,
            "first_step": there,
        }
        return {**assumed, **rates.entries}
    assumed = {
        "quiesce": HANDSHAKE + step,
        "save": 0.5 + saving,
        "copy": 1.0 + copying,
        "verify": 0.3 + checkpoint_bytes / DISK_RATE,
        "provision": ENGINE_START,
        "install": 0.0,
        "compile": max(0.0, first - step),
        "restore": 1.0 + checkpoint_bytes / DISK_RATE,
        "first_step": there,
    }
    return {**assumed, **rates.entries}


def preparing(data_bytes: int, checkpoint_bytes: int, mode: str, rates: Rates, compile_seconds: float) -> float:
    """Seconds in which the target is made ready while the source trains on: what is copied, and where it stands by, an
    interpreter, a compilation and a restore. An environment that has to be built, and a replay, come on top."""
    copied = data_bytes + (0 if mode == COLD else checkpoint_bytes)
    ready = 0.0 if mode == COLD else ENGINE_START + compile_seconds + checkpoint_bytes / DISK_RATE
    return copied / (rates.copy or COPY_RATE) + ready


def live(predicted: Mapping[str, float], last_step_ended: float, next_step_ended: float) -> DowntimeReport:
    """Downtime of a live migration: the target had done the next step before the source had its last, or soon after.
    Times as in ``Marks``. What remains is the wait for that step; nothing else stands between the two."""
    gap = max(0.0, next_step_ended - last_step_ended)
    measured = {name: gap if name == "first_step" else 0.0 for name in DOWNTIME_PHASES}
    return DowntimeReport(dict(predicted), measured, last_step_ended, last_step_ended + gap)


def step_seconds(curve: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """(the median step, the newest attempt's first step, which holds the compilation), in seconds; 0 where unknown."""
    if not curve:
        return 0.0, 0.0
    durations = [row["throughput/duration"] for row in curve[-200:] if "throughput/duration" in row]
    newest = curve[-1].get("attempt")
    first = next((row.get("throughput/duration", 0.0) for row in curve if row.get("attempt") == newest), 0.0)
    return (statistics.median(durations) if durations else 0.0), float(first)


@dataclass(frozen=True)
class Marks:
    """Moments of a move: UTC seconds on the operator's clock. Those that a host wrote down are corrected for its skew,
    and are no better than that; those that the operator's process saw bound them. None: it was not there to see."""

    last_step_ended: float  # the host's
    source_stopped: float  # the host's
    first_step_ended: float  # the host's
    sealing: float  # when the source was ordered to stop, or was found not to run
    stop_seen: float | None = None
    relaunched: float | None = None
    training_seen: float | None = None


def measure(
    predicted: Mapping[str, float],
    marks: Marks,
    *,
    copy_seconds: float,
    verify_seconds: float,
    restore_seconds: float,
    compile_seconds: float,
    first_step_seconds: float,
) -> DowntimeReport:
    """The ledger of a move. Its entries add up to the downtime, whatever the hosts' clocks say.

    The downtime begins with the end of the source's last step; where the source had ended before the move, with the
    move. ``provision`` is what no other entry explains: asking the host, starting the interpreter, importing, and any
    time in which the migration was interrupted.
    """
    began = max(marks.last_step_ended, marks.sealing)
    if marks.stop_seen is not None:
        began = min(began, marks.stop_seen)
    stopped = began if marks.stop_seen is None else min(max(began, marks.source_stopped), marks.stop_seen)
    seen = stopped if marks.stop_seen is None else marks.stop_seen
    measured = {
        "quiesce": seen - stopped,
        "save": stopped - began,
        "copy": copy_seconds,
        "verify": verify_seconds,
        "install": 0.0,  # done while the source trained
        "compile": compile_seconds,
        "restore": restore_seconds,
        "first_step": first_step_seconds,
    }
    ended = marks.first_step_ended
    if marks.relaunched is not None:
        ended = max(ended, marks.relaunched)
    if marks.training_seen is not None:
        ended = min(ended, marks.training_seen)
    ended = max(ended, began + sum(measured.values()))  # each was measured on one clock; two clocks may disagree
    measured["provision"] = max(0.0, ended - began - sum(measured.values()))
    return DowntimeReport(dict(predicted), {name: measured[name] for name in DOWNTIME_PHASES}, began, ended)
