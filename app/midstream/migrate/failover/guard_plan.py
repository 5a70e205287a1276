"""Plan of a guard's migration: made, checked and refused without a user."""

from __future__ import annotations

from collections.abc import Sequence

from midstream.check.check_result import FAIL
from midstream.errors import Exit, HostError, MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.hosts.host_pool import HostPool
from midstream.hosts.providers import fleet_slices
from midstream.migrate.failover import job_restart
from midstream.migrate.journal.migration_directory import open_migrations
from midstream.migrate.planning import planner as planning
from midstream.migrate.planning import preflight
from midstream.migrate.records.plan import Plan
from midstream.migrate.records.request import Request
from midstream.migrate.source_and_target import host_files
from midstream.migrate.source_and_target.source_config import check_config
from midstream.remote.runs import ownership, run_state
from midstream.remote.verify import tree
from midstream.watch.snapshot import LIVE, RunView, Snapshot
from midstream_engine.foreign.run_file import is_run_file

OTHERS = (preflight.MIGRATION_LOCK, preflight.OTHER_MIGRATION)  # checks that fail where another migration has the run


class MigratedByAnotherError(MidstreamError):
    """Another migration has the run, of another guard or of a user.

    ``needs_target``: it goes to the same target.
    """

    def __init__(self, message: str, hint: str = "", *, needs_target: bool = False) -> None:
        super().__init__(message, hint)
        self.needs_target = needs_target


def check_consent(fleet: Fleet, hosts: HostPool, run: RunView, targets: Sequence[str]) -> None:
    """Refuse to guard a run whose config needs consent to a migration.

    Where its host does not answer, the migration is refused later instead.

    Raises:
        MidstreamError: The config needs consent.
    """
    try:
        source = hosts.get(run.host)
        config = host_files.training_config(source, run.run_id)
        store = source.call(tree.store_of)(root=source.root, run_id=run.run_id)
    except HostError:
        return
    if is_run_file(config):
        what = f"{', '.join(targets)} would execute the command and the files of {run.run_id}"
        raise MidstreamError(what, "--yes agrees to it", Exit.REFUSED)
    for target in targets:
        if job_restart.is_own_target(fleet, run, target):
            continue  # it goes on as it is
        for line in check_config(config, run.host, target, (store.rstrip("/"),) if store else (), {}):
            raise MidstreamError(line, "--yes agrees to it", Exit.REFUSED)


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
            what = f"{check.name}: {check.detail}"
            if check.name in OTHERS or check.hint == preflight.MIGRATED_SINCE:
                raise MigratedByAnotherError(what, check.hint, needs_target=needed_by_another(fleet, hosts, plan))
            raise MidstreamError(what, check.hint)
    return plan


def needed_by_another(fleet: Fleet, hosts: HostPool, plan: Plan) -> bool:
    """Return whether another migration brings the run to this plan's target.

    True also if it has brought it there, and where the source does not answer.
    """
    others = [view for view in open_migrations(fleet, plan.run_id) if view.migration != plan.migration]
    if any(view.plan.target == plan.target for view in others):
        return True
    try:
        source = hosts.get(plan.source)
        lock = source.call(ownership.migration_lock)(root=source.root, run_id=plan.run_id)
        fence = source.call(run_state.describe)(root=source.root, run_id=plan.run_id).fence
    except HostError:
        return True
    later = [each.owner for each in (fence, lock) if each is not None and each.epoch >= plan.epoch]
    ours = lock is not None and lock.migration == plan.migration
    return not ours and plan.target in later


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
