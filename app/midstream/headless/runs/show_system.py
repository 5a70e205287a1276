"""Mode `--metrics RUN --system`: reports of a run's hosts while they are watched."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from midstream.errors import Exit, HostError
from midstream.json_events.run_events import SystemEvent
from midstream.operations.fleet_snapshot import fleet_snapshot, run_of
from midstream.watch.run_hosts import hosts_of
from midstream.watch.snapshot import LIVE
from midstream.watch.system_metrics import METRICS
from midstream_core.json_types import JsonValue

if TYPE_CHECKING:
    from midstream.hosts.host_pool import HostPool
    from midstream.output import Output
    from midstream.watch.snapshot import HostView, RunView, Snapshot
    from midstream.watch.system_series import SystemSeries

POLL_INTERVAL = 0.5  # seconds between two looks at the series
LATEST_ROWS = 1000  # of a run, among which the step of a point is searched


def show_system(hosts: HostPool, run_ids: Sequence[str], seconds: float, output: Output) -> int:
    """Watch the hosts of runs for some seconds; print a line for each host and point.

    Args:
        hosts: Connections to the fleet's hosts.
        run_ids: The runs.
        seconds: How long to watch.
        output: Receives the lines.

    Raises:
        UsageError: There is no such run.
        HostError: None of its hosts answers.
    """
    from midstream.watch.watcher import SNAPSHOT_TIMEOUT, Watcher

    first = fleet_snapshot(hosts)
    runs = {name: hosts_of(first, run, run.attempt) or [run.host] for name in run_ids for run in (run_of(first, name),)}
    names = [host for found in runs.values() for host in found]
    watcher = Watcher(hosts.fleet, hosts, only=names)
    watcher.start()
    try:
        if watcher.wait_for(lambda now: any(host.link == LIVE for host in now.hosts), SNAPSHOT_TIMEOUT) is None:
            reason = "; ".join(f"{host.name}: {host.error or 'no answer'}" for host in watcher.snapshot().hosts)
            raise HostError(f"no host of {', '.join(runs)} answers", reason)
        until = time.monotonic() + seconds
        printed: dict[str, float] = {}
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(POLL_INTERVAL, left))
            now = watcher.snapshot()
            for run_id, of_run in runs.items():
                for name in of_run:
                    _print_points(now, run_id, name, printed, output)
    finally:
        watcher.stop()
    return Exit.DONE


def _print_points(now: Snapshot, run_id: str, name: str, printed: dict[str, float], output: Output) -> None:
    """Print the points of a host that were completed since the last call."""
    host, series = now.host(name), now.system.get(name)
    if host is None or series is None:
        return
    skew = host.machine.clock_skew if host.machine is not None else 0.0
    copies = now.believed(run_id)
    for at, values in points(series, after=printed.get(f"{run_id} {name}", -math.inf)):
        printed[f"{run_id} {name}"] = at
        step = _step_at(copies[0], at + skew) if copies else None
        event = SystemEvent(run=run_id, host=name, time=at, global_step=step, values=values)
        output.event(event, _words(host, at, step, values))


def points(series: SystemSeries, after: float) -> Iterator[tuple[float, dict[str, Any]]]:
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
            found = {
                index: None if math.isnan(column[number]) else column[number]
                for (name, index), column in zip(keys, columns, strict=True)
                if name == metric.name
            }
            if found and metric.of_accelerator:
                values[metric.name] = [found.get(index) for index in range(max(found) + 1)]
            elif found:
                values[metric.name] = found[-1]
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


def _words(host: HostView, at: float, step: int | None, values: dict[str, Any]) -> str:
    words = [time.strftime("%H:%M:%S", time.localtime(at)), host.name, f"step {step}" if step is not None else "step -"]
    for metric in METRICS:
        if (value := values.get(metric.name)) is None:
            continue
        found = value if metric.of_accelerator else [value]
        numbers = ", ".join("-" if each is None else f"{each * metric.scale:.3g}" for each in found)
        words.append(f"{metric.name} {numbers} {metric.unit}")
    return "  ".join(words)
