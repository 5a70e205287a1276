"""Parts of a plan, without side effects: identity, batch, route, estimate, policy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from midstream.counts import count
from midstream.errors import HostError, UsageError
from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_path import default_fleet_path
from midstream.format import duration
from midstream.hosts.host import Host
from midstream.install.environment import EnvironmentNeeds, environment_needs
from midstream.launch.engine_flags import engine_flags
from midstream.migrate import stages
from midstream.migrate.checkpoint_store import CheckpointStore, copy_route, same_store
from midstream.migrate.journal import cost, migration_directory
from midstream.migrate.journal.json_values import section
from midstream.migrate.journal.plan import NO_ROUTE, Change, Estimate, Identity, Plan, Policy, Route, Shape
from midstream.migrate.journal.request import Request
from midstream.migrate.modes.registry import mode_of
from midstream.migrate.modes.work import Source, Work
from midstream.migrate.planning import (
    batch_shape,
    downtime_estimate,
    measured_rates,
    memory_fit,
    plan_estimate,
    schedule_change,
)
from midstream.migrate.planning.consent import (
    other_cache,
    schedule_consent,
    steps_to_replay,
    warnings_of,
)
from midstream.migrate.planning.plan_inputs import Ends, SourceContents
from midstream.migrate.planning.precision_changes import before_and_after, precision_changes
from midstream.migrate.planning.source_run import ownership_consent, steps_done
from midstream.watch.snapshot import Accelerator, HostView, RunView, Snapshot
from midstream_core.json_types import RunConfig

UNKNOWN = "unknown"
LIMIT = "trainer.per_device_parallelism"
CONCURRENCY = 32  # hosts that are requested at the same time


def identify(fleet: Fleet, request: Request, ends: Ends, contents: SourceContents) -> Identity:
    run, checkpoint = ends.run, contents.checkpoint
    return Identity(
        migration=migration_directory.new_id(run.run_id),
        run_id=run.run_id,
        mode=request.mode,
        source_epoch=ends.fence.epoch,
        epoch=ends.fence.epoch + 1,
        checkpoint=checkpoint.name if checkpoint else "now",
        checkpoint_step=checkpoint.step if checkpoint else None,
        fleet_file="" if fleet.path == str(default_fleet_path()) else fleet.path,
        created=time.time(),
        imports=contents.imported.words if contents.imported is not None else (),
    )


def plan_shape(
    snapshot: Snapshot, request: Request, ends: Ends, contents: SourceContents
) -> tuple[Shape, tuple[str, ...]]:
    """Divide the batch over the target's devices, and list the consent it needs.

    A changed schedule needs consent.

    Raises:
        MidstreamError: The batch does not divide, or the devices cannot compute in the run's precision.
    """
    run, step, trainer, flags = ends.run, ends.status.step, contents.trainer, ends.flags
    config = contents.config
    devices = [device for name in ends.target.hosts for device in devices_of(snapshot.host(name), name)]
    if ends.allocation is not None:
        devices = list(ends.allocation.accelerators)
    source_devices, target_devices = max(1, len(ends.status.devices)), len(devices) or 1
    kind, memory = devices[0].kind if devices else "", memory_fit.smallest_memory(devices)
    batch_shape.batch_sizes(trainer.get("train_batch_size"), step)  # raises if it cannot be read
    schedule, requested = schedule_change.training_schedule(config), schedule_change.training_schedule(config, flags)
    schedule_changes = schedule_change.explain(schedule, requested, step)
    points = [{"start": start, "value": size} for start, size in requested.points]
    batch, *later = batch_shape.batch_sizes(points, step)
    model_axis = int(trainer.get("model_axis_size") or 1)
    limit = int(trainer.get("per_device_parallelism") or -1)
    before = batch_shape.batch_shape(schedule.size(step), source_devices, limit, model_axis)
    precision = flags.get("trainer.mp") or trainer.get("mp")
    if LIMIT in flags:
        limit = _integer(LIMIT, flags[LIMIT])
        config = {**config, "trainer": {**trainer, "per_device_parallelism": limit}}
    memory_fit.require_precision(trainer.get("mp"), precision, kind)
    after, needed = batch_shape.batch_shape(batch, target_devices, limit, model_axis), None
    overrides, fits = request.overrides, ""
    if contents.arrays:
        fit = contents.arrays, config, [batch, *later], target_devices, memory, kind
        after, needed, most = memory_fit.fitting_division(*fit)
        if most is not None:
            overrides = (*overrides, f"--{LIMIT}", str(most))
        elif LIMIT not in flags and limit > 0 and memory is not None:  # it may be of a migration to smaller devices
            free = {**config, "trainer": {**trainer, "per_device_parallelism": -1}}
            more = memory_fit.fitting_division(fit[0], free, *fit[2:])[0].per_device
            if more > after.per_device:
                fits = f"; without the run's limit up to {count(more, 'example')} at a time: -- --{LIMIT} -1"
    for size in later:  # refuse now what a later size of the schedule would refuse then
        batch_shape.batch_shape(size, target_devices, limit, model_axis)
    changes = _changes(run, before, after, source_devices, target_devices, trainer, requested.steps)
    shape = Shape(
        source_devices=source_devices,
        target_devices=target_devices,
        train_batch_size=batch,
        per_device_parallelism=after.per_device,
        accumulation=after.accumulation,
        num_train_steps=requested.steps,
        overrides=overrides,
        changes=(*changes, *precision_changes(trainer, flags), *schedule_changes),
        memory=needed.describe_on(memory, kind) + fits if needed is not None else "",
    )
    return shape, schedule_consent(schedule_changes, step)


def plan_route(ends: Ends, contents: SourceContents) -> Route:
    run, target, data = ends.run, ends.target, contents.data_digests
    return Route(
        source=run.host,
        source_state=run.state,
        source_step=steps_done(ends.run),
        target=target.name,
        target_host=target.hosts[0],
        probed=_probe_route(ends.source_store, ends.target_store, ends.source, ends.destination),
        source_target=ends.fence.owner or run.host,
        source_hosts=ends.source_hosts,
        target_hosts=target.hosts,
        source_store=ends.source_store.store,
        target_store=ends.target_store.store,
        data_digests=data,
        data_location="" if data else str(section(contents.config, "data").get("cache_dir") or ""),
    )


def estimate(fleet: Fleet, request: Request, ends: Ends, contents: SourceContents, shape: Shape) -> Estimate:
    """Estimate bytes, downtime, duration and cost of a migration.

    The estimate is made from what the run and earlier migrations have measured.

    Args:
        fleet: The fleet.
        request: The migration that is requested.
        ends: The run and both ends of the migration.
        contents: What the source has of the run.
        shape: Devices and batch on both sides, and what changes of the run.
    """
    run, mode, size = ends.run, request.mode, contents.checkpoint_bytes
    done, target = steps_done(run), ends.target
    rates = measured_rates.rates_between(
        measured_rates.past_migrations(), run.run_id, run.host, target.hosts[0], mode, size
    )
    pace = measured_rates.step_seconds_on(run.curve, run.lineage, target.name)
    rates = rates if pace is None else replace(rates, step=pace)
    step, _ = downtime_estimate.step_seconds(run.curve)
    lost = max(0, done - contents.checkpoint.step) if contents.checkpoint else 0
    schedule, requested = (
        schedule_change.training_schedule(contents.config),
        schedule_change.training_schedule(contents.config, ends.flags),
    )
    steps_left = max(0, requested.steps - done)
    needs = _environment_needs(fleet, ends)
    work = Work(
        mode=mode,
        checkpoint_bytes=size,
        data_bytes=contents.data_bytes,
        copies_checkpoint=contents.checkpoint is not None,
        shared_store=same_store(ends.source_store, ends.target_store),
        further_hosts=len(ends.data_hosts) - 1,
        environment_ready=needs.ready,
        steps_compared=min(request.certify_steps, lost),
        healthy_steps=min(request.healthy_steps, steps_left),
        replayed_steps=steps_to_replay(run, contents.newest),
        step=step,
        compile=plan_estimate.compile_seconds(run.curve, ends.status.compiled_seconds),
    )
    predicted, unknown = plan_estimate.downtime_seconds(
        work,
        downtime_estimate.predict(
            run.curve, size, mode, rates, running=run.running, copied_bytes=work.copied_bytes(rates)
        ),
        rates,
    )
    downtime = None if unknown else sum(predicted.values())
    durations = plan_estimate.durations(work, downtime, rates)
    prices = (_price(fleet, ends.source_hosts), _price(fleet, target.hosts))
    return Estimate(
        checkpoint_bytes=size,
        data_bytes=max(contents.data_bytes or (0,)),
        steps_lost=lost,
        predicted_seconds=predicted,
        cost_per_hour=prices,
        cost=cost.estimate(
            prices,
            prepare_seconds=mode_of(mode).preparation_seconds(
                work.sent_data(rates), size, rates, work.compile or 0.0, work.copied_bytes(rates)
            ),
            downtime=sum(predicted.values()),
            step_before=step,
            step_after=rates.step,
            tokens=shape.train_batch_size * schedule.seq_len,
            steps_left=steps_left,
        ),
        unknown=unknown,
        duration={stages.IMPORT: None, **durations} if contents.imported is not None else durations,
        assumptions=plan_estimate.assumptions(work, rates, run.host, target.name),
        environment_ready=needs.ready,
        install_bytes=needs.download,
    )


def _environment_needs(fleet: Fleet, ends: Ends) -> EnvironmentNeeds:
    """Return what has to be installed on the target's hosts, together."""

    def needs_of(host: Host) -> EnvironmentNeeds:
        try:
            return environment_needs(host, fleet.hosts[host.name])
        except HostError:
            return EnvironmentNeeds(None, 0)  # the preflight reports why

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        needs = list(pool.map(needs_of, ends.data_hosts))
    readiness = [host_needs.ready for host_needs in needs if host_needs.ready is not None]
    ready = all(readiness) if len(readiness) == len(needs) or not all(readiness) else None
    return EnvironmentNeeds(ready, sum(host_needs.download for host_needs in needs))


