"""Metrics of the hosts of runs, while they are watched."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from midstream.errors import HostError
from midstream.operations.fleet_snapshot import fleet_snapshot, run_of
from midstream.watch.run_hosts import hosts_of
from midstream.watch.snapshot import LIVE
from midstream.watch.system_metrics import METRICS

if TYPE_CHECKING:
    from midstream.hosts.host_pool import HostPool
    from midstream.watch.snapshot import RunView, Snapshot
    from midstream.watch.system_series import SystemSeries
    from midstream_core.json_types import JsonValue

POLL_INTERVAL = 0.5  # seconds between two looks at the series
LATEST_ROWS = 1000  # of a run, among which the step of a point is searched


@dataclass(frozen=True)
class SystemPoint:
    """Metrics of one of a run's hosts at one time."""

    run_id: str
    host: str
    time: float  # UTC seconds
    step: int | None  # the run's last step at that time; None before its latest rows
    values: dict[str, JsonValue]  # by metric; those of accelerators are lists


def system_points(hosts: HostPool, run_ids: Sequence[str], seconds: float) -> Iterator[SystemPoint]:
    """Watch the hosts of runs for some seconds, and yield their points.

    Raises:
        UsageError: There is no such run.
        HostError: None of its hosts answers.
    """
    from midstream.watch.watcher import SNAPSHOT_TIMEOUT, Watcher

    first = fleet_snapshot(hosts)
    runs = {name: hosts_of(first, run, run.attempt) or [run.host] for name in run_ids for run in (run_of(first, name),)}
    names = [host for run_hosts in runs.values() for host in run_hosts]
    watcher = Watcher(hosts.fleet, hosts, only=names)
    watcher.start()
    try:
        if watcher.wait_for(lambda now: any(host.link == LIVE for host in now.hosts), SNAPSHOT_TIMEOUT) is None:
            reason = "; ".join(f"{host.name}: {host.error or 'no answer'}" for host in watcher.snapshot().hosts)
            raise HostError(f"no host of {', '.join(runs)} answers", reason)
        until = time.monotonic() + seconds
        yielded: dict[tuple[str, str], float] = {}  # time of the newest point
        while (remaining := until - time.monotonic()) > 0:
            time.sleep(min(POLL_INTERVAL, remaining))
            now = watcher.snapshot()
            for run_id, run_hosts in runs.items():
                for name in run_hosts:
                    for point in _new_points(now, run_id, name, yielded.get((run_id, name), -math.inf)):
                        yielded[run_id, name] = point.time
                        yield point
    finally:
        watcher.stop()


def _new_points(now: Snapshot, run_id: str, name: str, after: float) -> Iterator[SystemPoint]:
    """Yield the points of a host after a time."""
    host, series = now.host(name), now.system.get(name)
    if host is None or series is None:
        return
    skew = host.machine.clock_skew if host.machine is not None else 0.0
    copies = now.believed(run_id)
    for at, values in points(series, after):
        yield SystemPoint(run_id, name, at, _step_at(copies[0], at + skew) if copies else None, values)


def points(series: SystemSeries, after: float) -> Iterator[tuple[float, dict[str, JsonValue]]]:
    """Yield (UTC seconds, values by metric) of the points after a time.

    Metrics of accelerators have a list.
    """
    keys = series.stored_keys()
    times, columns = series.read(keys)
    for number, at in enumerate(times):
        if at <= after:
            continue
        values: dict[str, JsonValue] = {}
        for metric in METRICS:
            by_index = {
                index: None if math.isnan(column[number]) else column[number]
                for (name, index), column in zip(keys, columns, strict=True)
                if name == metric.name
            }
            if by_index and metric.of_accelerator:
                values[metric.name] = [by_index.get(index) for index in range(max(by_index) + 1)]
            elif by_index:
                values[metric.name] = by_index[-1]
        yield at, values


def _step_at(run: RunView, at: float) -> int | None:
    """Return the run's last step at a time, in UTC seconds by the host's clock.

    None before the run's latest rows.
    """
    for number in range(len(run.curve) - 1, max(-1, len(run.curve) - 1 - LATEST_ROWS), -1):
        row = run.curve[number]
        if isinstance(row.get("time"), int | float) and row["time"] <= at:
            return row["global_step"]
    return None
