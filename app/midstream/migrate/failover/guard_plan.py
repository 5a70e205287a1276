"""Plan of a guard's migration: made, checked and refused without a user."""

from __future__ import annotations

from midstream.check.check_result import FAIL
from midstream.errors import HostError, MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.hosts.host_pool import HostPool
from midstream.migrate.failover.guard_consent import GuardConsent
from midstream.migrate.journal.migration_directory import open_migrations
from midstream.migrate.journal.plan import Plan
from midstream.migrate.journal.request import Request
from midstream.migrate.planning import planner as planning
from midstream.migrate.planning import preflight
from midstream.providers import fleet_slices
from midstream.watch.snapshot import LIVE, RunView, Snapshot
from midstream_host.runs import ownership, run_state

OTHERS = (preflight.MIGRATION_LOCK, preflight.OTHER_MIGRATION)  # checks that fail where another migration has the run


class MigratedByAnotherError(MidstreamError):
    """Another migration has the run, of another guard or of a user.

    ``needs_target``: it goes to the same target.
    """

    def __init__(self, message: str, hint: str = "", *, needs_target: bool = False) -> None:
        super().__init__(message, hint)
        self.needs_target = needs_target


def make(hosts: HostPool, snapshot: Snapshot, request: Request, store: str, consent: GuardConsent) -> Plan:
    """Make a plan and run its preflight.

    Args:
        hosts: Its hosts.
        snapshot: Current snapshot of the fleet.
        request: The request.
        store: Bucket with the checkpoints of a lost run; empty: the source's own are used.
        consent: What the user has agreed to.

    Raises:
        MigratedByAnotherError: Another migration has the run.
        NotAgreedError: It needs another consent.
        MidstreamError: It cannot be planned, or a check fails.
    """
    plan = planning.make_plan(hosts, snapshot, request)
    if store and plan.route.source_store != store:
        raise MidstreamError(f"its checkpoints in {store} cannot be used, and the copy on {plan.source} is older")
    head = snapshot.judgement(plan.run_id).head
    consent.check(plan, head.key if head is not None else "")  # no user to confirm more
    for check in preflight.run_checks(hosts, plan):
        if check.state == FAIL:
            what = f"{check.name}: {check.detail}"
            if check.name in OTHERS or check.hint == preflight.MIGRATED_SINCE:
                raise MigratedByAnotherError(what, check.hint, needs_target=needed_by_another(hosts, plan))
            raise MidstreamError(what, check.hint)
    return plan


def needed_by_another(hosts: HostPool, plan: Plan) -> bool:
    """Return whether another migration brings the run to this plan's target.

    True also if it has brought it there, and where the source does not answer.
    """
    others = [view for view in open_migrations(hosts.fleet, plan.run_id) if view.migration != plan.migration]
    if any(view.plan.target == plan.target for view in others):
        return True
    try:
        source = hosts.get(plan.source)
        lock = source.call(ownership.migration_lock)(root=source.root, run_id=plan.run_id)
        fence = source.call(run_state.describe)(root=source.root, run_id=plan.run_id).fence
    except HostError:
        return True
    later = [record.owner for record in (fence, lock) if record is not None and record.epoch >= plan.epoch]
    ours = lock is not None and lock.migration == plan.migration
    return not ours and plan.target in later


def host_of_copy(fleet: Fleet, snapshot: Snapshot, run: RunView, target: str) -> str:
    """Return a host with an older, proven copy of the run.

    Its config and history are used. Hosts of the lost target are excluded; ``target``'s own hosts are the last choice.

    Raises:
        MidstreamError: No host that answers has a copy.
    """
    lost_target = fleet_slices.target_of_host(fleet, run.host)
    lost_hosts = lost_target[1].hosts if lost_target is not None else ()
    live = {host.name for host in snapshot.hosts if host.link == LIVE}
    signed = snapshot.judgement(run.run_id).signed
    older = [
        copy
        for copy in snapshot.believed(run.run_id)
        if copy.host in live - {*lost_hosts} and not copy.running and (copy.epoch or not signed)
    ]
    if not older:
        raise MidstreamError(
            f"no other host that answers has a copy of {run.run_id}, and its bucket has checkpoints only",
            "add a host that the run was on before to the fleet file",
        )
    target_hosts = fleet.hosts_of(target)
    return min(older, key=lambda copy: copy.host in target_hosts).host
