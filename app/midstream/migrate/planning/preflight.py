"""What must hold before anything is touched. Every check passes, warns or fails, and says how to mend it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from midstream.check.host_checks import check_libc, check_packages, check_python
from midstream.check.mesh_checks import check_together
from midstream.check.target_checks import clock_skew
from midstream.errors import HostError, MidstreamError, RemoteError
from midstream.launch.environment import builds_environment
from midstream.migrate import host_files
from midstream.migrate.checkpoint_store import CheckpointStore, checkpoint_store_of, in_the_way, way
from midstream.migrate.model import FAIL, NO_ROUTE, PASS, WARN, Check, Plan
from midstream.migrate.planning import batch_shape
from midstream.stores import host_identity
from midstream_engine import records

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host import Host
    from midstream.hosts.host_pool import Hosts

SURVEY = 120.0  # seconds for the target to look at itself
FRESH = 60.0  # seconds for which a plan's route is believed
SKEW_LIMIT = 5.0  # seconds; more confuses a reader of logs, the fence does not depend on clocks
DISK_SLACK = 1.1  # of the bytes that arrive
ENVIRONMENT_BYTES = 2e9  # an engine's environment, where it has to be built


def run_checks(fleet: Fleet, hosts: Hosts, plan: Plan) -> Iterator[Check]:
    """The checks of a plan, one after the other. No side effects on any host."""
    sources, targets = [], []
    for found, names, role in (
        (sources, plan.source_hosts or (plan.source,), "source"),
        (targets, plan.target_hosts or (plan.target_host,), "target"),
    ):
        for name in names:
            found.append((yield from _reach(hosts, name, role)))
    if None in (*sources, *targets):
        return
    source, target = sources[0], targets[0]
    here = checkpoint_store_of(fleet, source, plan.run_id, plan.source_store)
    there = checkpoint_store_of(fleet, target, plan.run_id, plan.target_store)
    described = source.call("runs.run_state.describe", root=source.root, run_id=plan.run_id)
    described = {**described, "checkpoints": here.points(described)}
    yield from _source(source, described, plan)
    surveys = {}
    for host in targets:
        surveys[host.name] = host.call("machine.checks.survey", root=host.root, timeout=SURVEY)
        for check in _target(host, plan, fleet, surveys[host.name]):
            yield check if host is target else replace(check, detail=f"{host.name}: {check.detail}")
    if len(targets) > 1:
        skews = {host.name: clock_skew(host) for host in targets}
        yield from check_together(fleet, fleet.target(plan.target), targets, surveys, skews)
    for host in targets:
        why, hint = in_the_way(host, plan.run_id, there, plan.source_epoch)
        if plan.target_store and not why:
            why, hint = host_identity.why_not(fleet, host, plan.target_store)
        if why or plan.target_store:
            yield Check("store", FAIL if why else PASS, why or f"{host.name}: checkpoints in {there.store}", hint)
    yield _route(here, there, source, target, plan)
    yield from _fit(source, here, target, plan)


def _reach(hosts: Hosts, name: str, role: str):
    try:
        host = hosts.get(name)
        host.connect()
    except HostError as error:
        yield Check(f"{role} answers", FAIL, error.message, error.hint)
        return None
    yield Check(f"{role} answers", PASS, name)
    return host


def _route(here: CheckpointStore, there: CheckpointStore, source: Host, target: Host, plan: Plan) -> Check:
    """The way that the checkpoint's bytes will take. One that the plan has just tried is not tried again: where a
    firewall swallows what comes, that takes its time."""
    if plan.route and not plan.route.startswith(NO_ROUTE) and time.time() - plan.created < FRESH:
        return Check("route", PASS, plan.route)
    try:
        return Check("route", PASS, way(here, there, source, target))
    except HostError as error:
        return Check("route", FAIL, error.message, error.hint)


def _source(source: Host, described: dict[str, Any], plan: Plan) -> Iterator[Check]:
    fence = records.Fence.from_json(described["fence"], f"{source.name}: fence.json of {plan.run_id}")
    mover = source.call("runs.ownership.migration_lock", root=source.root, run_id=plan.run_id)
    # By the host's own clock, which wrote it.
    if mover and mover["epoch"] > fence.epoch and mover["expires"] > source.call("runs.standby_state.clock"):
        yield Check(
            "nobody moves it",
            FAIL,
            f"migration {mover['migration']} is moving it to {mover['holder']}",
            f"midstream --rollback {mover['migration']} takes that back, where it was started",
        )
    if fence.epoch != plan.source_epoch:
        yield Check(
            "fence",
            FAIL,
            f"the run is at epoch {fence.epoch} (holder {fence.owner}) now, planned was {plan.source_epoch}",
            "it was moved meanwhile: plan again",
        )
    else:
        yield Check("fence", PASS, f"epoch {fence.epoch}, holder {fence.owner}")
    complete = [point for point in described["checkpoints"] if point["complete"] and point["accepted"]]
    if described["running"]:
        yield Check(
            "source runs",
            PASS,
            f"attempt {described['attempt']}, step {plan.source_step}; it will save as it is sealed",
        )
    elif complete:
        yield Check("source runs", WARN, f"it does not ({plan.source_state}); its newest complete checkpoint is moved")
    else:
        yield Check(
            "source runs", FAIL, "it does not, and it left no complete checkpoint", "start it again on its source"
        )
    if plan.checkpoint != "now":
        name = plan.checkpoint
        found = any(point["name"] == name for point in complete)
        yield Check(
            "checkpoint",
            PASS if found else FAIL,
            f"{name} is complete and accepted" if found else f"{name} is not complete, or not accepted by the fence",
            "" if found else "midstream --checkpoints RUN lists those that are",
        )


def _target(target: Host, plan: Plan, fleet: Fleet, facts: dict[str, Any]) -> Iterator[Check]:
    config = fleet.hosts[target.name]
    yield check_packages(target.name, config, facts)
    yield check_python(target, config, facts)
    yield check_libc(target.name, facts["libc"])
    copies = 2 if plan.stands_by and plan.checkpoint == "now" else 1  # an earlier checkpoint, for the rehearsal
    arriving = 0 if plan.target_store else copies * plan.checkpoint_bytes
    needed = (arriving + plan.data_bytes) * DISK_SLACK
    if builds_environment(config) and not facts["root_exists"]:
        needed += ENVIRONMENT_BYTES
    free = facts["disk_free"]
    yield Check(
        "disk",
        PASS if free > needed else FAIL,
        f"{free / 1e9:.1f} GB free at {target.root}, {needed / 1e9:.2f} GB needed",
        "" if free > needed else f"free space on {target.name}, or choose another root in the fleet file",
    )
    if not facts["root_writable"]:
        yield Check(
            "root",
            FAIL,
            f"{target.root} cannot be written",
            f"chown it on {target.name}, or set root: in the fleet file",
        )
    memory = facts["memory_available"]
    if memory and plan.checkpoint_bytes:
        # Virtual devices share the host's memory; the state, its gradients and a snapshot have to fit.
        enough = memory > 2 * plan.checkpoint_bytes
        yield Check(
            "memory",
            PASS if enough else WARN,
            f"{memory / 1e9:.1f} GB available, the state is {plan.checkpoint_bytes / 1e9:.2f} GB",
        )
    yield from _occupied(target, plan)


def _occupied(target: Host, plan: Plan) -> Iterator[Check]:
    others = []
    for run_id in target.call("runs.run_state.list_runs", root=target.root):
        try:
            living = target.call("runs.run_state.running_attempt", root=target.root, run_id=run_id)
        except RemoteError as error:
            if run_id == plan.run_id:
                raise
            yield Check("target is free", WARN, f"what {run_id} does cannot be read: {error.message}")
            continue
        if not living:
            continue
        if run_id == plan.run_id:
            yield _in_the_way(target, run_id, living)
            return
        others.append(run_id)
    if others:
        yield Check(
            "target is free", WARN, f"{', '.join(others)} trains there too", "stop it, or expect both to be slow"
        )
    else:
        yield Check("target is free", PASS, "nothing trains there")


def _in_the_way(target: Host, run_id: str, attempt: int) -> Check:
    """What an attempt of the run itself is that lives on the target."""
    found = target.call("runs.run_state.status", root=target.root, run_id=run_id, attempt=attempt)["status"] or {}
    order = target.call("runs.standby_state.command", root=target.root, run_id=run_id, attempt=attempt) or {}
    if found.get("epoch", 0) == 0 and order.get("action") in (records.STANDBY, records.REPLAY):
        return Check(
            "run is free",
            FAIL,
            f"attempt {attempt} of {run_id} stands by on {target.name} for migration {order['migration']}",
            f"midstream --rollback {order['migration']} ends it, where that was started",
        )
    return Check(
        "run is free",
        FAIL,
        f"an attempt of {run_id} runs on {target.name} already",
        "two lineages would run: stop the one that is wrong with --stop, or move from there",
    )


def check_data(source: Host, target: Host, plan: Plan) -> Iterator[Check]:
    """Whether every token cache is on the target, or can be brought there."""
    if plan.data_location:
        waits = plan.stands_by
        yield Check(
            "data",
            PASS if waits else WARN,
            f"read from {plan.data_location}; "
            + (
                "the rehearsal shows whether the target can" if waits else "whether the target can shows when it starts"
            ),
            "" if waits else "--mode warm finds out while the source trains on",
        )
    for digest in plan.data_digests:
        name = f"token cache {digest[:12]}"
        if host_files.has_manifest(target, host_files.data_directory(target, digest)):
            yield Check("data", PASS, f"{name}: the target has it")
        elif host_files.has_manifest(source, host_files.data_directory(source, digest)):
            yield Check("data", PASS, f"{name}: to copy, {plan.data_bytes / 1e6:.1f} MB in all")
        else:
            where = host_files.data_directory(source, digest)
            yield Check("data", FAIL, f"{name} is on neither host", f"it belongs in {where}: copy or build it there")


def _fit(source: Host, here: CheckpointStore, target: Host, plan: Plan) -> Iterator[Check]:
    yield from check_data(source, target, plan)
    try:
        # Listed and read in one go: a run that trains on replaces one checkpoint by the next.
        newest = here.newest_state()
        trainer = host_files.training_config(source, plan.run_id).get("trainer") or {}
    except MidstreamError as error:
        yield Check("divisibility", FAIL, error.message, error.hint or f"midstream --checkpoints {plan.run_id}")
        return
    if newest is None:
        yield Check(
            "divisibility", WARN, "no checkpoint yet: the axes are not known; the engine checks them before it compiles"
        )
        return
    manifest = records.Manifest.from_json(newest["manifest"], f"{source.name}: manifest of {newest['name']}")
    problems = batch_shape.check_axes(manifest.array_entries, trainer, plan.target_devices)
    if problems:
        for problem in problems:
            yield Check("divisibility", FAIL, problem, "choose a target with one of these device counts")
    else:
        yield Check("divisibility", PASS, f"every sharded axis divides over {plan.target_devices} devices")
