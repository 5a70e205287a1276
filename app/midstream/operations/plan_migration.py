"""Check a request for a migration, and name what the user agrees to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from midstream.counts import count
from midstream.migrate.planning import planner

if TYPE_CHECKING:
    from midstream.hosts.host_pool import HostPool
    from midstream.migrate.journal.plan import Plan
    from midstream.migrate.journal.request import Request
    from midstream.watch.snapshot import Snapshot


def check_ahead(hosts: HostPool, snapshot: Snapshot, request: Request) -> None:
    """Refuse a request that would fail once its target exists and costs money.

    Raises:
        MidstreamError: It would be refused.
    """
    target = hosts.fleet.slices.get(request.target)
    devices = target.device_count if target is not None else None
    planner.check_ahead(hosts, snapshot, request, hosts.fleet.store_of_target(request.target), devices)


def losses(plan: Plan) -> list[str]:
    """Return what a plan gives up or costs, to which the user has to agree."""
    steps = plan.estimate.steps_lost
    lost = [f"{count(steps, 'step')} after {plan.checkpoint} would be discarded"] if steps else []
    return [*lost, *plan.policy.consent]
