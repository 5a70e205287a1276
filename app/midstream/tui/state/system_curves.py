"""Series of hosts' system metrics for drawing, over time.

The series of a run's hosts can also be drawn over its steps or tokens.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from midstream.tui.state.series import Series
from midstream.tui.state.series_cache import STEP, TIME, TOKENS, SeriesCache
from midstream.watch.run_hosts import hosts_of
from midstream.watch.snapshot import RunView, Snapshot
from midstream.watch.system_metrics import METRICS, PREFIX, SUM, SystemMetric, metric_of

MAX_SERIES = 64  # the least recently used is dropped first
_COLUMN = {STEP: "global_step", TIME: "global_step", TOKENS: "throughput/total_tokens"}

Result = TypeVar("Result")
Points = tuple[Sequence[float], Sequence[float]]  # times (UTC seconds of this machine, ascending), values


@dataclass(frozen=True)
class NamedSeries:
    """A series and the name of its accelerator; empty for a metric of the host itself."""

    name: str
    series: Series


class SystemCurves:
    """Builds series of system metrics, and builds them again only after a new point."""

    def __init__(self, cache: SeriesCache) -> None:
        self._cache = cache  # has the steps and times of runs
        self._built: dict[Hashable, tuple[Hashable, Any]] = {}  # what -> (version, result)
        self._accelerators: dict[tuple[str, str, int], frozenset[int]] = {}  # (host, run, attempt) -> those it uses

    # ------------------------------------------------------------------------------------------ names

    def names_of_host(self, snapshot: Snapshot, host: str) -> list[str]:
        """Return the metrics of which a host has values, accelerators first."""
        return self._names(snapshot, (host,))

    def names_of_run(self, snapshot: Snapshot, run: RunView) -> list[str]:
        """Return metrics with values from the hosts of a run's newest attempt.

        Metrics of accelerators are first.
        """
        return self._names(snapshot, hosts_of(snapshot, run, run.attempt))

    def _names(self, snapshot: Snapshot, hosts: Sequence[str]) -> list[str]:
        host_series = [snapshot.system[host] for host in hosts if host in snapshot.system]

        def build() -> list[str]:
            present = {name for series in host_series for name, _ in series.stored_keys()}
            return [PREFIX + metric.name for metric in METRICS if metric.name in present]

        version = tuple(series.version for series in host_series)
        return self._remember(("names", *hosts), version, build)

    # ------------------------------------------------------------------------------------------ a host

    def of_host(self, snapshot: Snapshot, host: str, name: str) -> Sequence[NamedSeries]:
        """Return a metric of a host over UTC seconds.

        The result has a series for each accelerator, or one.
        """
        metric, stored = metric_of(name), snapshot.system.get(host)
        if metric is None or stored is None:
            return ()

        def build() -> tuple[NamedSeries, ...]:
            keys = [key for key in stored.stored_keys() if key[0] == metric.name]
            times, columns = stored.read(keys)
            named = []
            for (_, index), column in zip(keys, columns, strict=True):
                series = Series()
                series.extend(times, [metric.scale * value for value in column])
                named.append(NamedSeries(str(index) if metric.of_accelerator else "", series))
            return tuple(named)

        return self._remember(("host", host, name), stored.version, build)

    # ------------------------------------------------------------------------------------------ a run

    def of_run(self, snapshot: Snapshot, run: RunView, name: str, axis: str) -> Series:
        """Return a metric of the hosts of a run while it trained there, by attempt.

        Values of several accelerators and hosts are added or averaged, as the metric says. The times of hosts are
        compared with those of the run's rows by the measured difference of their clocks.
        """
        metric = metric_of(name)
        rows, _ = self._cache.series(run.key, run.curve, _COLUMN[axis], TIME)
        if metric is None or not len(rows):
            return Series()
        origin = run.curve[0].get("time")
        attempts = {attempt: hosts_of(snapshot, run, attempt) for _, attempt in rows.attempts}
        stored = {host: snapshot.system[host] for hosts in attempts.values() for host in hosts}
        version = (tuple(series.version for series in stored.values()), tuple(rows.attempts), run.running)

        def build() -> Series:
            result = Series()
            if not isinstance(origin, int | float) or not math.isfinite(origin):
                return result
            for number, (first, attempt) in enumerate(rows.attempts):
                newest = number + 1 == len(rows.attempts)
                end = len(rows) if newest else rows.attempts[number + 1][0]
                last = math.inf if newest and run.running else rows.x[end - 1]
                parts = [
                    self._total(snapshot, host, metric, self._used(snapshot, run, host, attempt), origin)
                    for host in attempts[attempt]
                ]
                times, values = _merged(parts, metric)
                begin, stop = bisect_left(times, rows.x[first]), bisect_right(times, last)
                x = array("d", times[begin:stop]) if axis == TIME else _at(rows, times[begin:stop], first, end)
                _extend(result, x, values[begin : begin + len(x)], attempt)
            return result

        return self._remember(("run", run.key, name, axis), version, build)

    def _used(self, snapshot: Snapshot, run: RunView, host: str, attempt: int) -> frozenset[int]:
        """Return the accelerators of a host that a run's processes use or used.

        An unknown set is empty.
        """
        key = (host, run.run_id, attempt)
        view = snapshot.host(host)
        if run.running and attempt == run.attempt and view is not None and view.machine is not None:
            pids = {user.pid for user in view.machine.users if user.run == run.run_id}
            used = frozenset(
                accelerator.index for accelerator in view.machine.accelerators if pids.intersection(accelerator.pids)
            )
            if used:
                self._accelerators[key] = used
        return self._accelerators.get(key, frozenset())

    def _total(
        self, snapshot: Snapshot, host: str, metric: SystemMetric, used: frozenset[int], origin: float
    ) -> Points:
        """Return one value of a host for each time, in the metric's unit; NaN if missing.

        Args:
            snapshot: The fleet.
            host: Name of the host.
            metric: The metric.
            used: The accelerators that count; all if it is empty.
            origin: UTC seconds by the host's clock, at which the times begin.
        """
        stored = snapshot.system[host]

        def build() -> Points:
            keys = [key for key in stored.stored_keys() if key[0] == metric.name and (key[1] in used or not used)]
            times, columns = stored.read(keys or [(metric.name, -1)])
            if len(columns) == 1:
                return times, [metric.scale * value for value in columns[0]]
            return times, [metric.scale * _combined(values, metric) for values in zip(*columns, strict=True)]

        used = used if metric.of_accelerator else frozenset()
        times, values = self._remember(("total", host, metric.name, used), stored.version, build)
        begin = origin - _skew(snapshot, host)
        return [time - begin for time in times], values

    def _remember(self, what: Hashable, version: Hashable, build: Callable[[], Result]) -> Result:
        """Return what ``build`` returned for this version."""
        built = self._built.pop(what, None)
        if built is None or built[0] != version:
            built = (version, build())
        self._built[what] = built
        while len(self._built) > MAX_SERIES:
            del self._built[next(iter(self._built))]
        return built[1]


def _skew(snapshot: Snapshot, host: str) -> float:
    """Return how many seconds the host's clock is ahead of this machine's."""
    view = snapshot.host(host)
    skew = view.machine.clock_skew if view is not None and view.machine is not None else 0.0
    return skew if math.isfinite(skew) else 0.0


def _combined(values: Sequence[float], metric: SystemMetric) -> float:
    """Return the sum or the mean of the values that are not NaN."""
    total, count = sum(values), len(values)
    if math.isnan(total):
        present = [value for value in values if not math.isnan(value)]
        total, count = sum(present), len(present)
    if not count:
        return math.nan
    return total if metric.total == SUM else total / count


def _merged(parts: Sequence[Points], metric: SystemMetric) -> Points:
    """Merge the points of several hosts.

    In a sum, a host without a value at some time counts as the others' mean.
    """
    if len(parts) <= 1:
        return parts[0] if parts else ((), ())
    by_second: dict[int, list[tuple[float, float]]] = {}
    for times, values in parts:
        for time, value in zip(times, values, strict=True):
            by_second.setdefault(round(time), []).append((time, value))
    merged: list[float] = []
    times = []
    for _, points in sorted(by_second.items()):
        present = [value for _, value in points if not math.isnan(value)]
        mean = sum(present) / len(present) if present else math.nan
        times.append(min(time for time, _ in points))
        merged.append(mean * len(parts) if metric.total == SUM else mean)
    return times, merged


def _at(rows: Series, times: Sequence[float], first: int, end: int) -> array[float]:
    """Return a run's steps (or tokens) at some times, interpolated between its rows.

    There are none after the last row.

    Args:
        rows: Steps over seconds since the run's first row.
        times: Seconds since then, ascending, none before the first row.
        first: Index of the attempt's first row.
        end: Index after its last row.
    """
    values = array("d")
    for time in times:
        after = bisect_right(rows.x, time, first, end)
        if after == end:
            if after and rows.x[after - 1] == time:
                values.append(rows.values.value(after - 1))
            break
        x0, x1 = rows.x[after - 1], rows.x[after]
        y0, y1 = rows.values.value(after - 1), rows.values.value(after)
        values.append(y0 + (y1 - y0) * (time - x0) / (x1 - x0) if x1 > x0 else y0)
    return values


def _extend(series: Series, x: array[float], values: Sequence[float], attempt: int) -> None:
    """Append points in the order of their x.

    A clock that was set back leaves points at one x.
    """
    last = series.x[-1] if len(series) else -math.inf
    for index, value in enumerate(x):
        last = x[index] = max(last, value) if math.isfinite(value) else max(last, 0.0)
    series.extend(x, values, attempt)
