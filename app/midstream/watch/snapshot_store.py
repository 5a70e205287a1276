"""What the probes have told, merged into immutable snapshots.

A look of a probe is shown as a whole, once its beat has come: a run's status is never ahead of its curve.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from midstream.watch.loss_curve import Curve
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
from midstream_engine import records

Heard = Callable[..., None]
LOG_LINES = 5000  # of a log's end that are kept
LOG_LINE = 4096  # characters of each
LONGEST_NAME, LONGEST_TEXT = 200, 1000  # characters of what a row of metrics holds
LARGEST = 2**53  # of its integers
RECORDS = ("fence", "lineage", "status", "store")  # that a run's line may hold


def _nobody(*_: Any) -> None:
    pass


class Store:
    """Takes the lines of all hosts in, and gives snapshots out. Any thread may use it."""

    def __init__(self, hosts: Mapping[str, str], *, heard: Heard | None = None, clock: Callable[[], float] = time.time):
        """``hosts``: name -> kind, in the order that they are shown in. ``heard`` is told all that comes in: which
        method was called, with what. ``clock``: UTC seconds."""
        self._heard = heard or _nobody
        self._clock = clock
        self._heard("hosts", dict(hosts))
        self.changed = threading.Condition()
        self._hosts = {name: HostView(name, kind, CONNECTING) for name, kind in hosts.items()}
        self._runs: dict[str, dict[str, _Run]] = {name: {} for name in hosts}  # host -> run id -> run
        self._shown: dict[str, tuple[RunView, ...]] = dict.fromkeys(hosts, ())  # as of each host's last beat
        self._told: dict[str, set[str]] = {name: set() for name in hosts}
        self._hello: dict[str, dict[str, Any]] = {}
        self._inventory: dict[str, dict[str, Any]] = {}
        self._gauges: dict[str, dict[str, Any]] = {}  # of each host; beats tell what changed of them
        self._skew: dict[str, float] = {}
        self._shelves: dict[tuple[str, str], tuple[Sequence[Mapping[str, Any]], str]] = {}  # (bucket's prefix, run)
        self._version = 0
        self._snapshot: Snapshot | None = None

    # ------------------------------------------------------------------------------------------ out

    def snapshot(self) -> Snapshot:
        """The fleet now. The same object until something changes."""
        if (known := self._snapshot) is not None:
            return known  # without waiting for a line that is being taken in
        with self.changed:
            if self._snapshot is None:
                runs = tuple(sorted((run for shown in self._shown.values() for run in shown), key=lambda run: run.key))
                self._snapshot = Snapshot(self._version, self._clock(), tuple(self._hosts.values()), runs)
            return self._snapshot

    def wait_newer(self, version: int, timeout: float) -> Snapshot | None:
        """The snapshot once its version is above ``version``; None where that takes more than ``timeout`` seconds."""
        with self.changed:
            return self.snapshot() if self.changed.wait_for(lambda: self._version > version, timeout) else None

    def metrics_known(self, host: str) -> dict[str, dict[str, list[int]]]:
        """run -> attempt -> [inode, bytes] of the metrics that were taken in: a new probe goes on from there."""
        with self.changed:
            return {
                run_id: {str(attempt): list(place) for attempt, place in run.places.items()}
                for run_id, run in self._runs[host].items()
            }

    # ------------------------------------------------------------------------------------------ in

    def take(self, host: str, line: Mapping[str, Any]) -> None:
        """One line of a host's probe. RecordError where it is of another shape."""
        event = line["event"]
        rows = parse_rows(line["text"]) if event == "metrics" else ()  # it takes a while, in which nobody has to wait
        with self.changed:
            self._heard("take", host, line)
            if event == "hello":
                self._hello[host] = dict(line)
                self._told[host] = set()
                self._inventory[host], self._gauges[host] = {}, {}
            elif event == "inventory":
                self._inventory[host] = _inventory(line)
            elif event == "beat":
                self._beat(host, line)
                self._note()
            elif event == "gone":
                self._runs[host].pop(line["run"], None)
            else:
                run = self._run(host, line["run"])
                run.take(event, line, rows)
                if "store" in line and (run.store, line["run"]) in self._shelves:
                    run.stored(*self._shelves[run.store, line["run"]])
                self._told[host].add(line["run"])

    def skew(self, host: str, seconds: float) -> None:
        """How far the host's clock is ahead of this machine's."""
        with self.changed:
            self._heard("skew", host, seconds)
            self._skew[host] = seconds

    def link(self, host: str, link: str, error: str = "") -> None:
        """The host's link changed, or the reason why it is not live did."""
        with self.changed:
            view = self._hosts[host]
            if (view.link, view.error) == (link, error):
                return
            self._heard("link", host, link, error)
            self._hosts[host] = replace(view, link=link, error=error)
            self._note()

    def shelf(self, url: str, run_id: str, checkpoints: Sequence[Mapping[str, Any]], error: str = "") -> None:
        """What a run keeps below ``url``; or why that is not known: then what was known before stands."""
        with self.changed:
            before = self._shelves.get((url, run_id))
            if before is not None and error:
                checkpoints = before[0]
            if before == (checkpoints, error):
                return
            self._heard("shelf", url, run_id, checkpoints, error)
            self._shelves[url, run_id] = (checkpoints, error)
            for host, runs in self._runs.items():
                run = runs.get(run_id)
                if run is not None and run.store == url:
                    run.stored(checkpoints, error)
                    # Of a look that is under way nothing is shown before its beat.
                    self._shown[host] = tuple(
                        run.with_stored(view) if view.run_id == run_id else view for view in self._shown[host]
                    )
            self._note()

    def connecting(self, host: str) -> None:
        """A first attempt is under way; a later one changes nothing that is shown."""
        if self._hosts[host].last_seen is None and self._hosts[host].link != DOWN:
            self.link(host, CONNECTING)

    def silent(self, host: str, why: str) -> None:
        """A live host has been silent for too long."""
        if self._hosts[host].link in (LIVE, STALE):
            self.link(host, STALE, why)

    def unheard(self, why: str) -> None:
        """Whoever is still being connected to has not answered in time, nor has a bucket that is still being listed."""
        for host, view in self._hosts.items():
            if view.link == CONNECTING:
                self.link(host, DOWN, why)
        for run in self.snapshot().runs:
            if not run.listed:
                self.shelf(run.store, run.run_id, (), why)

    def _run(self, host: str, run_id: str) -> _Run:
        runs = self._runs[host]
        if run_id not in runs:
            runs[run_id] = _Run(host, run_id)
        return runs[run_id]

    def _beat(self, host: str, line: Mapping[str, Any]) -> None:
        view = self._hosts[host]
        if view.link != LIVE:
            # The first beat of a probe closes a complete account: what it did not tell of is no longer there.
            self._runs[host] = {name: run for name, run in self._runs[host].items() if name in self._told[host]}
        self._shown[host] = tuple(run.view() for run in self._runs[host].values())
        now = self._clock()
        # Before a ping was answered: short of what the way here took.
        skew = self._skew[host] if host in self._skew else line["time"] - now
        hello = self._hello.get(host, {})
        gauges = self._gauges.setdefault(host, {})
        gauges.update(line)
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

    def _note(self) -> None:
        """Something changed. To be called with the lock held."""
        self._version += 1
        self._snapshot = None
        self.changed.notify_all()


