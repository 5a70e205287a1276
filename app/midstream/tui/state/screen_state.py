"""The state that screens show: fleet, migrations and time at one moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from midstream.listing.fleet_moment import FleetMoment
from midstream.listing.run_facts import devices
from midstream.watch import snapshot as watch
from midstream.watch.snapshot import RunView, Snapshot

if TYPE_CHECKING:
    from midstream.migrate.journal.migration_view import MigrationView


class SnapshotSource(Protocol):
    """A source of snapshots, such as a running Watcher."""

    def snapshot(self) -> Snapshot: ...

    def subscribe(self, callback: Callable[..., object], /) -> Callable[[], object]:
        """Call ``callback``, on any thread, after each change.

        Return a function that unsubscribes it.
        """
        ...


@dataclass(frozen=True)
class ScreenState(FleetMoment):
    """Fleet, migrations and time at one moment, with what screens read of them."""

    def run(self, host: str, run_id: str) -> RunView | None:
        return next((run for run in self.snapshot.copies(run_id) if run.host == host), None)

    def migration(self, migration: str) -> MigrationView | None:
        return next((view for view in self.migrations if view.migration == migration), None)

    @cached_property
    def current_runs(self) -> list[RunView]:
        """The copy of each run with the highest fence epoch; running ones first."""
        current = self.snapshot.current()  # sorted by id
        return [run for run in current if run.running] + [run for run in current if not run.running]

    def is_stale(self, host: str) -> bool:
        """Return True if the host does not report at present."""
        view = self.snapshot.host(host)
        return view is None or view.link != watch.LIVE


def attempt_hues(run: RunView) -> dict[int, int]:
    """Map each attempt to the number of its colour.

    Attempts on the same hardware share one.
    """
    hues: dict[tuple[str, int, str], int] = {}
    return {
        entry.attempt: hues.setdefault((entry.target, entry.devices, entry.device_kind), len(hues))
        for entry in (run.lineage.entries if run.lineage else ())
    }


def attempt_names(run: RunView, times: str) -> dict[int, str]:
    """Map each attempt to its hardware, ``large 4×cpu``.

    An attempt on the same hardware as the one before has its number instead: ``large #3``.
    """
    names: dict[int, str] = {}
    before = None
    for entry in run.lineage.entries if run.lineage else ():
        hardware_key = (entry.target, entry.devices, entry.device_kind)
        names[entry.attempt] = (
            f"{entry.target} #{entry.attempt}"
            if hardware_key == before
            else f"{entry.target} {devices(entry.devices, entry.device_kind, times)}"
        )
        before = hardware_key
    return names
