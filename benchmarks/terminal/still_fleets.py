"""Fleets in which nothing changes: their runs, curves and system metrics."""

from __future__ import annotations

import math
import os
import random
import tempfile
from collections.abc import Callable
from typing import Any

RUNS_ON_HOST = 10


class Still:
    """A fleet in which nothing changes."""

    def __init__(self, snapshot: Any) -> None:
        self._snapshot = snapshot

    def snapshot(self) -> Any:
        return self._snapshot

    def subscribe(self, _callback: Callable[..., Any], /) -> Callable[[], None]:
        return lambda: None


def many_runs(hosts: int) -> Any:
    from support.tui import fleets

    names, few = [f"host{number:03}" for number in range(hosts)], fleets.rows(20)
    runs = [
        fleets.run(f"run{number:04}", names[number % hosts], step=20, curve=few)
        for number in range(RUNS_ON_HOST * hosts)
    ]
    return fleets.snapshot([fleets.host(name) for name in names], runs)


def small_world() -> Any:
    from support.tui import fleets

    return fleets.small_fleet()


def long_curve(points: int, metrics: int) -> Any:
    from midstream.watch.loss_curve import LossCurve

    names = ["train/loss", "grad/norm/total", *(f"metric/{number}" for number in range(2, metrics))]
    curve, chance = LossCurve(), random.Random(3)
    for start in range(0, points, 10_000):
        rows = []
        for step in range(start, min(points, start + 10_000)):
            value = 2.0 + 3.0 * math.exp(-step / (points / 5)) + 0.1 * chance.random()
            rows.append({"global_step": step, "time": 1e9 + step, **dict.fromkeys(names, value)})
        curve.extend(1, rows)
    return curve.rows()


def fleet_rows(count: int) -> Any:
    from support.tui import fleets

    return fleets.rows(count)


def day_of_system() -> Any:
    """A day of reports of a host with all system metrics: as often as each resolution has a point."""
    from midstream.watch.system_series import TIERS, SystemSeries
    from support.tui.fleets import NOW

    series, chance, time_left = SystemSeries(), random.Random(4), 1.1 * 86400
    names = ("network_received", "network_sent", "rdma_received", "rdma_sent", "disk_read", "disk_written")
    while time_left > 0:
        share = chance.random()
        units = [
            {"index": index, "utilization": share, "memory_used": 7 * 10**10, "power": 700 * share, "temperature": 60.0}
            for index in range(8)
        ]
        gauges = {"cpu_used": share, "memory_used": 10**11, **dict.fromkeys(names, int(1e9 * share))}
        series.add(NOW - time_left, {**gauges, "accelerators": units})
        time_left -= next((seconds for seconds, count in TIERS if time_left <= seconds * count), TIERS[-1][0])
    return series


def grown_as(series: Any) -> Any:
    """The same series in memory of its own, grown value by value as a watcher's: arrays allocate in advance."""
    from array import array

    from midstream.watch.system_series import SystemSeries

    def grown(values: Any) -> Any:
        new = array(values.typecode)
        for value in values:
            new.append(value)
        return new

    new = SystemSeries()
    new.version = series.version
    for target, source in zip(new._tiers, series._tiers, strict=True):  # noqa: SLF001 (adding takes a minute)
        target.times = grown(source.times)
        target.columns = {key: grown(column) for key, column in source.columns.items()}
    return new


def keep_in_files(system: Any) -> None:
    """Write the files of all hosts, as a session does; what that takes counts as well."""
    from midstream.watch.series_files import SeriesFiles

    with tempfile.TemporaryDirectory() as directory:
        os.environ["MIDSTREAM_STATE"] = directory
        files = SeriesFiles("benchmark", system)
        files.start()
        files.restored.wait()
        files.stop()


def fleet_world(hosts: int, curve: Any) -> Any:
    from support.tui import fleets

    names = [f"host{number:03}" for number in range(hosts)]
    runs = [fleets.run("nano", names[0], step=len(curve), curve=curve)]
    few = fleets.rows(50)
    runs += [fleets.run(f"run{number:03}", name, step=50, curve=few) for number, name in enumerate(names[1:])]
    return fleets.snapshot([fleets.host(name, accelerators=8, kind="NVIDIA H100") for name in names], runs)
