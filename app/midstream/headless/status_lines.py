"""The JSON lines of `--status`, written while hosts answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from midstream.listing.fleet_facts import FleetFacts
from midstream.output import Output
from midstream.watch.snapshot import CONNECTING

if TYPE_CHECKING:
    from midstream.listing.conditions import Condition
    from midstream.watch.snapshot import RunView, Snapshot


class StatusLines:
    """Writes the line of each host and run once, as soon as it is known.

    A host is known when it has answered or failed, a run when its host has answered and its checkpoints are listed.
    With a condition, only the lines of runs that pass it are written; what a condition finds of a run of several hosts
    may depend on each of them, so these runs wait for `finish`.
    """

    def __init__(self, output: Output, condition: Condition | None = None, facts: FleetFacts | None = None) -> None:
        self._output = output
        self._facts = facts or FleetFacts()
        self._condition = condition
        self._hosts: set[str] = set()  # that have answered
        self._runs: set[tuple[str, str]] = set()  # that were written, or do not pass
        self._waiting: set[str] = set()  # hosts with runs that are not known yet

    def update(self, snapshot: Snapshot) -> None:
        """Write what has become known in a newer snapshot."""
        self._write(snapshot, complete=False)

    def finish(self, snapshot: Snapshot) -> None:
        """Write what is left. Hosts and runs of ``snapshot`` do not change any more."""
        self._write(snapshot, complete=True)
        if self._condition is None:
            from midstream.listing import documents

            for run_id in snapshot.order.ids:
                judgement = snapshot.judgement(run_id)
                if judgement.signed or len(judgement.standings) > 1:
                    self._output.event(documents.ownership_event(judgement))

    def _write(self, snapshot: Snapshot, *, complete: bool) -> None:
        from midstream.listing import documents  # imported while hosts connect

        answered = {host.name for host in snapshot.hosts if complete or host.link != CONNECTING}
        new = answered - self._hosts
        if not new and not self._waiting:
            return
        self._hosts |= new
        for host in snapshot.hosts:
            if host.name not in new and host.name not in self._waiting:
                continue
            if host.name in new and self._condition is None:
                self._output.event(documents.host_event(host))
            waits = False
            for run in snapshot.runs_on(host.name):
                if run.key in self._runs:
                    continue
                if not complete and not self._known(run):
                    waits = True
                    continue
                self._runs.add(run.key)
                if self._passes(run, snapshot):
                    self._output.event(documents.run_event(run))
            (self._waiting.add if waits else self._waiting.discard)(host.name)

    def _known(self, run: RunView) -> bool:
        several = run.status is not None and run.status.processes > 1
        return run.checkpoints_listed and not (several and self._condition is not None)

    def _passes(self, run: RunView, snapshot: Snapshot) -> bool:
        if self._condition is None:
            return True
        from midstream.listing.fleet_moment import FleetMoment

        return self._condition.holds(run, FleetMoment(snapshot, (), time.time(), self._facts))