class _Run:
    """One copy of a run, while it is being told of."""

    def __init__(self, host: str, run_id: str):
        self.places: dict[int, tuple[int, int]] = {}  # attempt -> (inode, bytes) of its metrics
        self._view = RunView(run_id, host, None, None, 0, None, False)
        self._curve = Curve()
        self._log: deque[str] = deque(maxlen=LOG_LINES)
        self._misread: dict[str, str] = {}  # what -> why it cannot be read
        self._damaged: Mapping[str, str] = {}  # file -> what is wrong with it, as its host reports
        self._dirty = False

    def view(self) -> RunView:
        """The run now. The same object until it changes."""
        if self._dirty:
            self._view = replace(self._view, curve=self._curve.rows(), log=tuple(self._log))
            self._dirty = False
        return self._view

    @property
    def store(self) -> str:
        return self._view.store

    def stored(self, checkpoints: Sequence[Mapping[str, Any]], error: str) -> None:
        """What its bucket holds, in the place of what its host does."""
        points = tuple(_value(CheckpointView, each) for each in checkpoints)
        self._misread["shelf"] = f"its checkpoints in {self.store} are not known: {error}" if error else ""
        self._view = replace(self._view, checkpoints=points, listed=True, trouble=self._trouble)
        self._dirty = True

    def with_stored(self, view: RunView) -> RunView:
        """An older view of this run, with what its bucket holds now."""
        now = self._view
        if view.store != now.store:
            return view
        return replace(view, checkpoints=now.checkpoints, listed=now.listed, trouble=now.trouble)

    @property
    def _trouble(self) -> str:
        return "; ".join(filter(None, self._misread.values()))

    def take(self, event: str, line: Mapping[str, Any], rows: Sequence[Mapping[str, Any]] = ()) -> None:
        """A line; of metrics its rows, too."""
        if event == "run":
            self._change(line)
        elif event == "metrics":
            self._metrics(line, rows)
        elif event == "log":
            if line["first"]:
                self._log.clear()
            self._log.extend(map(_as_shown, line["text"].removesuffix("\n").split("\n")))
        self._dirty = True

    def _change(self, line: Mapping[str, Any]) -> None:
        changes: dict[str, Any] = {key: line[key] for key in ("attempt", "running", "wordless") if key in line}
        if "attempt" in changes:
            self._log.clear()  # it is the newest attempt's; the new one may not have written any yet
        if "store" in line:
            changes |= self._understood("store", lambda: self._placed(_record(records.Store, "store", line["store"])))
        if "checkpoints" in line and not changes.get("store", self.store):
            changes["checkpoints"] = tuple(_value(CheckpointView, each) for each in line["checkpoints"])
        for key, kind in (("fence", records.Fence), ("lineage", records.Lineage), ("status", records.Status)):
            if key in line:
                changes |= self._understood(key, lambda key=key, kind=kind: {key: _record(kind, key, line[key])})
        self._view = replace(self._view, **changes)
        for attempt in set(self.places) - set(line.get("attempts", self.places)):
            self._restart(attempt)
        if "fence" in changes or "lineage" in changes:
            self._understood("curve", lambda: self._curve.govern(self._view.lineage, self._view.fence))
        if "trouble" in line:
            self._misread["trouble"] = line["trouble"]
        if "damaged" in line:
            self._damaged = line["damaged"]
        unread = {f"{name}.json": self._misread[name] for name in RECORDS if self._misread.get(name)}
        damaged = tuple({**self._damaged, **unread}.items())
        self._misread["damaged"] = "; ".join(f"{name}: {why}" for name, why in self._damaged.items())
        self._view = replace(self._view, trouble=self._trouble, damaged=damaged)

    def _placed(self, where: records.Store | None) -> dict[str, Any]:
        """Where its checkpoints lie. What a bucket holds is told later, by `stored`."""
        url = where.url.rstrip("/") if where is not None else ""
        if url == self.store:
            return {}
        self._misread.pop("shelf", None)
        return {"store": url, "listed": not url, "checkpoints": ()}

    def _understood(self, what: str, read: Callable[[], Any]) -> Any:
        """What ``read`` returns; where a record has another shape, nothing changes but that the run says so."""
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
        self.places[attempt] = (line["inode"], line["end"])

    def _restart(self, attempt: int) -> None:
        self.places.pop(attempt, None)
        self._curve.restart(attempt)


