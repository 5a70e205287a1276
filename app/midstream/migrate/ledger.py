"""The downtime of a migration and what it is made of: predicted from what the run has shown, measured from marks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from midstream.migrate.model import LEDGER_ENTRIES, Ledger

# Used only until the run or an earlier migration has shown better: bytes a second of a verified copy, of a save with
# hashing, and seconds to start an interpreter with jax.
COPY_RATE = 200e6
DISK_RATE = 400e6
ENGINE_START = 6.0
HANDSHAKE = 1.0


def predict(curve: Sequence[Mapping[str, Any]], checkpoint_bytes: int) -> dict[str, float]:
    """Seconds for each entry, from the run's own steps and the bytes that have to travel."""
    step, first = step_seconds(curve)
    return {
        "quiesce": HANDSHAKE + step,
        "save": 0.5 + checkpoint_bytes / DISK_RATE,
        "copy": 1.0 + checkpoint_bytes / COPY_RATE,
        "verify": 0.3 + checkpoint_bytes / DISK_RATE,
        "provision": ENGINE_START,
        "install": 0.0,
        "compile": max(0.0, first - step),
        "restore": 1.0 + checkpoint_bytes / DISK_RATE,
        "first_step": step,
    }


def step_seconds(curve: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """(the median step, the newest attempt's first step, which holds the compilation), in seconds; 0 where unknown."""
    if not curve:
        return 0.0, 0.0
    durations = [row["throughput/duration"] for row in curve[-200:] if "throughput/duration" in row]
    newest = curve[-1].get("attempt")
    first = next((row.get("throughput/duration", 0.0) for row in curve if row.get("attempt") == newest), 0.0)
    return (statistics.median(durations) if durations else 0.0), float(first)


def measure(
    predicted: Mapping[str, float],
    *,
    last_step_ended: float,
    source_stopped: float,
    stop_seen: float,
    copy_seconds: float,
    verify_seconds: float,
    restore_seconds: float,
    first_step_seconds: float,
    compile_seconds: float,
    first_step_ended: float,
) -> Ledger:
    """The ledger from marks, UTC seconds on the operator's clock (hosts' times corrected for skew).

    ``provision`` is what remains: asking the host, starting the interpreter, importing. Entries add up to the
    downtime up to the clocks' error, which is at most half a round trip.
    """
    measured = {
        "quiesce": max(0.0, stop_seen - source_stopped),
        "save": max(0.0, source_stopped - last_step_ended),
        "copy": copy_seconds,
        "verify": verify_seconds,
        "install": 0.0,  # done while the source trained
        "compile": compile_seconds,
        "restore": restore_seconds,
        "first_step": first_step_seconds,
    }
    measured["provision"] = max(0.0, first_step_ended - last_step_ended - sum(measured.values()))
    return Ledger(dict(predicted), {name: measured[name] for name in LEDGER_ENTRIES}, last_step_ended, first_step_ended)
