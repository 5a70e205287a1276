"""Merge the probes' events into immutable snapshots.

The events of one poll become visible together, with its beat: a run's status is never ahead of its curve.
"""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from midstream.watch.machine import Accelerator, Machine
from midstream.watch.metric_rows import parse_rows
from midstream.watch.reported_values import MAX_LISTED, inventory, reported
from midstream.watch.run_copy import RunCopy
from midstream.watch.run_order import RunOrder, RunsByHost
from midstream.watch.shared_values import SharedValues
from midstream.watch.snapshot import CONNECTING, DOWN, LIVE, STALE, HostView, RunView, Snapshot
from midstream.watch.system_series import SystemSeries
from midstream_core.json_types import JsonObject, ReportLine

if TYPE_CHECKING:
    from midstream.ownership.owner_judge import OwnerJudge

Listener = Callable[..., None]

ReportedFields = dict[str, Any]  # of a host


def _no_listener(*_: object) -> None:
    pass


class SnapshotStore:
    """Merges the events of all hosts into snapshots. All methods are thread-safe."""

    def __init__(
        self,
        hosts: Mapping[str, str],
        *,
        listener: Listener | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the store.

        ``hosts``: name -> kind, in the order of the snapshots. ``listener`` gets the name and the arguments of each
        method that changes the store. ``clock``: UTC seconds.
        """
        self._listener = listener or _no_listener
        self._clock = clock
        self.owners: OwnerJudge | None = None  # judges who owns a run; None: nothing is proven
        self._listener("hosts", dict(hosts))
        self.changed = threading.Condition()
        self._hosts = {name: HostView(name, kind, CONNECTING) for name, kind in hosts.items()}
        self._runs: dict[str, dict[str, RunCopy]] = {name: {} for name in hosts}  # host -> run id -> run
        self._shown: dict[str, tuple[RunView, ...]] = dict.fromkeys(hosts, ())  # at each host's last beat
        self._reported: dict[str, set[str]] = {name: set() for name in hosts}
        self._hello: dict[str, ReportedFields] = {}
        self._inventory: dict[str, ReportedFields] = {}
        self._gauges: dict[str, ReportedFields] = {}  # of each host; a beat has the changed ones
        # The last list of accelerators of each host, and what it says: a beat has it only where it has changed.
        self._accelerators: dict[str, tuple[Sequence[JsonObject], tuple[Accelerator, ...]]] = {}
        self._system = {name: SystemSeries() for name in hosts}
        self._skew: dict[str, float] = {}
        self._bucket_checkpoints: dict[tuple[str, str], tuple[Sequence[JsonObject], str]] = {}  # by (prefix, run)
        self._numbers = {name: number for number, name in enumerate(sorted(hosts))}
        self._runs_shown = RunsByHost[RunView](self._numbers, ((),) * len(hosts))  # in the last snapshot
        self._order = RunOrder.of(self._runs_shown)
        self._values = SharedValues()
        self._version = 0
        self._snapshot: Snapshot | None = None

    # ---------------------------------------------------------------------------------------- output

    def snapshot(self) -> Snapshot:
        """Return the current snapshot, the same object until something changes."""
        if (snapshot := self._snapshot) is not None:
            return snapshot  # without waiting for an event that is being merged
        with self.changed:
            if self._snapshot is None:
                runs = RunsByHost[RunView](self._numbers, map(self._shown.__getitem__, self._numbers))
                self._order = self._order.updated(self._runs_shown, runs)
                self._runs_shown, hosts = runs, tuple(self._hosts.values())
                self._snapshot = Snapshot(
                    self._version, self._clock(), hosts, runs, self._system, self._order, self.owners
                )
            return self._snapshot

    def wait_newer(self, version: int, timeout: float) -> Snapshot | None:
        """Wait for a snapshot newer than ``version``, and return it.

        The result is None after ``timeout`` seconds.
        """
        with self.changed:
            return self.snapshot() if self.changed.wait_for(lambda: self._version > version, timeout) else None

    def metrics_known(self, host: str) -> dict[str, dict[str, list[int]]]:
        """Return run -> attempt -> [inode, bytes] of the merged metrics.

        A new probe continues from there.
        """
        with self.changed:
            return {
                run_id: {str(attempt): [inode, end] for attempt, inode, end in run.positions}
                for run_id, run in self._runs[host].items()
            }

    # ----------------------------------------------------------------------------------------- input

    def take(self, host: str, line: ReportLine) -> None:
        """Merge an event of a host's probe. RecordError if it is malformed."""
        event = line["event"]
        rows = parse_rows(line["text"]) if event == "metrics" else ()  # before the lock: it takes some time
        with self.changed:
            self._listener("take", host, line)
            if event == "hello":
                self._hello[host] = dict(line)
                self._reported[host] = set()
                self._inventory[host], self._gauges[host] = {}, {}
            elif event == "inventory":
                self._inventory.setdefault(host, {}).update(inventory(line))
            elif event == "beat":
                self._beat(host, line)
                self._changed()
            elif event == "removed":
                self._runs[host].pop(line["run"], None)
            else:
                if event == "run":
                    line = self._values.share(line)
                run = self._run(host, line["run"])
                run.take(event, line, rows)
                if "store" in line and (run.store, line["run"]) in self._bucket_checkpoints:
                    run.set_bucket_checkpoints(*self._bucket_checkpoints[run.store, line["run"]])
                self._reported[host].add(line["run"])

    def skew(self, host: str, seconds: float) -> None:
        """Set how many seconds the host's clock is ahead of this machine's."""
        with self.changed:
            self._listener("skew", host, seconds)
            self._skew[host] = seconds

    def link(self, host: str, link: str, error: str = "") -> None:
        """Set the state of the host's link, and the reason why it is not live."""
        with self.changed:
            view = self._hosts[host]
            if (view.link, view.error) == (link, error):
                return
            self._listener("link", host, link, error)
            self._hosts[host] = replace(view, link=link, error=error)
            self._changed()

    def set_bucket_checkpoints(self, url: str, run_id: str, checkpoints: Sequence[JsonObject], error: str = "") -> None:
        """Set the checkpoints of a run below ``url``.

        With an error, the last known checkpoints stay.
        """
        with self.changed:
            before = self._bucket_checkpoints.get((url, run_id))
            if before is not None and error:
                checkpoints = before[0]
            if before == (checkpoints, error):
                return
            self._listener("set_bucket_checkpoints", url, run_id, checkpoints, error)
            self._bucket_checkpoints[url, run_id] = (checkpoints, error)
            for host, runs in self._runs.items():
                run = runs.get(run_id)
                if run is not None and run.store == url:
                    run.set_bucket_checkpoints(checkpoints, error)
                    # Events of the current poll stay invisible until its beat.
                    self._shown[host] = tuple(
                        run.with_bucket_checkpoints(view) if view.run_id == run_id else view
                        for view in self._shown[host]
                    )
            self._changed()

    def connecting(self, host: str) -> None:
        """Mark the host as connecting, if it has never been connected."""
        if self._hosts[host].last_seen is None and self._hosts[host].link != DOWN:
            self.link(host, CONNECTING)

    def mark_stale(self, host: str, why: str) -> None:
        """Mark a live host as stale, with the reason."""
        if self._hosts[host].link in (LIVE, STALE):
            self.link(host, STALE, why)

    def mark_unanswered(self, why: str) -> None:
        """Mark hosts still connecting as down, and buckets still being listed as failed."""
        for host, view in self._hosts.items():
            if view.link == CONNECTING:
                self.link(host, DOWN, why)
        for run in self.snapshot().runs:
            if not run.checkpoints_listed:
                self.set_bucket_checkpoints(run.store, run.run_id, (), why)

    def _run(self, host: str, run_id: str) -> RunCopy:
        runs = self._runs[host]
        if run_id not in runs:
            runs[run_id] = RunCopy(host, run_id)
        return runs[run_id]

    def _beat(self, host: str, line: ReportLine) -> None:
        view = self._hosts[host]
        if view.link != LIVE:
            # Until its first beat a probe reports every run: runs without an event no longer exist.
            self._runs[host] = {name: run for name, run in self._runs[host].items() if name in self._reported[host]}
        before = self._shown[host]
        shown = tuple(run.view() for _, run in sorted(self._runs[host].items()))
        if len(before) != len(shown) or not all(map(operator.is_, before, shown)):
            self._shown[host] = shown
        now = self._clock()
        # Before the first ping: without the transfer time.
        skew = self._skew[host] if host in self._skew else line["time"] - now
        hello = self._hello.get(host, {})
        gauges = self._gauges.setdefault(host, {})
        gauges.update(line)
        self._system[host].add(now, gauges)
        machine = Machine(
            hostname=hello.get("hostname", ""),
            platform=hello.get("platform", ""),
            python=hello.get("python", ""),
            cpus=hello.get("cpus", 0),
            cpu_used=gauges["cpu_used"],
            memory_total=gauges["memory_total"],
            memory_used=gauges["memory_used"],
            disk_total=gauges["disk_total"],
            disk_free=gauges["disk_free"],
            clock_skew=skew,
            accelerators=self._accelerators_of(host, gauges["accelerators"]),
            **self._inventory.get(host, {}),
        )
        self._hosts[host] = replace(view, link=LIVE, last_seen=now, error="", machine=machine)

    def _accelerators_of(self, host: str, report: Sequence[JsonObject]) -> tuple[Accelerator, ...]:
        """Return the accelerators of a report, the same tuple until a beat has others."""
        before = self._accelerators.get(host)
        if before is not None and before[0] is report:
            return before[1]
        accelerators = tuple(reported(Accelerator, accelerator) for accelerator in report[:MAX_LISTED])
        self._accelerators[host] = report, accelerators
        return accelerators

    def _changed(self) -> None:
        """Invalidate the snapshot. The caller has the lock."""
        self._version += 1
        self._snapshot = None
        self.changed.notify_all()