def _record(kind: Any, name: str, value: Any) -> Any:
    return None if value is None else kind.from_json(value, f"{name}.json")


def _as_shown(line: str) -> str:
    """A progress bar writes over its line again and again: what a terminal would show in the end."""
    return line.rstrip("\r").rpartition("\r")[2][:LOG_LINE]


def parse_rows(text: str) -> Sequence[dict[str, Any]]:
    """Whole lines of metrics. One that is torn (a disk that was full, say) is left out: a watcher shows what there is;
    whoever proves something reads the file itself."""
    rows = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            # Every line brings its own copies of the names; a long run has many lines.
            rows.append({sys.intern(name): value for name, value in row.items() if _is_metric(name, value)})
    return rows


def _is_metric(name: str, value: Any) -> bool:
    """Whether a value is what its name promises: numbers, which are computed with, and text of a reasonable length."""
    if len(name) > LONGEST_NAME:
        return False
    if name == "global_step":
        return type(value) is int and 0 <= value <= LARGEST
    if isinstance(value, float) or (isinstance(value, int) and abs(value) <= LARGEST):
        return True
    measured = "/" in name or name == "time"
    return not measured and (value is None or (isinstance(value, str) and len(value) <= LONGEST_TEXT))


def _inventory(line: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a Machine. What a newer probe adds is ignored."""
    plain = ("system", "kernel", "glibc", "cpu_model", "driver", "cuda", "clock_synchronized")
    lists = {"users": AcceleratorUser, "disks": Disk, "infiniband": InfinibandPort}
    found = {name: line[name] for name in plain if name in line}
    return found | {
        name: tuple(_value(kind, each) for each in line[name]) for name, kind in lists.items() if name in line
    }


def _value(kind: Any, told: Mapping[str, Any]) -> Any:
    """A dataclass of what was told of it; what a newer probe adds is ignored. Lists become tuples."""
    names = {field.name for field in fields(kind)}
    return kind(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in told.items() if name in names}
    )