def assemble(fleet: Fleet, snapshot: Snapshot, request: Request, ends: Ends, contents: SourceContents) -> Plan:
    """Make a plan of both ends and what the source has.

    Errors as of `planner.make_plan`.

    Args:
        fleet: The fleet.
        snapshot: State of the fleet.
        request: The migration that is requested.
        ends: The run and both ends of the migration.
        contents: What the source has of the run.
    """
    shape, consent = plan_shape(snapshot, request, ends, contents)
    if contents.imported is None:
        consent = (*ownership_consent(fleet, snapshot, ends.run, contents.checkpoint), *consent)
    estimated = estimate(fleet, request, ends, contents, shape)
    return Plan(
        identity=identify(fleet, request, ends, contents),
        shape=shape,
        route=plan_route(ends, contents),
        estimate=estimated,
        policy=plan_policy(snapshot, request, ends, contents, estimated.steps_lost, consent),
    )


def plan_policy(
    snapshot: Snapshot, request: Request, ends: Ends, contents: SourceContents, lost: int, consent: tuple[str, ...]
) -> Policy:
    """Collect warnings and consent.

    Args:
        snapshot: State of the fleet.
        request: The migration that is requested.
        ends: The run and both ends of the migration.
        contents: What the source has of the run.
        lost: Steps after the chosen checkpoint.
        consent: Consent that the owner and a changed schedule need.
    """
    run, newest = ends.run, contents.newest
    if contents.imported is not None:
        return Policy(
            certify_steps=request.certify_steps,
            healthy_steps=request.healthy_steps,
            consent=consent,
            warnings=contents.imported.warnings,
        )
    mode, source = mode_of(request.mode), _source_of(request, run, newest, contents.trainer)
    mode.check_source(source)
    return Policy(
        source_lost=request.source_lost,
        certify_steps=request.certify_steps,
        healthy_steps=request.healthy_steps,
        consent=(
            *mode.consent(source),
            *consent,
            *contents.consent,
        ),
        warnings=(
            *warnings_of(run, snapshot, lost, not newest),
            *mode.warnings(source),
            *_queue_warnings(request, ends),
            *other_cache(contents.config, ends.target.name, ends.flags),
        ),
    )


