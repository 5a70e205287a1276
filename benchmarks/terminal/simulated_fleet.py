"""A fleet of simulated probes, which report every second in the lines that real ones write."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from terminal.still_fleets import fleet_world


class SimulatedFleet:
    """A fleet of simulated probes: a store receives their lines, one host after the other, every second."""

    def __init__(self, hosts: int, points: int) -> None:
        from midstream.watch.snapshot_store import SnapshotStore

        still = fleet_world(hosts, ())
        self._store = SnapshotStore({host.name: "ssh" for host in still.hosts})
        self._machines = {host.name: host.machine for host in still.hosts}
        self._chance = random.Random(2)
        self._points = points
        self._callbacks: list[Callable[..., Any]] = []
        for host, run in zip(still.hosts, still.runs, strict=True):
            self._first(host.name, run, points if run.run_id == "nano" else 50)
        threading.Thread(target=self._go_on, daemon=True).start()

    def snapshot(self) -> Any:
        return self._store.snapshot()

    def subscribe(self, callback: Callable[..., Any], /) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def _report(self, host: str, **line: Any) -> None:
        self._store.take(host, json.loads(json.dumps(line)))

    def _first(self, host: str, run: Any, points: int) -> None:
        machine = self._machines[host]
        self._report(host, event="hello", hostname=host, platform=machine.platform, python=machine.python, cpus=96)
        records = {name: getattr(run, name).to_json() for name in ("fence", "lineage", "status")}
        records["status"]["step"] = points
        self._report(host, event="run", run=run.run_id, attempts=[1], attempt=1, running=True, **records)
        for start in range(0, points, 2000):
            self._metrics(host, run.run_id, start, min(points, start + 2000))
        kept = ("memory_total", "memory_used", "disk_total", "disk_free")
        gauges = {name: getattr(machine, name) for name in kept}
        accelerators = [vars(each) for each in machine.accelerators]
        self._report(host, event="beat", time=time.time(), cpu_used=0.5, accelerators=accelerators, **gauges)

    def _metrics(self, host: str, run: str, start: int, stop: int) -> None:
        text = "".join(
            f'{{"global_step": {step}, "time": {1e9 + step}, "train/loss": {value}, "grad/norm/total": {value}}}\n'
            for step in range(start, stop)
            for value in (2.0 + 3.0 * math.exp(-step / 2e5) + 0.1 * self._chance.random(),)
        )
        self._report(host, event="metrics", run=run, attempt=1, inode=1, offset=start, end=stop, text=text)

    def _go_on(self) -> None:
        names = list(self._machines)
        while True:
            began = time.monotonic()
            for number, host in enumerate(names):
                time.sleep(max(0.0, began + number / len(names) - time.monotonic()))
                if number == 0:
                    self._metrics(host, "nano", self._points, self._points + 1)
                    self._points += 1
                self._report(host, event="beat", time=time.time(), cpu_used=round(self._chance.random(), 2))
                for callback in tuple(self._callbacks):
                    callback()
            time.sleep(max(0.0, began + 1 - time.monotonic()))
