"""`--status --json` of 1,000 hosts: lines are written while hosts answer, and are not collected."""

from __future__ import annotations

import argparse
import io
import json
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from midstream.fleet.fleet import Fleet, SshHostConfig
from midstream.headless import status
from midstream.hosts.host_pool import HostPool
from midstream.output import Output
from midstream.watch import host_feed
from midstream.watch.snapshot import LIVE, Snapshot
from midstream.watch.snapshot_store import SnapshotStore
from midstream.watch.watcher import Watcher, take_snapshot
from support.tui import fleets

HOSTS, RUNS = 1000, 2
PATIENCE = 120.0  # seconds
KILOBYTES_A_RUN = 10  # of memory that a run may take at the peak: its views, and its share of what its host takes


class Written(io.StringIO):
    """Counts events and keeps none. ``first`` is set with the first line."""

    def __init__(self) -> None:
        self.first = threading.Event()
        self.counts: dict[str, int] = {}
        self.waiting = 0  # hosts that had not reported when the first line was written

    def write(self, text: str) -> int:
        event = json.loads(text)["event"]
        self.counts[event] = self.counts.get(event, 0) + 1
        if not self.first.is_set():
            self.waiting = SimulatedFeed.left
        self.first.set()
        return len(text)


class SimulatedFeed:
    """Feed of a host: one reports at once, the others after the first line of the output."""

    written: Written
    left: int
    _feeds: list[SimulatedFeed]  # of all hosts of one test

    def __init__(self, name: str, _hosts: Any, store: SnapshotStore, _interval: float) -> None:
        self.name, self._store = name, store
        self.begun = False

    @classmethod
    def reset(cls) -> None:
        SimulatedFeed.written, SimulatedFeed.left, SimulatedFeed._feeds = Written(), HOSTS, []

    def start(self) -> None:
        SimulatedFeed._feeds.append(self)
        if len(SimulatedFeed._feeds) == HOSTS:
            threading.Thread(target=self._report_all, daemon=True).start()

    @classmethod
    def _report_all(cls) -> None:
        first, *others = cls._feeds
        first.report()
        if cls.written.first.wait(PATIENCE):  # else the others never report, and the command says so
            for feed in others:
                feed.report()

    def report(self) -> None:
        self.begun = True
        for line in lines_of(self.name):
            self._store.take(self.name, line)
        SimulatedFeed.left -= 1

    def stop(self) -> None: ...
    def join(self, _deadline: float) -> None: ...
    def tick(self) -> None: ...
    def set_interval(self, _seconds: float) -> None: ...


def lines_of(host: str) -> Iterator[dict[str, Any]]:
    """The lines of a probe's first poll."""
    yield {"event": "hello", "hostname": host, "platform": "Linux", "python": "3.11.7", "cpus": 8}
    for number in range(RUNS):
        run = fleets.run(f"{host}-{number}", host, step=5)
        assert run.status is not None
        yield {
            "event": "run", "run": run.run_id, "attempts": [1], "attempt": 1, "running": True, "store": None,
            "status": run.status.to_json(),
        }  # fmt: skip
    sizes = dict.fromkeys(("memory_total", "memory_used", "disk_total", "disk_free"), 10**12)
    yield {"event": "beat", "time": fleets.NOW, "cpu_used": 0.5, "accelerators": [], **sizes}


@pytest.mark.drawn
@pytest.mark.long
def test_status_of_1000_hosts_streams(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host_feed, "HostFeed", SimulatedFeed)
    monkeypatch.setenv("MIDSTREAM_STATE", str(tmp_path))
    SimulatedFeed.reset()
    fleet = Fleet({f"host{n}": SshHostConfig(address="127.0.0.1", root="/r") for n in range(HOSTS)}, path="/f.yaml")
    written = SimulatedFeed.written
    tracemalloc.start()
    try:
        assert status.status(fleet, argparse.Namespace(filter=None, columns=None), Output(True, data=written)) == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert written.counts == {"host": HOSTS, "run": HOSTS * RUNS}
    assert written.waiting == HOSTS - 1, "the first line came with the first report"
    assert peak < HOSTS * RUNS * KILOBYTES_A_RUN * 1000


class QueuedFeed(SimulatedFeed):
    """Feed of a host that reports when its turn comes."""

    turn: threading.Event

    def start(self) -> None:
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        if self.turn.wait(PATIENCE):
            self.report()


def test_host_that_waits_for_its_turn_is_not_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_feed, "HostFeed", QueuedFeed)
    QueuedFeed.reset()
    QueuedFeed.turn = threading.Event()
    wait_for, waits = Watcher.wait_for, list[float | None]()

    def counted(self: Watcher, predicate: Callable[[Snapshot], object], timeout: float | None = None) -> Any:
        waits.append(timeout)
        if len(waits) == 3:
            QueuedFeed.turn.set()
        return wait_for(self, predicate, 0.01 if len(waits) < 3 else PATIENCE)

    monkeypatch.setattr(Watcher, "wait_for", counted)
    fleet = Fleet({"late": SshHostConfig(address="127.0.0.1", root="/r")})
    snapshot = take_snapshot(HostPool(fleet), timeout=15.0)
    assert [host.link for host in snapshot.hosts] == [LIVE]
    assert waits == [15.0] * 3
