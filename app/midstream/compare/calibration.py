"""Measured steps beside estimated ones: errors of estimates, their correction.

A pair is stored whenever a run that was compared has trained, or has been rehearsed, on accelerators for which there is
an estimate of it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from midstream.compare.estimate import Range
from midstream.errors import RemoteError
from midstream.hosts.rpc.result_checks import printed_value
from midstream.state_directory import make_directory, state_directory
from midstream_core import records

FILE = "calibration.jsonl"
NEWEST = 200  # pairs that are stored
ENOUGH = 3  # pairs whose lowest and highest ratio replace the range of the estimate
HERE = "this machine"


@dataclass(frozen=True)
class Pair:
    """One estimate and what was measured."""

    run: str
    topology: str  # "v5e:4x4"
    kind: str  # of the devices
    estimated: float  # seconds of a step
    measured: float
    time: float = 0.0  # UTC seconds


@dataclass(frozen=True)
class Calibration:
    """Measured over estimated steps on devices of one kind."""

    kind: str
    pairs: int
    ratio: float  # median
    low: float
    high: float

    def applied(self, step: Range) -> Range:
        """Correct an estimate. From `ENOUGH` pairs on, their ratios are its range."""
        if self.pairs < ENOUGH:
            return step.times(self.ratio)
        return Range(step.value * self.ratio, step.value * self.low, step.value * self.high)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def describe(self) -> str:
        return (
            f"{self.kind}: measured / estimated {self.ratio:.2f} in {self.pairs} earlier "
            f"{'run' if self.pairs == 1 else 'runs'} ({self.low:.2f} to {self.high:.2f})"
        )


def calibration_file() -> Path:
    """Return the file of the pairs, one JSON line each."""
    return state_directory() / "compare" / FILE


def read_pairs() -> list[Pair]:
    """Return the stored pairs, oldest first. Lines that cannot be read are left out."""
    try:
        lines = calibration_file().read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    pairs: list[Pair] = []
    for line in lines:
        try:
            pair = printed_value(HERE, FILE, Pair, line)
        except RemoteError:
            continue
        if pair.estimated > 0 and pair.measured > 0:
            pairs.append(pair)
    return pairs


def remember(new: Iterable[Pair]) -> list[Pair]:
    """Store pairs, and return all.

    A pair replaces the earlier one of the same run on the same accelerators.
    """
    stored = {(pair.run, pair.topology): pair for pair in read_pairs()}
    added = {(pair.run, pair.topology): pair for pair in new if pair.estimated > 0 and pair.measured > 0}
    if not added:
        return list(stored.values())
    now = time.time()
    for key, pair in added.items():
        stored.pop(key, None)
        stored[key] = replace(pair, time=now)
    pairs = list(stored.values())[-NEWEST:]
    path = calibration_file()
    make_directory(path.parent)
    records.write_bytes(str(path), "".join(json.dumps(asdict(pair)) + "\n" for pair in pairs).encode())
    return pairs


def calibration(pairs: Sequence[Pair], kind: str) -> Calibration | None:
    """Return the calibration of one kind of devices; None if nothing was measured."""
    ratios = [pair.measured / pair.estimated for pair in pairs if pair.kind == kind]
    if not ratios:
        return None
    return Calibration(kind, len(ratios), statistics.median(ratios), min(ratios), max(ratios))
