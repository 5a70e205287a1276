"""Merge the probes' events into immutable snapshots.

The events of one poll become visible together, with its beat: a run's status is never ahead of its curve.
"""

from __future__ import annotations

import functools
import json
import operator
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from midstream.watch.logs.log_tail import LogTail
from midstream.watch.run_order import RunOrder, RunsByHost
from midstream.watch.runs.loss_curve import LossCurve
from midstream.watch.shared_values import SharedValues
from midstream.watch.snapshot import (
    CONNECTING,
    DOWN,
    LIVE,
    STALE,
    Accelerator,
    AcceleratorUser,
    CheckpointView,
    Disk,
    HostView,
    InfinibandPort,
    Machine,
    RunView,
    Snapshot,
)
from midstream.watch.system.system_series import SystemSeries
from midstream_engine import records

Listener = Callable[..., None]
MAX_NAME_LENGTH, MAX_TEXT_LENGTH = 200, 1000  # characters of names and values of metrics
MAX_INTEGER = 2**53  # of metrics
MAX_LISTED = 256  # processes, disks and ports of a host that are shown
RECORDS = ("fence", "lineage", "status", "store")  # that a run's line may hold


@functools.cache
def _readers() -> dict[str, type[records.JsonRecord]]:
    """Return the classes of a line's records: they are loaded with the first line."""
    return {"fence": records.Fence, "lineage": records.Lineage, "status": records.Status, "exit": records.ProcessExit}


def _no_listener(*_: object) -> None:
    pass


class SnapshotStore:
    """Merges the events of all hosts into snapshots. All methods are thread-safe."""

    def __init__(
        self, hosts: Mapping[str, str], *, listener: Listener | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """Create the store.

        ``hosts``: name -> kind, in the order of the snapshots. ``listener`` gets the name and the arguments of each
        method that changes the store. ``clock``: UTC seconds.
        """
        self._listener = listener or _no_listener
        self._clock = clock
        self._listener("hosts", dict(hosts))
        self.changed = threading.Condition()
        self._hosts = {name: HostView(name, kind, CONNECTING) for name, kind in hosts.items()}
        self._runs: dict[str, dict[str, _Run]] = {name: {} for name in hosts}  # host -> run id -> run
        self._shown: dict[str, tuple[RunView, ...]] = dict.fromkeys(hosts, ())  # at each host's last beat
        self._reported: dict[str, set[str]] = {name: set() for name in hosts}
        self._hello: dict[str, dict[str, Any]] = {}
        self._inventory: dict[str, dict[str, Any]] = {}
        self._gauges: dict[str, dict[str, Any]] = {}  # of each host; a beat has the changed ones
        self._system = {name: SystemSeries() for name in hosts}
        self._skew: dict[str, float] = {}
        self._bucket_checkpoints: dict[
            tuple[str, str], tuple[Sequence[Mapping[str, Any]], str]
        ] = {}  # by (prefix, run)
        self._numbers = {name: number for number, name in enumerate(sorted(hosts))}
        self._runs_shown = RunsByHost[RunView](self._numbers, ((),) * len(hosts))  # in the last snapshot
        self._order = RunOrder.of(self._runs_shown)
        self._values = SharedValues()
        self._version = 0
        self._snapshot: Snapshot | None = None

    # ---------------------------------------------------------------------------------------- output

    def snapshot(self) -> Snapshot:
        """Return the current snapshot, the same object until something changes."""
        if (known := self._snapshot) is not None:
            return known  # without waiting for an event that is being merged
        with self.changed:
            if self._snapshot is None:
                runs = RunsByHost[RunView](self._numbers, map(self._shown.__getitem__, self._numbers))
                self._order = self._order.updated(self._runs_shown, runs)
                self._runs_shown, hosts = runs, tuple(self._hosts.values())
                self._snapshot = Snapshot(self._version, self._clock(), hosts, runs, self._system, self._order)
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

    def take(self, host: str, line: Mapping[str, Any]) -> None:
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
                self._inventory.setdefault(host, {}).update(_inventory(line))
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

    def set_bucket_checkpoints(
        self, url: str, run_id: str, checkpoints: Sequence[Mapping[str, Any]], error: str = ""
    ) -> None:
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

    def _run(self, host: str, run_id: str) -> _Run:
        runs = self._runs[host]
        if run_id not in runs:
            runs[run_id] = _Run(host, run_id)
        return runs[run_id]

    def _beat(self, host: str, line: Mapping[str, Any]) -> None:
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
            accelerators=tuple(_value(Accelerator, each) for each in gauges["accelerators"]),
            **self._inventory.get(host, {}),
        )
        self._hosts[host] = replace(view, link=LIVE, last_seen=now, error="", machine=machine)

    def _changed(self) -> None:
        """Invalidate the snapshot. The caller has the lock."""
        self._version += 1
        self._snapshot = None
        self.changed.notify_all()


