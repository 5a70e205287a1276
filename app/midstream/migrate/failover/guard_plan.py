"""Plan of a guard's migration: made, checked and refused without a user."""

from __future__ import annotations

from midstream.check.check_result import FAIL
from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.hosts.host_pool import HostPool
from midstream.hosts.providers import fleet_slices
from midstream.migrate.planning import planner as planning
from midstream.migrate.planning import preflight
from midstream.migrate.records.plan import Plan
from midstream.migrate.records.request import Request
from midstream.watch.snapshot import LIVE, RunView, Snapshot


class MigratedByAnotherError(MidstreamError):
    """Another migration has the run, of another guard or of a user."""


def make(fleet: Fleet, hosts: HostPool, snapshot: Snapshot, request: Request, store: str, agreed: bool) -> Plan:
    """Make a plan and run its preflight.

    Args:
        fleet: The fleet.
        hosts: Its hosts.
        snapshot: Current snapshot of the fleet.
        request: The request.
        store: Bucket with the checkpoints of a lost run; empty: the source's own are used.
        agreed: Whether the user has agreed to all consent that a plan needs.

    Raises:
        MigratedByAnotherError: Another migration has the run.
        MidstreamError: It cannot be planned, needs consent, or a check fails.
    """
    plan = planning.make_plan(fleet, hosts, snapshot, request)
    if store and plan.route.source_store != store:
        raise MidstreamError(f"its checkpoints in {store} cannot be used, and the copy on {plan.source} is older")
    if plan.policy.consent and not agreed:  # no user to confirm it
        raise MidstreamError(plan.policy.consent[0], "--guard with --yes agrees to it, and --migrate shows it")
    for check in preflight.run_checks(fleet, hosts, plan):
        if check.state == FAIL:
            another = check.name == preflight.MIGRATION_LOCK or check.hint == preflight.MIGRATED_SINCE
            error = MigratedByAnotherError if another else MidstreamError
            raise error(f"{check.name}: {check.detail}", check.hint)
    return plan


def host_of_copy(fleet: Fleet, snapshot: Snapshot, run: RunView, target: str) -> str:
    """Return a host with an older copy of the run, for its config and history.

    Hosts of the lost target are excluded; ``target``'s own hosts are the last choice.

    Raises:
        MidstreamError: No host that answers has a copy.
    """
    lost_target = fleet_slices.target_of_host(fleet, run.host)
    lost_hosts = lost_target[1].hosts if lost_target is not None else ()
    live = {host.name for host in snapshot.hosts if host.link == LIVE}
    found = [copy for copy in snapshot.copies(run.run_id) if copy.host in live - {*lost_hosts} and not copy.running]
    if not found:
        raise MidstreamError(
            f"no other host that answers has a copy of {run.run_id}, and its bucket has checkpoints only",
            "add a host that the run was on before to the fleet file",
        )
    target_hosts = fleet.hosts_of(target)
    return min(found, key=lambda copy: copy.host in target_hosts).host
