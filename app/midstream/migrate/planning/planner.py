"""Plan of a migration: run, target, batch shape, route, estimate and consent.

Planning has no side effects.
"""

from __future__ import annotations

from dataclasses import replace

from midstream.errors import UsageError
from midstream.fleet.fleet import Fleet, Target
from midstream.hosts.host_pool import HostPool
from midstream.launch.engine_flags import checked_flags
from midstream.launch.input_check import check_flags
from midstream.launch.slurm_allocation import device_kind, query_allocation, requested_devices
from midstream.migrate import host_files, source_config
from midstream.migrate.checkpoint_store import CheckpointStore, checkpoint_store_of
from midstream.migrate.host_group import hosts_of_run
from midstream.migrate.journal.json_values import section
from midstream.migrate.journal.plan import Plan
from midstream.migrate.journal.request import Request
from midstream.migrate.modes.mode import Mode
from midstream.migrate.modes.registry import mode_of
from midstream.migrate.planning import batch_shape, schedule_change, source_checkpoint, source_run, trainer_plan
from midstream.migrate.planning.assemble import assemble
from midstream.migrate.planning.plan_inputs import Allocated, Ends, SourceContents
from midstream.migrate.planning.progress import pace_of, steps_done
from midstream.watch.snapshot import RunView, Snapshot
from midstream_core.json_types import JsonValue
from midstream_host.driver.run_file import is_run_file


def make_plan(hosts: HostPool, snapshot: Snapshot, request: Request) -> Plan:
    """Plan a migration. Reads from source and target and changes nothing.

    Raises:
        UsageError: run, target, mode or checkpoint do not exist, or this version cannot do what is requested.
        MidstreamError: the migration is impossible.
    """
    ends = _find_ends(hosts, snapshot, request)
    config = host_files.training_config(ends.source, ends.run.run_id)
    if is_run_file(config):
        return trainer_plan.plan_trainer(hosts.fleet, snapshot, request, ends, config)
    check_flags(config, request.overrides)
    contents = _read_source(hosts.fleet, snapshot, request, ends, config)
    return assemble(hosts.fleet, snapshot, request, ends, contents)


def _find_ends(hosts: HostPool, snapshot: Snapshot, request: Request) -> Ends:
    """Find the run, its target and their checkpoint stores. Errors as of `make_plan`."""
    fleet, mode = hosts.fleet, mode_of(request.mode)
    target = fleet.target(request.target)
    requested = (
        requested_devices(target.name, target.slurm, fleet.hosts[target.slurm.host])
        if target.slurm is not None
        else None
    )
    run = source_run.find_run(fleet, snapshot, request)
    flags = checked_flags(run.run_id, request.overrides)
    for host in (run.host, *target.hosts):
        root = fleet.hosts[host].root
        if not root.startswith(("/", "~")):
            raise UsageError(
                f"root {root!r} of {host} is not absolute",
                "write an absolute path in the fleet file: a migration runs in a process of its own",
            )
    returns = request.source_lost and target.hosts == (run.host,)  # to the host of an older copy, see `_check_return`
    shared = not request.source_lost and fleet.is_login_node(run.host, target.name)
    if shared:
        _check_shared_root(run, target, mode)
    if run.host in target.hosts and not (returns or shared):
        raise UsageError(f"run {run.run_id} is already on {run.host}", "choose another target")
    source, destinations = hosts.get(run.host), tuple(hosts.get(name) for name in target.hosts)
    destination = destinations[0]
    if run.status is None or run.fence is None:
        raise UsageError(
            f"run {run.run_id} on {run.host} has never started", f"midstream --launch CONFIG --on {target.name}"
        )
    source_hosts = hosts_of_run(fleet, source, run, replace(target, hosts=()) if returns or shared else target)
    store = flags.get("trainer.checkpointer.base_path", fleet.store_of(destination.name)).rstrip("/")
    here = source_checkpoint.source_checkpoint_store(fleet, source, run, store, lost=request.source_lost)
    there = checkpoint_store_of(fleet, destination, run.run_id, "" if store == "null" else store)
    mode.check_stores(run.run_id, here.store or there.store)
    if returns:
        _check_return(run, here, mode)
    allocation = None
    if target.slurm is not None and requested is not None:
        queued = query_allocation(destination, target.name, target.slurm)
        requested = requested_devices(target.name, target.slurm, fleet.hosts[destination.name], queued)
        allocation = Allocated(requested, device_kind(requested, queued), queued.starts)
    return Ends(
        run, run.status, run.fence, target, source, destinations, source_hosts, here, there, flags, mode,
        steps_done(run), pace_of(run.curve), allocation,
    )  # fmt: skip


