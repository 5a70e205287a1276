"""Checks of a plan before the migration starts.

Each passes, warns or fails with a hint.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace

from midstream.check.check_result import FAIL, PASS, WARN, Check
from midstream.check.host_checks import check_devices, check_libc, check_packages, check_python
from midstream.check.mesh_checks import check_together
from midstream.check.slurm_checks import check_allocation
from midstream.check.target_checks import SURVEY_TIMEOUT, clock_skew
from midstream.counts import count
from midstream.errors import HostError, MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.format import size
from midstream.hosts.host import FleetHost, Host
from midstream.hosts.host_pool import HostPool
from midstream.install.bundle import engine_bytes
from midstream.install.disk_space import UNPACKED
from midstream.install.environment import builds_environment
from midstream.migrate import host_files
from midstream.migrate.checkpoint_store import (
    CheckpointStore,
    checkpoint_store_of,
    copy_route,
    store_conflict,
)
from midstream.migrate.journal.json_values import section
from midstream.migrate.journal.migration_directory import open_migrations
from midstream.migrate.journal.migration_state import RUNNING
from midstream.migrate.journal.plan import NO_ROUTE, Plan
from midstream.migrate.planning import batch_shape, trainer_checks
from midstream.migrate.planning.environment_check import check_environment
from midstream.migrate.planning.occupied_target import check_occupied, other_migration
from midstream.migrate.proof import restore_evidence
from midstream.stores.host_identity import identity_problem
from midstream_host.machine import checks
from midstream_host.machine.checks import Survey
from midstream_host.runs import ownership, run_state, standby_state

MIGRATION_LOCK = "migration lock"  # name of the check that no other migration has the run
OTHER_MIGRATION = "other migration"  # name of the check that this machine executes no other migration of the run
MIGRATED_SINCE = "the run has been migrated since: plan again"  # hint
ROUTE_MAX_AGE = 60.0  # seconds for which a plan's probed route is used
DISK_SLACK = 1.1  # factor on the bytes to be copied
ENVIRONMENT_BYTES = 2e9  # of an engine's environment that is to be built


def run_checks(hosts: HostPool, plan: Plan) -> Iterator[Check]:
    """Run the checks of a plan, one after the other. No side effects on any host."""
    fleet = hosts.fleet
    source_names = plan.route.source_hosts or (plan.source,)
    target_names = plan.route.target_hosts or (plan.target_host,)
    sources = yield from _reach_all(hosts, source_names, "source")
    targets = yield from _reach_all(hosts, target_names, "target")
    if len(sources) < len(source_names) or len(targets) < len(target_names):
        return
    source, target = sources[0], targets[0]
    yield from _open_migrations(fleet, plan)
    here = checkpoint_store_of(fleet, source, plan.run_id, plan.route.source_store)
    there = checkpoint_store_of(fleet, target, plan.run_id, plan.route.target_store)
    described = source.call(run_state.describe)(root=source.root, run_id=plan.run_id)
    described = replace(described, checkpoints=here.checkpoints(described))
    yield from _source(source, described, plan)
    attempt = described.attempt
    yield from _targets(fleet, targets, there, plan, restore_evidence.versions(source, plan.run_id, attempt))
    yield _route(here, there, source, target, plan)
    own = targets[:1] if fleet.target(plan.target).shared_root else targets
    yield from _fit(fleet, source, here, own, plan)


def import_checks(hosts: HostPool, plan: Plan) -> Iterator[Check]:
    """Run the checks of a plan whose run is not imported yet: those of the target.

    No side effects on any host.
    """
    fleet = hosts.fleet
    target_names = plan.route.target_hosts or (plan.target_host,)
    targets = yield from _reach_all(hosts, target_names, "target")
    if len(targets) < len(target_names):
        return
    there = checkpoint_store_of(fleet, targets[0], plan.run_id, plan.route.target_store)
    yield from _targets(fleet, targets, there, plan)
    here = checkpoint_store_of(fleet, hosts.get(plan.source), plan.run_id, plan.route.source_store)
    yield _route(here, there, hosts.get(plan.source), targets[0], plan)


def _targets(
    fleet: Fleet,
    targets: Sequence[FleetHost],
    there: CheckpointStore,
    plan: Plan,
    versions: Mapping[str, str] | None = None,
) -> Iterator[Check]:
    """Check the target's hosts, and what they have in common.

    ``versions``: of the packages that the source trains with; None: it does not train yet.
    """
    surveys: dict[str, Survey] = {}
    for host in targets:
        visible = fleet.hosts[host.name].visible
        surveys[host.name] = host.call(checks.survey, timeout=SURVEY_TIMEOUT)(root=host.root, visible=visible)
        for check in _target(host, plan, fleet, surveys[host.name], versions):
            yield check if host is targets[0] else replace(check, detail=f"{host.name}: {check.detail}")
    if len(targets) > 1:
        skews = {host.name: clock_skew(host) for host in targets}
        yield from check_together(fleet, fleet.target(plan.target), targets, surveys, skews)
    slurm = fleet.target(plan.target).slurm
    if slurm is not None:
        yield from check_allocation(targets[0], fleet.hosts[targets[0].name], plan.target, slurm)
    for host in targets:
        why, hint = store_conflict(host, plan.run_id, there, plan.source_epoch)
        if plan.route.target_store and not why:
            why, hint = identity_problem(fleet, host, plan.route.target_store)
        if why or plan.route.target_store:
            yield Check("store", FAIL if why else PASS, why or f"{host.name}: checkpoints in {there.store}", hint)


def _reach_all(hosts: HostPool, names: Sequence[str], role: str) -> Generator[Check, None, list[FleetHost]]:
    """Yield a check for each host; return those that answer."""
    reached: list[FleetHost] = []
    for name in names:
        host = yield from _reach(hosts, name, role)
        if host is not None:
            reached.append(host)
    return reached


def _reach(hosts: HostPool, name: str, role: str) -> Generator[Check, None, FleetHost | None]:
    try:
        host = hosts.get(name)
        host.connect()
    except HostError as error:
        yield Check(f"{role} answers", FAIL, error.message, error.hint)
        return None
    yield Check(f"{role} answers", PASS, name)
    return host


def _route(here: CheckpointStore, there: CheckpointStore, source: Host, target: Host, plan: Plan) -> Check:
    """Check the route of the checkpoint's copy.

    A route that the plan has just probed is not probed again: a firewall that drops packets makes each probe wait for
    its timeout.
    """
    if (
        plan.route.probed
        and not plan.route.probed.startswith(NO_ROUTE)
        and time.time() - plan.identity.created < ROUTE_MAX_AGE
    ):
        return Check("route", PASS, plan.route.probed)
    try:
        return Check("route", PASS, copy_route(here, there, source, target))
    except HostError as error:
        return Check("route", FAIL, error.message, error.hint)


def _open_migrations(fleet: Fleet, plan: Plan) -> Iterator[Check]:
    """Report other migrations of the run that this machine has started.

    The migration lock, which is acquired shortly before the source stops, would end one of them at that time. An
    interrupted one only warns: a target that is lost for good may prevent its rollback.
    """
    for view in open_migrations(fleet, plan.run_id):
        if view.migration == plan.migration or view.plan.source != plan.source:
            continue
        yield Check(
            OTHER_MIGRATION,
            FAIL if view.state == RUNNING else WARN,
            f"migration {view.migration} of {plan.run_id} to {view.plan.target} is {view.state}, in phase {view.phase}",
            f"midstream --continue {view.migration} follows it, midstream --rollback {view.migration} ends it",
        )


def _source(source: Host, described: run_state.RunDescription, plan: Plan) -> Iterator[Check]:
    fence = described.fence
    if fence is None:
        yield Check(
            "ownership", FAIL, f"{source.name} has no fence of {plan.run_id}", f"midstream --repair {plan.run_id}"
        )
        return
    lock = source.call(ownership.migration_lock)(root=source.root, run_id=plan.run_id)
    # `expires` is by the host's own clock.
    if lock and lock.epoch > fence.epoch and lock.expires > source.call(standby_state.clock)():
        yield Check(
            MIGRATION_LOCK,
            FAIL,
            f"migration {lock.migration} is migrating the run to {lock.owner}",
            other_migration(lock.migration),
        )
    if fence.epoch != plan.source_epoch:
        yield Check(
            "ownership",
            FAIL,
            f"the run is at ownership {fence.epoch} (owner {fence.owner}), planned for ownership {plan.source_epoch}",
            MIGRATED_SINCE,
        )
    else:
        yield Check("ownership", PASS, f"ownership {fence.epoch}, owner {fence.owner}")
    complete = described.usable
    if described.running:
        yield Check(
            "source runs",
            PASS,
            f"attempt {described.attempt}, step {plan.route.source_step}; it saves when it stops",
        )
    elif complete:
        yield Check(
            "source runs", WARN, f"it does not ({plan.route.source_state}); its newest complete checkpoint is used"
        )
    else:
        yield Check(
            "source runs", FAIL, "it does not, and it has no complete checkpoint", "start it again on its source"
        )
    if plan.checkpoint != "now":
        name = plan.checkpoint
        is_usable = any(checkpoint.name == name for checkpoint in complete)
        yield Check(
            "checkpoint",
            PASS if is_usable else FAIL,
            f"{name} is complete and accepted" if is_usable else f"{name} is not complete, or does not count",
            "" if is_usable else "midstream --checkpoints RUN lists those that are",
        )


def _target(
    target: FleetHost, plan: Plan, fleet: Fleet, survey: Survey, versions: Mapping[str, str] | None
) -> Iterator[Check]:
    config = fleet.config_of(fleet.target(plan.target), target.name)
    if plan.trainer is None:
        yield check_packages(target.name, config, survey)
        yield check_python(target, config, survey)
        if config.container is None:
            yield check_libc(target.name, survey.facts.libc)
        if versions is not None:
            yield check_environment(target, config, survey, versions)
    copies = (
        2 if plan.has_standby and plan.checkpoint == "now" else 1
    )  # the second is an earlier checkpoint, for the rehearsal
    state_bytes = 0 if plan.route.target_store else copies * plan.estimate.checkpoint_bytes
    needed = (state_bytes + plan.estimate.data_bytes) * DISK_SLACK + UNPACKED * engine_bytes()
    if plan.trainer is None and plan.estimate.install_bytes:
        needed += UNPACKED * plan.estimate.install_bytes / max(1, len(plan.route.target_hosts))
    elif plan.trainer is None and builds_environment(config) and not survey.facts.root_exists:
        needed += ENVIRONMENT_BYTES
    yield from check_devices(target.name, config, survey)
    free = survey.facts.disk_free
    yield Check(
        "disk",
        PASS if free > needed else FAIL,
        f"{size(free)} free at {target.root}, {size(needed)} needed"
        if free > needed
        else f"no space left at {target.root}: {size(needed)} needed, {size(free)} free",
        "" if free > needed else f"free space on {target.name}, or choose another root in the fleet file",
    )
    if not survey.facts.root_writable:
        yield Check(
            "root",
            FAIL,
            f"{target.root} cannot be written",
            f"chown it on {target.name}, or set root: in the fleet file",
        )
    memory = survey.facts.memory_available
    on_host = fleet.target(plan.target).slurm is None  # a login node's own memory is not the engine's
    if on_host and memory and plan.estimate.checkpoint_bytes:
        # Virtual devices share the host's memory; the state, its gradients and a snapshot have to fit.
        enough = memory > 2 * plan.estimate.checkpoint_bytes
        yield Check(
            "memory",
            PASS if enough else WARN,
            f"{memory / 1e9:.1f} GB available, the state is {plan.estimate.checkpoint_bytes / 1e9:.2f} GB",
        )
    yield from check_occupied(target, fleet, plan, alone=not on_host)


def check_data(source: Host, targets: Sequence[Host], plan: Plan) -> Iterator[Check]:
    """Check that each token cache is on the target's hosts or can be copied there."""
    if plan.route.data_location:
        standby = plan.has_standby
        yield Check(
            "data",
            PASS if standby else WARN,
            f"read from {plan.route.data_location}; "
            + ("the rehearsal checks that the target can" if standby else "the target tries it when it starts"),
            "" if standby else "--mode warm tries it while the source trains",
        )
    for digest in plan.route.data_digests:
        name = f"{'token cache' if plan.trainer is None else 'files of the run'} {digest[:12]}"
        lacking = host_files.hosts_without(targets, digest)
        in_all = f"{size(plan.estimate.data_bytes)} in all"
        names = ", ".join(host.name for host in lacking)
        if not lacking:
            yield Check("data", PASS, f"{name}: the target has it")
        elif targets[0] not in lacking:  # which has the data, and sends it to the others
            yield Check("data", PASS, f"{name}: {names} lacks it: to copy from {targets[0].name}, {in_all}")
        elif host_files.has_manifest(source, host_files.data_directory(source, digest)):
            yield Check("data", PASS, f"{name}: to copy, {in_all}")
        else:
            where = host_files.data_directory(source, digest)
            yield Check("data", FAIL, f"{name} is on neither host", f"copy or build it in {where}")


