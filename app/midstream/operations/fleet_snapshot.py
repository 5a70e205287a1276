"""A snapshot of the fleet, and a run in it by its id."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from midstream.errors import UsageError
from midstream.suggestions import nearest_run

if TYPE_CHECKING:
    from midstream.hosts.host_pool import HostPool
    from midstream.watch.snapshot import RunView, Snapshot


def fleet_snapshot(
    hosts: HostPool, *, remember: bool = True, seen: Callable[[Snapshot], object] | None = None
) -> Snapshot:
    """Return the state of every host that answers within `watcher.SNAPSHOT_TIMEOUT`.

    ``remember``: store names for shell completion, and the hosts' accelerators; a dry run does not. ``seen``: see
    `take_snapshot`.
    """
    hosts.prepare()
    from midstream.watch.known_devices import remember_devices
    from midstream.watch.known_names import remember_names
    from midstream.watch.known_owners import remember_owners
    from midstream.watch.watcher import take_snapshot

    snapshot = take_snapshot(hosts, seen=seen)
    if remember:
        remember_names(hosts.fleet, snapshot)
        remember_devices(hosts.fleet, snapshot)
        remember_owners(snapshot)
    return snapshot


def find_run(hosts: HostPool, run_id: str) -> RunView:
    """Return the run's copy that counts: the first one that is believed.

    Raises:
        UsageError: No reachable host has the run, or hosts only claim it.
    """
    return run_of(fleet_snapshot(hosts), run_id)


def run_of(snapshot: Snapshot, run_id: str) -> RunView:
    if not snapshot.copies(run_id):
        raise unknown_run(run_id, snapshot)
    copies = snapshot.believed(run_id)
    if not copies:
        raise unproven_run(run_id, snapshot)
    return copies[0]


def unproven_run(run_id: str, snapshot: Snapshot) -> UsageError:
    """Return the error for a run of which there is no copy, or only claimed ones."""
    judgement = snapshot.judgement(run_id)
    claims = [f"{host}: {standing.reason}" for host, standing in judgement.standings.items()]
    if not claims:
        return unknown_run(run_id, snapshot)
    copies = snapshot.copies(run_id)
    restored = next((copy.host for copy in copies if copy.host in judgement.owner_hosts), "")
    repair = f"midstream --repair {run_id}"
    return UsageError(
        f"no host shows a copy of {run_id} that is proven: {'; '.join(claims)}",
        f"{repair} --on {restored} shows what is known of it" if restored else f"{repair} shows what each host has",
    )


def unknown_run(run_id: str, snapshot: Snapshot) -> UsageError:
    run_ids = sorted({run.run_id for run in snapshot.runs})
    unreachable = [host.name for host in snapshot.hosts if host.link != "live"]
    return UsageError(f"no run {run_id!r}", nearest_run(run_id, run_ids, unreachable))
