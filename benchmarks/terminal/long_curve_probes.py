"""Probes of a fleet with one long curve, which grows by a step at each poll of its host."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator
from typing import Any

from terminal.still_fleets import fleet_world

ROWS_AT_ONCE = 2000  # of a poll
FEW = 50  # steps of the other runs


class LongCurveProbes:
    """A run on each host. That of the first host, ``nano``, has ``points`` steps."""

    def __init__(self, hosts: int, points: int) -> None:
        still = fleet_world(hosts, ())
        self.hosts = [host.name for host in still.hosts]
        self._machines = [host.machine for host in still.hosts]
        self._runs = still.runs
        self._points = points
        self._chance = random.Random(2)

    def first(self, number: int) -> Iterator[str]:
        run, machine = self._runs[number], self._machines[number]
        points = self._points if number == 0 else FEW
        yield _line("hello", hostname=self.hosts[number], platform=machine.platform, python=machine.python, cpus=96)
        records = {name: getattr(run, name).to_json() for name in ("fence", "lineage", "status")}
        records["status"]["step"] = points
        yield _line("run", run=run.run_id, attempts=[1], attempt=1, running=True, **records)
        for start in range(0, points, ROWS_AT_ONCE):
            yield self._metrics(run.run_id, start, min(points, start + ROWS_AT_ONCE))
        names = ("memory_total", "memory_used", "disk_total", "disk_free")
        gauges = {name: getattr(machine, name) for name in names}
        accelerators = [vars(each) for each in machine.accelerators]
        yield _line("beat", time=time.time(), cpu_used=0.5, accelerators=accelerators, **gauges)

    def later(self, number: int, poll: int) -> Iterator[str]:
        if number == 0:
            step = self._points + poll - 1
            yield self._metrics(self._runs[0].run_id, step, step + 1)
        yield _line("beat", time=time.time(), cpu_used=round(self._chance.random(), 2))

    def _metrics(self, run: str, start: int, stop: int) -> str:
        text = "".join(
            f'{{"global_step": {step}, "time": {1e9 + step}, "train/loss": {value}, "grad/norm/total": {value}}}\n'
            for step in range(start, stop)
            for value in (2.0 + 3.0 * math.exp(-step / 2e5) + 0.1 * self._chance.random(),)
        )
        return _line("metrics", run=run, attempt=1, inode=1, offset=start, end=stop, text=text)


def _line(event: str, **fields: Any) -> str:
    return json.dumps({"event": event, **fields})
