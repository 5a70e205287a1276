"""Checks of a target before a run starts there, and advice before a run is moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from midstream.check.check_result import Check
    from midstream.hosts.host_pool import HostPool


def check(hosts: HostPool, name: str) -> Iterator[Check]:
    """Yield the checks of a target or, without such a target, those of a run.

    Raises:
        UsageError: There is no such target or run.
    """
    from midstream.check.target_checks import check_target
    from midstream.check.trainer_advice import advise
    from midstream.operations.fleet_snapshot import fleet_snapshot, run_of

    if name not in hosts.fleet.target_names:
        snapshot = fleet_snapshot(hosts)
        if snapshot.copies(name):
            yield from advise(hosts, run_of(snapshot, name))
            return
    yield from check_target(hosts, hosts.fleet.target(name))