def _read_source(
    fleet: Fleet, snapshot: Snapshot, request: Request, ends: Ends, config: dict[str, JsonValue]
) -> SourceContents:
    """Read checkpoints and data of the run. Errors as of `make_plan`."""
    run, source = ends.run, ends.source
    stores = tuple(store for store in (ends.source_store.store, ends.target_store.store) if store)
    consent = source_config.check_config(config, run.host, ends.target.name, stores, ends.flags)
    checkpoint = source_checkpoint.choose_checkpoint(
        source_checkpoint.with_stored_checkpoints(run, source, ends.source_store), request.checkpoint
    )
    owner = source_run.ownership_consent(fleet, snapshot, run, checkpoint)
    newest, manifest, digests = host_files.newest_state(source, ends.source_store.newest_state(), run)
    data_bytes = host_files.missing_data(source, ends.data_hosts, digests)
    arrays, size = (manifest.array_entries, manifest.size) if manifest else ((), ends.status.state_bytes)
    lost = max(0, ends.done - checkpoint.step) if checkpoint else 0
    return SourceContents(
        config, owner, consent, checkpoint, newest, arrays, size, digests, data_bytes, steps_lost=lost
    )


def _check_shared_root(run: RunView, target: Target, mode: Mode) -> None:
    """Check that a run may go to an allocation whose login node has it.

    Source and target have one run directory, in which one attempt runs at a time, so the mode is cold.

    Raises:
        UsageError: The run is a job of this very target, or another mode is requested.
    """
    if run.fence is not None and run.fence.owner == target.name:
        raise UsageError(
            f"run {run.run_id} is already on {target.name}",
            f"midstream --guard {run.run_id} --to {target.name} restarts it there before its time limit",
        )
    if mode.has_standby:
        what = f"{target.name} has the root of {run.host}, where {run.run_id} trains, so that no standby can run there"
        raise UsageError(
            what,
            "--mode cold saves and stops the run, then submits its next job, and copies nothing; a second host of the "
            "same login node with another root: has room for a standby (docs/how-to/slurm.md)",
        )


def _check_return(run: RunView, here: CheckpointStore, mode: Mode) -> None:
    """Check that a lost run may return from its bucket to a host with an older copy.

    No standby can run beside that copy, so the mode is cold.

    Raises:
        UsageError: There is no bucket, or another mode is requested.
    """
    if not here.store:
        raise UsageError(
            f"run {run.run_id} is already on {run.host}, and no bucket has later checkpoints", "choose another target"
        )
    if mode.has_standby:
        what = f"{run.host} has a copy of {run.run_id}, so that no standby can run there"
        raise UsageError(what, f"--mode cold copies the checkpoints from {here.store}")


def check_ahead(hosts: HostPool, snapshot: Snapshot, request: Request, store: str, devices: int | None) -> None:
    """Check a request before the target's hosts are created.

    Args:
        hosts: Connections to the fleet's hosts.
        snapshot: Present state of the fleet.
        request: Request for the migration.
        store: Checkpoint store of the target; empty: its hosts' disks.
        devices: Number of devices of the target; None: not known.

    Raises:
        UsageError: As `make_plan`.
        MidstreamError: As `make_plan`.
    """
    mode = mode_of(request.mode)
    run = source_run.find_run(hosts.fleet, snapshot, request)
    flags = checked_flags(run.run_id, request.overrides)
    source = hosts.get(run.host)
    if run.status is None or run.fence is None:
        raise UsageError(
            f"run {run.run_id} on {run.host} has never started", f"midstream --launch CONFIG --on {request.target}"
        )
    here = source_checkpoint.source_checkpoint_store(hosts.fleet, source, run, store, lost=request.source_lost)
    mode.check_stores(run.run_id, here.store or store)
    source_checkpoint.choose_checkpoint(
        source_checkpoint.with_stored_checkpoints(run, source, here), request.checkpoint
    )
    if devices is None:
        return
    config = host_files.training_config(source, run.run_id)
    if is_run_file(config):
        return  # its processes are counted when the target is there
    trainer = section(config, "trainer")
    training_schedule = schedule_change.training_schedule(config, flags)
    points = [{"start": start, "value": size} for start, size in training_schedule.points]
    for size in batch_shape.batch_sizes(points, run.status.step):
        batch_shape.batch_shape(size, devices, -1, int(trainer.get("model_axis_size") or 1))
