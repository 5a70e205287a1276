"""Alerts about watched runs and hosts: what has ended, or became worse."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from midstream.fleet.fleet import Fleet
from midstream.json_events.fleet_events import AlertEvent
from midstream.migrate.notify import FAILED, FINISHED, LOST, notify_all
from midstream.watch.run_failure import failure_of
from midstream.watch.snapshot import LIVE, HostView, RunView, Snapshot
from midstream.watch.symptoms import symptoms
from midstream_core import records

IDLE = "idle"
IDLE_SECONDS = 1800.0  # without work, after which a host counts as idle
BUSY = 0.05  # share of an accelerator's time from which on it works
SYMPTOM_INTERVAL = 10.0  # seconds between two looks at the losses of a run


@dataclass(frozen=True)
class Alert:
    """Something that the user should know."""

    kind: str  # FAILED, FINISHED, LOST, IDLE, or the kind of a symptom
    message: str
    run: str = ""  # run id; empty: about a host
    host: str = ""

    def event(self) -> AlertEvent:
        """Return its line of JSON, which receivers of notifications get too."""
        return AlertEvent(kind=self.kind, run=self.run or None, host=self.host, message=self.message)


def send(fleet: Fleet, alert: Alert) -> None:
    """Send an alert to the receivers of the fleet file, and wait for them."""
    notify_all(fleet, alert.event().to_json())


class Alerts:
    """Finds alerts in snapshots that follow each other. Not thread-safe.

    What a run or a host was when the watch began is no alert, but a symptom is: it still matters. Each is reported
    once, and again if it has passed in between. A run's copy counts only where its owner is not merely claimed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._states: dict[str, str] = {}  # run id -> state
        self._reported: set[tuple[str, int, str]] = set()  # run id, attempt, symptom
        self._looked: dict[str, float] = {}  # run id -> moment of the last look at its losses
        self._idle: dict[str, float] = {}  # host -> moment since which it has no work; infinite once it is reported

    def of(self, snapshot: Snapshot) -> list[Alert]:
        """Return what is new in a snapshot."""
        alerts: list[Alert] = []
        for run_id in dict.fromkeys(run.run_id for run in snapshot.runs):
            copies = snapshot.believed(run_id)
            host = snapshot.host(copies[0].host) if copies else None
            if host is not None and host.link == LIVE:  # its silence says nothing about the run
                ahead = host.machine.clock_skew if host.machine is not None else 0.0
                alerts += [*self._ended(copies[0]), *self._symptoms(copies[0], snapshot.time + ahead)]
        for host in snapshot.hosts:
            alerts += self._idle_host(host, snapshot)
        return alerts

    def _ended(self, run: RunView) -> Iterator[Alert]:
        before, self._states[run.run_id] = self._states.get(run.run_id), run.state
        if before is None or before == run.state:
            return
        failure = failure_of([run])
        why = f": {failure.reason}" if failure else ""
        if run.state == records.FAILED:
            yield Alert(FAILED, f"{run.run_id} failed on {run.host}{why}", run.run_id, run.host)
        elif run.state == "lost":
            yield Alert(LOST, f"{run.run_id}: its process on {run.host} has exited{why}", run.run_id, run.host)
        elif run.state == records.FINISHED:
            yield Alert(FINISHED, f"{run.run_id} has finished on {run.host}", run.run_id, run.host)

    def _symptoms(self, run: RunView, host_time: float) -> Iterator[Alert]:
        now = self._clock()
        if not run.running or now - self._looked.get(run.run_id, -SYMPTOM_INTERVAL) < SYMPTOM_INTERVAL:
            return
        self._looked[run.run_id] = now
        present = {symptom.kind: symptom.message for symptom in symptoms(run, host_time)}
        shown = {key for key in self._reported if key[0] == run.run_id}
        self._reported -= {key for key in shown if key[1:] not in {(run.attempt, kind) for kind in present}}
        for kind, message in present.items():
            key = run.run_id, run.attempt, kind
            if key not in self._reported:
                self._reported.add(key)
                yield Alert(kind, f"{run.run_id} on {run.host}: {message}", run.run_id, run.host)

    def _idle_host(self, host: HostView, snapshot: Snapshot) -> Iterator[Alert]:
        now = self._clock()
        if host.link != LIVE or host.machine is None:
            return  # its silence says nothing about its accelerators
        shares = [accelerator.utilization for accelerator in host.machine.accelerators if accelerator.kind != "cpu"]
        reported = [share for share in shares if share is not None]
        trains = any(run.running and run.host == host.name for run in snapshot.runs)
        if trains or not shares or len(reported) < len(shares) or max(reported) > BUSY:
            self._idle.pop(host.name, None)
            return
        since = self._idle.setdefault(host.name, now)
        if now - since >= IDLE_SECONDS:
            self._idle[host.name] = float("inf")
            yield Alert(IDLE, f"{host.name} has had no work for {IDLE_SECONDS / 60:.0f} minutes", host=host.name)
