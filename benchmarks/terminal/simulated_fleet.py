"""A fleet of simulated hosts: the lines of their probes reach a store from a thread of this process."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

BATCH_TIME = 0.25  # seconds; changes within them are reported together, as the watcher does


class SimulatedProbes(Protocol):
    """Reports of the probes of a fleet, in the lines that real ones write."""

    @property
    def hosts(self) -> Sequence[str]:
        """Names of the hosts."""
        ...

    def first(self, number: int) -> Iterable[str]:
        """Return the lines of the first poll of the ``number``-th host."""
        ...

    def later(self, number: int, poll: int) -> Iterable[str]:
        """Return the lines of its ``poll``-th poll after that: what has changed."""
        ...


class SimulatedFleet:
    """A source of snapshots: each host reports once in an interval, one after the other."""

    def __init__(self, probes: SimulatedProbes, interval: float) -> None:
        """Create the fleet. Nothing is reported yet.

        Args:
            probes: What its hosts report.
            interval: Seconds between two polls of a host.
        """
        from midstream.watch.snapshot_store import SnapshotStore

        self._probes = probes
        self._interval = interval
        self._store = SnapshotStore(dict.fromkeys(probes.hosts, "ssh"))
        self._callbacks: list[Callable[..., Any]] = []
        self._published = 0.0
        self._filled = False

    def snapshot(self) -> Any:
        return self._store.snapshot()

    def subscribe(self, callback: Callable[..., Any], /) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def start(self) -> None:
        """Report in the background: each host for the first time, unless `fill` did, then once in each interval."""
        threading.Thread(target=self._report_all, daemon=True).start()

    def fill(self) -> None:
        """Report each host for the first time."""
        for number in range(len(self._probes.hosts)):
            self._report(number, self._probes.first(number))
        self._filled = True

    def _report_all(self) -> None:
        if not self._filled:
            self.fill()
            self._publish()
            gc.collect()
        hosts, poll = len(self._probes.hosts), 0
        while True:
            poll, began = poll + 1, time.monotonic()
            for number in range(hosts):
                time.sleep(max(0.0, began + self._interval * number / hosts - time.monotonic()))
                self._report(number, self._probes.later(number, poll))
            time.sleep(max(0.0, began + self._interval - time.monotonic()))

    def _report(self, number: int, lines: Iterable[str]) -> None:
        for line in lines:
            self._store.take(self._probes.hosts[number], json.loads(line))
        if time.monotonic() - self._published > BATCH_TIME:
            self._publish()

    def _publish(self) -> None:
        self._published = time.monotonic()
        for callback in tuple(self._callbacks):
            callback()
