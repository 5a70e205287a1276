"""The watched hosts of an attempt of a run."""

from __future__ import annotations

from midstream.watch.snapshot import RunView, Snapshot


def hosts_of(snapshot: Snapshot, run: RunView, attempt: int) -> list[str]:
    """Return the watched hosts of an attempt, by its target or by their last attempt."""
    targets = [entry.target for entry in run.lineage.entries if entry.attempt == attempt] if run.lineage else []
    hosts = [target for target in targets if target in snapshot.system]
    hosts += [copy.host for copy in snapshot.copies(run.run_id) if copy.status and copy.status.attempt == attempt]
    return [host for host in dict.fromkeys(hosts) if host in snapshot.system]
