"""Metrics of a host over the last day, in three resolutions.

The older the values, the coarser the resolution.

The times are those of this machine's clock, at which a report arrived: a host cannot place a value in the past or in
the future. A value takes 4 bytes; a host with eight accelerators about 200 kB after a day.
"""

from __future__ import annotations

import math
import operator
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midstream.watch.system_metrics import Key, accelerator_values, host_values
from midstream_core.json_types import JsonObject

# (seconds of a point, number of points): 15 minutes, 3 hours, 24 hours.
TIERS = ((5.0, 180), (30.0, 360), (120.0, 720))
DAY = 86_400.0  # seconds
MIN_GAP = 60.0  # seconds without a report, and 3 points, after which a curve is interrupted
CLOCK_JITTER = 60.0  # seconds that the clock may be set back without a loss of points


@dataclass(frozen=True)
class StoredTier:
    """Points of one resolution, as a file has them: ascending UTC seconds, and values."""

    times: array[float]
    columns: dict[Key, array[float]]


class _Tier:
    """The points of one resolution, in ascending order of time."""

    __slots__ = ("_at", "_counts", "_sums", "capacity", "columns", "resolution", "times")

    def __init__(self, resolution: float, capacity: int) -> None:
        self.resolution, self.capacity = resolution, capacity
        self.times = array("d")
        self.columns: dict[Key, array[float]] = {}
        self._at: float | None = None  # begin of the point that is being collected
        self._sums: dict[Key, float] = {}
        self._counts: dict[Key, int] = {}

    def begins(self, time: float) -> bool:
        """Return True if ``time`` is after the point that is being collected."""
        return self._at is not None and time >= self._at + self.resolution

    def collect(self, time: float, values: Iterable[tuple[Key, float]]) -> None:
        """Add values to the point that contains ``time``."""
        if self._at is None:
            self._at = time - time % self.resolution
        sums, counts = self._sums, self._counts
        for key, value in values:
            sums[key] = sums.get(key, 0.0) + value
            counts[key] = counts.get(key, 0) + 1

    def close(self) -> tuple[float, dict[Key, float]] | None:
        """Complete the point. Return its middle and its means; None if there is none."""
        if self._at is None:
            return None
        middle = self._at + self.resolution / 2
        means = {key: total / self._counts[key] for key, total in self._sums.items()}
        self._at, self._sums, self._counts = None, {}, {}
        if self.times and middle - self.times[-1] > max(MIN_GAP, 3 * self.resolution):
            self._append((middle + self.times[-1]) / 2, {})
        self._append(middle, means)
        return middle, means

    def _append(self, time: float, values: Mapping[Key, float]) -> None:
        length = len(self.times)
        self.times.append(time)
        for key in values:
            if key not in self.columns:
                self.columns[key] = array("f", (math.nan,)) * length
        for key, column in self.columns.items():
            column.append(values.get(key, math.nan))
        # Points are removed by the eighth: removing one copies all.
        length, oldest = length + 1, time - self.resolution * self.capacity
        if length > self.capacity * 9 // 8 or self.times[length // 9] < oldest:
            self._cut(max(bisect_left(self.times, oldest), length - self.capacity), None)
            # An accelerator that has not been reported for as long as the tier lasts has no series.
            for key in [key for key in self.columns if key not in values and _is_empty(self.columns[key])]:
                del self.columns[key]

    def drop_from(self, time: float) -> None:
        """Remove the points at and after ``time``, and the one that is being collected."""
        self._at, self._sums, self._counts = None, {}, {}
        self._cut(0, bisect_left(self.times, time))

    def stored(self) -> StoredTier:
        """Return a copy of the complete points."""
        return StoredTier(self.times[:], {key: column[:] for key, column in self.columns.items()})

    def prepend(self, stored: StoredTier, now: float) -> None:
        """Prepend older points, as far as they belong to this tier at ``now``."""
        first = self.times[0] if self.times else now if self._at is None else self._at
        start = bisect_left(stored.times, now - self.resolution * self.capacity)
        stop = bisect_left(stored.times, first - self.resolution / 2)
        times = stored.times[start:stop]
        older = {key: column[start:stop] for key, column in stored.columns.items()}
        if times and self.times and first - times[-1] > max(MIN_GAP, 3 * self.resolution):
            times.append((first + times[-1]) / 2)  # the curve is interrupted
            for column in older.values():
                column.append(math.nan)
        present, self.times = self.times, times
        self.times += present
        newer, self.columns = self.columns, older
        for key in newer.keys() | older.keys():
            column = self.columns.setdefault(key, array("f", (math.nan,)) * (len(self.times) - len(present)))
            column += newer.get(key) or array("f", (math.nan,)) * len(present)

    def _cut(self, start: int, stop: int | None) -> None:
        self.times = self.times[start:stop]
        self.columns = {key: column[start:stop] for key, column in self.columns.items()}