class _Run:
    """State of one copy of a run."""

    __slots__ = ("_curve", "_damaged", "_dirty", "_log", "_misread", "_view", "positions")

    def __init__(self, host: str, run_id: str) -> None:
        # (attempt, inode, bytes) of the metrics: a dict for each run would take 20 MB for 100,000 runs.
        self.positions: tuple[tuple[int, int, int], ...] = ()
        self._view = RunView(run_id, host, None, None, 0, None, False)
        self._curve = LossCurve()
        self._log = LogTail()
        self._misread: dict[str, str] = {}  # part -> why it cannot be read
        self._damaged: Mapping[str, str] = {}  # file -> error, as its host reports
        self._dirty = False

    def view(self) -> RunView:
        """Return the current view, the same object until it changes."""
        if self._dirty:
            self._view = replace(self._view, curve=self._curve.rows(), log=self._log.lines, log_range=self._log.range)
            self._dirty = False
        return self._view

    @property
    def store(self) -> str:
        return self._view.store

    def set_bucket_checkpoints(self, checkpoints: Sequence[Mapping[str, Any]], error: str) -> None:
        """Set the checkpoints in its bucket, which replace those on its host."""
        views = tuple(_value(CheckpointView, each) for each in checkpoints)
        self._misread["bucket"] = f"its checkpoints in {self.store} are unknown: {error}" if error else ""
        self._view = replace(self._view, checkpoints=views, checkpoints_listed=True, problem=self._problem)
        self._dirty = True

    def with_bucket_checkpoints(self, view: RunView) -> RunView:
        """Return an older view of this run with the current checkpoints of its bucket."""
        now = self._view
        if view.store != now.store:
            return view
        return replace(
            view, checkpoints=now.checkpoints, checkpoints_listed=now.checkpoints_listed, problem=now.problem
        )

    @property
    def _problem(self) -> str:
        return "; ".join(filter(None, self._misread.values()))

    def take(self, event: str, line: Mapping[str, Any], rows: Sequence[Mapping[str, Any]] = ()) -> None:
        """Merge an event; ``rows`` are those of a metrics event."""
        if event == "run":
            self._change(line)
        elif event == "metrics":
            self._metrics(line, rows)
        elif event == "log":
            self._log.take(line)
        self._dirty = True

    def _change(self, line: Mapping[str, Any]) -> None:
        changes: dict[str, Any] = {
            key: line[key] for key in ("attempt", "running", "ended_without_status") if key in line
        }
        if "attempt" in changes:
            self._log.clear()  # the log is the newest attempt's, which may have written nothing yet
        if "store" in line:
            changes |= self._parsed("store", lambda: self._store_change(_record(records.Store, "store", line["store"])))
        if "checkpoints" in line and not changes.get("store", self.store):
            changes["checkpoints"] = tuple(_value(CheckpointView, each) for each in line["checkpoints"])
        for key, kind in _readers().items():
            if key in line:
                changes |= self._parsed(key, lambda key=key, kind=kind: {key: _record(kind, key, line[key])})
        self._view = replace(self._view, **changes)
        known = {attempt for attempt, *_ in self.positions}
        for attempt in known - set(line.get("attempts", known)):
            self._restart(attempt)
        if "fence" in changes or "lineage" in changes:
            self._parsed("curve", lambda: self._curve.set_records(self._view.lineage, self._view.fence))
        if "problem" in line:
            self._misread["problem"] = line["problem"]
        if "damaged" in line:
            self._damaged = line["damaged"]
        unread = {f"{name}.json": self._misread[name] for name in RECORDS if self._misread.get(name)}
        damaged = tuple({**self._damaged, **unread}.items())
        self._misread["damaged"] = "; ".join(f"{name}: {why}" for name, why in self._damaged.items())
        self._misread = {what: why for what, why in self._misread.items() if why}
        self._view = replace(self._view, problem=self._problem, damaged=damaged)

    def _store_change(self, where: records.Store | None) -> dict[str, Any]:
        """Return the changes of the view for a ``store.json``. The bucket is listed later."""
        url = where.url.rstrip("/") if where is not None else ""
        if url == self.store:
            return {}
        self._misread.pop("bucket", None)
        return {"store": url, "checkpoints_listed": not url, "checkpoints": ()}

    def _parsed(self, what: str, read: Callable[[], Any]) -> Any:
        """Return the result of ``read``.

        For a malformed record it is empty, and the view has the error.
        """
        try:
            value = read()
        except records.RecordError as error:
            self._misread[what] = " ".join(str(error).split())
            return {}
        self._misread.pop(what, None)
        return value

    def _metrics(self, line: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
        attempt = line["attempt"]
        if line["offset"] == 0:
            self._restart(attempt)
        self._curve.extend(attempt, rows)
        self.positions = (*self._other_positions(attempt), (attempt, line["inode"], line["end"]))

    def _restart(self, attempt: int) -> None:
        self.positions = self._other_positions(attempt)
        self._curve.restart(attempt)

    def _other_positions(self, attempt: int) -> tuple[tuple[int, int, int], ...]:
        return tuple([each for each in self.positions if each[0] != attempt])


def _record(kind: Any, name: str, value: Any) -> Any:
    return None if value is None else kind.from_json(value, f"{name}.json")


def parse_rows(text: str) -> Sequence[dict[str, Any]]:
    """Parse lines of metrics.

    Partial lines (after a full disk, for example) are left out.

    This serves display alone; the certificate reads the file itself.
    """
    rows = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            # A long run has many lines: share the strings of their names.
            rows.append({sys.intern(name): value for name, value in row.items() if _is_metric(name, value)})
    return rows


def _is_metric(name: str, value: Any) -> bool:
    """Return True for a value of limited size and of the type its name implies."""
    if len(name) > MAX_NAME_LENGTH:
        return False
    if name == "global_step":
        return type(value) is int and 0 <= value <= MAX_INTEGER
    if isinstance(value, float) or (isinstance(value, int) and abs(value) <= MAX_INTEGER):
        return True
    measured = "/" in name or name == "time"
    return not measured and (value is None or (isinstance(value, str) and len(value) <= MAX_TEXT_LENGTH))


def _inventory(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a Machine. Fields of a newer probe are ignored."""
    plain = ("system", "kernel", "glibc", "cpu_model", "driver", "cuda", "clock_synchronized")
    lists = {"users": AcceleratorUser, "disks": Disk, "infiniband": InfinibandPort}
    found = {name: line[name] for name in plain if name in line}
    return found | {
        name: tuple(_value(kind, each) for each in line[name][:MAX_LISTED])
        for name, kind in lists.items()
        if name in line
    }


def _value(kind: Any, fields_of: Mapping[str, Any]) -> Any:
    """Build a dataclass from JSON.

    Fields of a newer probe are ignored; lists become tuples.
    """
    names = {field.name for field in fields(kind)}
    return kind(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in fields_of.items()
            if name in names
        }
    )