def _source_of(request: Request, run: RunView, newest: str, trainer: RunConfig) -> Source:
    """Return the state of the run of which the mode judges.

    Args:
        request: The migration that is requested.
        run: The run.
        newest: Its newest checkpoint; empty: none.
        trainer: Section of its configuration.
    """
    step, _ = downtime_estimate.step_seconds(run.curve)
    return Source(
        run_id=run.run_id,
        running=run.running,
        state=run.state,
        checkpoint=request.checkpoint,
        saved=bool(newest),
        replayed_steps=steps_to_replay(run, newest),
        step=step,
        precisions=before_and_after(trainer, engine_flags(request.overrides)),
    )


def _queue_warnings(request: Request, ends: Ends) -> tuple[str, ...]:
    """Return warnings on an allocation's devices, and a cold migration's queue wait."""
    if ends.allocation is None:
        return ()
    described = f"{ends.target.name} is a SLURM allocation of {ends.allocation.requested.describe()}"
    lines = [f"{described}, as its flags of sbatch request; it is checked when the allocation starts"]
    wait = duration(max(0.0, ends.allocation.starts - time.time()))
    shared = ends.source is ends.destinations[0]
    return (*lines, *mode_of(request.mode).queue_warnings(wait, shared=shared))


def _probe_route(here: CheckpointStore, there: CheckpointStore, source: Host, target: Host) -> str:
    """Find the route of the copy by a short probe.

    Returns `NO_ROUTE` and the reason where there is none.
    """
    try:
        return copy_route(here, there, source, target)
    except HostError as error:
        return f"{NO_ROUTE}{error.message}"