def _fit(fleet: Fleet, source: Host, here: CheckpointStore, targets: Sequence[Host], plan: Plan) -> Iterator[Check]:
    yield from check_data(source, targets, plan)
    if plan.trainer is not None:
        for target in targets:
            config = fleet.config_of(fleet.target(plan.target), target.name)
            yield from trainer_checks.check(target, config, plan)
        yield from trainer_checks.check_stored(source, plan)
        return
    try:
        # Listed and read in one call: a training run replaces one checkpoint by the next.
        newest = here.newest_state()
        trainer = section(host_files.training_config(source, plan.run_id), "trainer")
    except MidstreamError as error:
        yield Check("divisibility", FAIL, error.message, error.hint or f"midstream --checkpoints {plan.run_id}")
        return
    if newest is None:
        yield Check(
            "divisibility", WARN, "no checkpoint yet: the axes are not known; the engine checks them before it compiles"
        )
        return
    problems = batch_shape.check_axes(newest.manifest.array_entries, trainer, plan.shape.target_devices)
    if problems:
        for problem in problems:
            yield Check("divisibility", FAIL, problem, "choose a target with one of these device counts")
    else:
        yield Check(
            "divisibility", PASS, f"every sharded axis divides over {count(plan.shape.target_devices, 'device')}"
        )