def _is_empty(column: Sequence[float]) -> bool:
    return all(math.isnan(value) for value in column)


class SystemSeries:
    """Metrics of one host over the last day. Thread-safe."""

    def __init__(self) -> None:
        self.version = 0  # number of points that were completed
        self._tiers = [_Tier(*tier) for tier in TIERS]
        self._accelerators: Any = None
        self._last = -math.inf
        self._lock = threading.Lock()

    def add(self, now: float, gauges: JsonObject) -> None:
        """Add what a host reported.

        Args:
            now: UTC seconds of this machine.
            gauges: Fields of the probe's beat. Values that are not plausible are left out.
        """
        if not math.isfinite(now):
            return
        with self._lock:
            if now < self._last - CLOCK_JITTER:  # the clock was set back
                for tier in self._tiers:
                    tier.drop_from(now)
                self._last = now
            self._last = now = max(now, self._last)
            finest = self._tiers[0]
            if finest.begins(now):
                # Accelerators are polled as often as a point is completed: their last values are the point's.
                finest.collect(now, accelerator_values(self._accelerators))
                self._close()
            finest.collect(now, host_values(gauges))
            self._accelerators = gauges.get("accelerators")

    def _close(self) -> None:
        """Complete the point of the finest tier, and those of the others that end with it."""
        point = self._tiers[0].close()
        for tier in self._tiers[1:]:
            if point is None:
                break
            time, values = point
            point = tier.close() if tier.begins(time) else None
            tier.collect(time, values.items())
        self.version += 1

    def stored(self) -> list[StoredTier]:
        """Return a copy of the complete points, the finest tier first."""
        with self._lock:
            return [tier.stored() for tier in self._tiers]

    def restore(self, tiers: Sequence[StoredTier], now: float) -> None:
        """Add the points of an earlier session before those of this one.

        Args:
            tiers: As `stored` returned them. Times that do not ascend, or are after ``now``, are of no use: then
                nothing is added.
            now: UTC seconds of this machine.
        """
        for tier in tiers:
            ascending = all(map(operator.lt, tier.times, tier.times[1:]))
            if not ascending or (tier.times and not 0.0 <= tier.times[0] <= tier.times[-1] <= now + CLOCK_JITTER):
                return
        with self._lock:
            for tier, stored in zip(self._tiers, tiers, strict=True):
                tier.prepend(stored, now)
            self.version += 1

    def stored_keys(self) -> list[Key]:
        """Return (metric, accelerator) of the stored series."""
        with self._lock:
            return sorted({key for tier in self._tiers for key in tier.columns})

    def read(self, keys: Sequence[Key]) -> tuple[array[float], list[array[float]]]:
        """Return the times and the values of each key, or NaN.

        The times are UTC seconds of this machine, ascending.

        The older times have the points of the coarser tiers.
        """
        times, columns = array("d"), [array("f") for _ in keys]
        with self._lock:
            for number, tier in reversed(list(enumerate(self._tiers))):
                finer = self._tiers[number - 1].times if number else None
                # A coarse point ends before the finer ones begin.
                stop = bisect_right(tier.times, finer[0] - tier.resolution / 2) if finer else len(tier.times)
                times += tier.times[:stop]
                for key, column in zip(keys, columns, strict=True):
                    stored = tier.columns.get(key)
                    column += stored[:stop] if stored is not None else array("f", (math.nan,)) * stop
        return times, columns