def _price(fleet: Fleet, names: Sequence[str]) -> float | None:
    """Return the price of the hosts together, an hour; None where one has no price."""
    prices = [fleet.hosts[name].price_per_hour for name in names]
    return sum(price for price in prices if price is not None) if None not in prices else None


def devices_of(host: HostView | None, name: str) -> tuple[Accelerator, ...]:
    if host is None or host.machine is None:
        reason = f": {host.error}" if host is not None and host.error else ""
        raise HostError(
            f"target {name} does not answer{reason}", f"midstream --status shows it; restore the connection to {name}"
        )
    return host.machine.accelerators


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--{name} {text!r} is not an integer", f"-- --{name} 8") from None


def _changes(
    run: RunView,
    before: batch_shape.BatchShape,
    after: batch_shape.BatchShape,
    source_devices: int,
    target_devices: int,
    trainer: RunConfig,
    steps: int,
) -> tuple[Change, ...]:
    kind = run.status.devices[0].get("kind", "") if run.status and run.status.devices else ""
    is_known = bool(run.status and run.status.devices)  # not of an imported run
    return (
        Change("devices", f"{source_devices} {kind}".strip() if is_known else UNKNOWN, str(target_devices)),
        Change(
            "batch",
            str(before.train_batch_size),
            str(after.train_batch_size),
            "requested: see the schedule below",
        ),
        Change("steps", str(trainer.get("num_train_steps", steps)), str(steps), "requested: the schedule changes"),
        Change(
            "per device",
            str(before.per_device) if is_known else UNKNOWN,
            str(after.per_device),
            "division of the batch over devices; changes no result",
        ),
        Change(
            "accumulation",
            str(before.accumulation) if is_known else UNKNOWN,
            str(after.accumulation),
            "weighted by tokens; changes no result",
        ),
    )
