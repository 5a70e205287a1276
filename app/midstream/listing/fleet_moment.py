"""The fleet at one moment: snapshot, migrations, time, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from midstream.listing.fleet_facts import FleetFacts
from midstream.watch.run_failure import RunFailure, failure_of, has_failed
from midstream.watch.snapshot import HostView, RunView, Snapshot

if TYPE_CHECKING:
    from midstream.migrate.journal.migration_view import MigrationView


@dataclass(frozen=True)
class FleetMoment:
    """Fleet, migrations and time at one moment."""

    snapshot: Snapshot = field(default_factory=lambda: Snapshot(0, 0.0))
    migrations: tuple[MigrationView, ...] = ()  # newest first
    now: float = 0.0  # UTC seconds
    facts: FleetFacts = field(default_factory=FleetFacts, repr=False, compare=False)

    def training_on(self, host: str) -> list[str]:
        """Return the runs with a running process on a host."""
        return [run.run_id for run in self.snapshot.runs_on(host) if run.running]

    def run_age(self, run: RunView) -> float | None:
        """Return seconds since the run's last heartbeat; None without one.

        The seconds are corrected for the host's clock skew.
        """
        if run.status is None:
            return None
        host = self.snapshot.host(run.host)
        skew = host.machine.clock_skew if host and host.machine else 0.0
        return max(0.0, self.now - (run.status.heartbeat - skew))

    def host_age(self, host: HostView) -> float | None:
        """Return seconds since the host's last report; None without one."""
        return None if host.last_seen is None else max(0.0, self.now - host.last_seen)

    def failure(self, run: RunView) -> RunFailure | None:
        """Return why the run's attempt failed; None if it did not."""
        if (run.status is None or run.status.processes < 2) and not has_failed(run):
            return None
        return failure_of(self.snapshot.members(run))
