"""From a request to a plan: what would be moved, where to, in which shape, and what it would cost. No side effects."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from midstream.errors import HostError, MidstreamError, UsageError
from midstream.fleet.fleet_file import default_fleet_path
from midstream.migrate import host_files
from midstream.migrate.checkpoint_store import CheckpointStore, checkpoint_store_of, way
from midstream.migrate.execution import migration_directory
from midstream.migrate.host_group import hosts_of_run
from midstream.migrate.model import COLD, COMPILE_CACHE, LIVE, MODES, NO_ROUTE, Change, Plan, Request
from midstream.migrate.planning import (
    batch_shape,
    cost,
    measured_rates,
    memory_fit,
    schedule_change,
    source_config,
    source_run,
)
from midstream.migrate.planning.source_config import engine_flags
from midstream.migrate.proof import downtime_report
from midstream.remote.copy.allowlist import shown
from midstream_engine import records

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host import Host
    from midstream.hosts.host_pool import Hosts
    from midstream.watch.snapshot import Accelerator, HostView, RunView, Snapshot


def make_plan(fleet: Fleet, hosts: Hosts, snapshot: Snapshot, request: Request) -> Plan:
    """The plan for ``request``. Reads from source and target, changes nothing.

    UsageError where run, target, mode or checkpoint do not exist; MidstreamError where the move is impossible.
    """
    if request.mode not in MODES:
        raise UsageError(f"mode {request.mode!r} is not known", f"this version moves runs in mode {', '.join(MODES)}")
    target = fleet.target(request.target)
    if target.slurm is not None:
        raise UsageError(
            f"target {target.name} is an allocation of SLURM: its devices are not known before it runs",
            "--launch starts runs there; this version moves runs to hosts and to groups of hosts",
        )
    target_host = target.hosts[0]
    run = source_run.find_run(fleet, snapshot, request)
    for host in (run.host, *target.hosts):
        root = fleet.hosts[host].root
        if not root.startswith(("/", "~")):
            raise UsageError(
                f"root {root!r} of {host} is not absolute",
                "a migration runs in a process of its own: write it out",
            )
    returns = request.source_lost and target.hosts == (run.host,)  # to what was left behind there: see `_check_return`
    if run.host in target.hosts and not returns:
        raise UsageError(f"run {run.run_id} is on {run.host} already", "choose another target")
    source, destination = hosts.get(run.host), hosts.get(target_host)
    if run.status is None or run.fence is None:
        raise UsageError(
            f"run {run.run_id} on {run.host} has never started", f"midstream --launch CONFIG --on {target.name}"
        )
    source_hosts = hosts_of_run(fleet, source, run, replace(target, hosts=()) if returns else target)
    if request.mode == LIVE and len(source_hosts) + len(target.hosts) > 2:
        raise UsageError(
            "a live migration has one host on either side: states of several hosts are not compared step by step",
            "--mode warm moves groups of hosts",
        )

    given = engine_flags(request.overrides)
    store = given.get("trainer.checkpointer.base_path", fleet.store_of(target_host)).rstrip("/")
    here = source_run.shelf_of_source(fleet, source, run, request, store)
    there = checkpoint_store_of(fleet, destination, run.run_id, "" if store == "null" else store)
    source_run.check_stores(request, run, here.store, there.store)
    if returns:
        _check_return(request, run, here)
    config = host_files.training_config(source, run.run_id)
    stores = tuple(store for store in (here.store, there.store) if store)
    places = source_config.check_config(config, run.host, target.name, stores, given)
    trainer = config.get("trainer") or {}
    checkpoint = source_run.choose_checkpoint(source_run.shelved(run, source, here), request)
    newest, manifest, data = host_files.newest_state(source, here.newest_state(), run)

    source_devices = max(1, len(run.status.devices))
    devices = [device for name in target.hosts for device in _devices(snapshot.host(name), name)]
    target_devices, kind, memory = len(devices) or 1, devices[0].kind if devices else "", _memory(devices)
    batch_shape.batch_sizes(trainer.get("train_batch_size"), run.status.step)  # says so where it cannot be read
    rhythm, wanted = schedule_change.rhythm(config), schedule_change.rhythm(config, engine_flags(request.overrides))
    other = schedule_change.explain(rhythm, wanted, run.status.step)
    points = [{"start": start, "value": size} for start, size in wanted.points]
    batch, *later = batch_shape.batch_sizes(points, run.status.step)
    model_axis = int(trainer.get("model_axis_size") or 1)
    limit = int(trainer.get("per_device_parallelism") or -1)
    before = batch_shape.batch_shape(rhythm.size(run.status.step), source_devices, limit, model_axis)
    precision = given.get("trainer.mp") or trainer.get("mp")
    if "trainer.per_device_parallelism" in given:
        limit = _whole("trainer.per_device_parallelism", given["trainer.per_device_parallelism"])
        config = {**config, "trainer": {**trainer, "per_device_parallelism": limit}}
    if problem := memory_fit.check_precision(precision, kind):
        raise MidstreamError(
            problem,
            "choose other devices, or compute in float32, which is slower and no longer the same to the last bits: "
            "-- --trainer.mp f32",
        )
    after = batch_shape.batch_shape(batch, target_devices, limit, model_axis)
    if manifest is not None:
        after, _ = memory_fit.fitting_shape(manifest.array_entries, config, batch, target_devices, memory, kind)
    for size in later:  # a schedule that will not divide some day is refused today
        batch_shape.batch_shape(size, target_devices, limit, model_axis)

    data_bytes = sum(host_files.missing_data(source, destination, digest) for digest in data)
    size = manifest.size if manifest else 0
    sealed = checkpoint.step if checkpoint else None
    lost = max(0, run.status.step - sealed) if sealed is not None else 0
    known = measured_rates.measured(measured_rates.look_back(), run.run_id, run.host, target_host, request.mode, size)
    pace = measured_rates.pace_on(run.curve, run.lineage, target.name)
    known = known if pace is None else replace(known, step=pace)
    predicted = downtime_report.predict(run.curve, size, request.mode, known)
    step, first = downtime_report.step_seconds(run.curve)
    prices = (_price(fleet, source_hosts), _price(fleet, target.hosts))
    return Plan(
        migration=migration_directory.new_id(run.run_id),
        run_id=run.run_id,
        mode=request.mode,
        source=run.host,
        source_attempt=run.attempt,
        source_state=run.state,
        source_step=run.status.step,
        target=target.name,
        target_host=target_host,
        source_epoch=run.fence.epoch,
        epoch=run.fence.epoch + 1,
        checkpoint=checkpoint.name if checkpoint else "now",
        checkpoint_step=sealed,
        source_devices=source_devices,
        target_devices=target_devices,
        train_batch_size=batch,
        per_device_parallelism=after.per_device,
        accumulation=after.accumulation,
        overrides=request.overrides,
        changes=(
            *_changes(run, before, after, source_devices, target_devices, trainer, precision, wanted.steps),
            *other,
        ),
        route=_route(here, there, source, destination),
        source_store=here.store,
        target_store=there.store,
        checkpoint_bytes=size,
        data_digests=data,
        data_location="" if data else str((config.get("data") or {}).get("cache_dir") or ""),
        data_bytes=data_bytes,
        steps_lost=lost,
        predicted_seconds=predicted,
        cost_per_hour=prices,
        cost=cost.estimate(
            prices,
            prepare_seconds=downtime_report.preparing(data_bytes, size, request.mode, known, max(0.0, first - step)),
            downtime=sum(predicted.values()),
            step_before=step,
            step_after=known.step,
            tokens=batch * rhythm.seq_len,
            steps_left=max(0, wanted.steps - run.status.step),
        ),
        warnings=(
            *_warnings(run, snapshot, lost, not newest),
            *_of_the_mode(request, run, newest),
            *_other_cache(config, target.name, given),
        ),
        consent=(*_consent(request, run, newest, trainer), *_another_schedule(other, run.status.step), *places),
        source_lost=request.source_lost,
        certify_steps=request.certify_steps,
        healthy_steps=request.healthy_steps,
        fleet_file="" if fleet.path == str(default_fleet_path()) else fleet.path,
        created=time.time(),
        source_target=run.fence.owner or run.host,
        source_hosts=source_hosts,
        target_hosts=target.hosts,
    )


def _check_return(request: Request, run: RunView, here: CheckpointStore) -> None:
    """What a lost machine left in a bucket may come back to the host that has an older copy; nothing stands by beside
    that copy meanwhile. UsageError for anything else."""
    if not here.store:
        raise UsageError(f"run {run.run_id} is on {run.host} already, and no bucket has more of it", "another target")
    if request.mode != COLD:
        what = f"{run.host} has a copy of {run.run_id}, beside which nothing can stand by"
        raise UsageError(what, f"--mode cold brings what lies in {here.store} there")


def _route(here: CheckpointStore, there: CheckpointStore, source: Host, target: Host) -> str:
    """The way that the bytes will take, looked for by a short probe; why there is none, which the preflight refuses."""
    try:
        return way(here, there, source, target)
    except HostError as error:
        return f"{NO_ROUTE}{error.message}"


def check_ahead(
    fleet: Fleet, hosts: Hosts, snapshot: Snapshot, request: Request, store: str, devices: int | None
) -> None:
    """Refuse what can be refused while the target's hosts are not there yet: it would be made in vain. ``store``: where
    it would keep checkpoints; ``devices`` that it would have, None where that is not known. Errors of `make_plan`."""
    if request.mode not in MODES:
        raise UsageError(f"mode {request.mode!r} is not known", f"this version moves runs in mode {', '.join(MODES)}")
    run = source_run.find_run(fleet, snapshot, request)
    source = hosts.get(run.host)
    if run.status is None or run.fence is None:
        raise UsageError(
            f"run {run.run_id} on {run.host} has never started", f"midstream --launch CONFIG --on {request.target}"
        )
    here = source_run.shelf_of_source(fleet, source, run, request, store)
    source_run.check_stores(request, run, here.store, store)
    source_run.choose_checkpoint(source_run.shelved(run, source, here), request)
    if devices is None:
        return
    config = host_files.training_config(source, run.run_id)
    trainer = config.get("trainer") or {}
    wanted = schedule_change.rhythm(config, engine_flags(request.overrides))
    points = [{"start": start, "value": size} for start, size in wanted.points]
    for size in batch_shape.batch_sizes(points, run.status.step):
        batch_shape.batch_shape(size, devices, -1, int(trainer.get("model_axis_size") or 1))


def _price(fleet: Fleet, names: Sequence[str]) -> float | None:
    """Of all of them together, an hour; None where one has none."""
    prices = [fleet.hosts[name].price_per_hour for name in names]
    return sum(price for price in prices if price is not None) if None not in prices else None


LONG_REPLAY = 1000  # steps after which small differences may have grown


def _of_the_mode(request: Request, run: RunView, newest: str) -> tuple[str, ...]:
    """What to expect of a live migration. UsageError where there is nothing to overtake."""
    if request.mode != LIVE:
        return ()
    if not run.running or request.checkpoint != "now":
        why = f"it is {run.state}" if not run.running else f"--checkpoint {request.checkpoint} is behind it"
        raise UsageError(f"run {run.run_id} cannot be overtaken: {why}", "--mode warm moves it")
    gap = _steps_to_replay(run, newest)
    pace, _ = downtime_report.step_seconds(run.curve)
    replay = f"{gap} steps" if newest else "few steps"
    return (
        f"the target replays {replay} and has to be quicker than {pace:.3f} s a step; whether it is shows its "
        "rehearsal, and where it is not the move goes on as a warm migration",
    )


def _steps_to_replay(run: RunView, newest: str) -> int:
    point = records.parse_checkpoint_name(newest)
    return max(0, run.status.step - point[0]) if point and run.status else 0


def _consent(request: Request, run: RunView, newest: str, trainer: Mapping[str, Any]) -> tuple[str, ...]:
    """What a person has to agree to: a live migration recomputes the state: close to the source's, not equal."""
    if request.mode != LIVE:
        return ()
    asked = []
    if "16" in str(trainer.get("mp") or "f32") or "half" in str(trainer.get("mp")):
        asked.append(
            f"the run computes in {trainer.get('mp')}: losses are compared within 2e-2, and states drift apart"
        )
    gap = _steps_to_replay(run, newest)
    if gap > LONG_REPLAY:
        asked.append(f"{gap} steps are replayed: over so many, small differences may grow")
    return tuple(asked)


def _other_cache(config: Mapping[str, Any], target: str, given: Mapping[str, str]) -> tuple[str, ...]:
    """That the target does not use the compile cache that the config names: reading one is running it."""
    flag = COMPILE_CACHE.removeprefix("--")
    place = (config.get("trainer") or {}).get("jax_compilation_cache_dir")
    if not place or flag in given:
        return ()
    return (f"{target} reads no compiled programs from {shown(str(place))}: {COMPILE_CACHE} after -- names a cache",)


def _another_schedule(changes: tuple[Change, ...], step: int) -> tuple[str, ...]:
    """A run that is asked to be another one from here on: its batch or its steps change."""
    if not changes:
        return ()
    told = "; ".join(f"{change.name} {change.before} -> {change.after}" for change in changes if change.changed)
    return (f"from step {step} on the run is not the one that was begun: {told}",)


def _devices(host: HostView | None, name: str) -> tuple[Accelerator, ...]:
    if host is None or host.machine is None:
        reason = f": {host.error}" if host is not None and host.error else ""
        raise HostError(
            f"target {name} does not answer{reason}", f"midstream --status shows it; mend the connection to {name}"
        )
    return host.machine.accelerators


def _memory(devices: Sequence[Accelerator]) -> int | None:
    """Bytes of the smallest device; None where any is not known."""
    each = [memory_fit.device_memory(device.kind, device.memory_total) for device in devices]
    known = [memory for memory in each if memory is not None]
    return min(known) if known and len(known) == len(each) else None


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--{name} {text!r} is not a whole number", f"-- --{name} 8") from None


def _changes(
    run: RunView,
    before: batch_shape.BatchShape,
    after: batch_shape.BatchShape,
    source_devices: int,
    target_devices: int,
    trainer: Mapping[str, Any],
    precision: str | None,
    steps: int,
) -> tuple[Change, ...]:
    kind = run.status.devices[0].get("kind", "") if run.status and run.status.devices else ""
    return (
        Change("devices", f"{source_devices} {kind}".strip(), str(target_devices)),
        Change(
            "batch",
            str(before.train_batch_size),
            str(after.train_batch_size),
            "asked for: see what becomes of the schedule",
        ),
        Change("steps", str(trainer.get("num_train_steps", steps)), str(steps), "asked for: the schedule moves"),
        Change(
            "per device",
            str(before.per_device),
            str(after.per_device),
            "how the batch lies on the devices; changes no result",
        ),
        Change(
            "accumulation", str(before.accumulation), str(after.accumulation), "weighted by tokens; changes no result"
        ),
        Change(
            "precision",
            str(trainer.get("mp") or "f32"),
            str(precision or "f32"),
            "asked for: losses agree to the tolerance of the lower one",
        ),
    )


def _warnings(run: RunView, snapshot: Snapshot, lost: int, unsaved: bool) -> tuple[str, ...]:
    warnings = []
    if lost:
        warnings.append(f"{lost} steps after the chosen checkpoint are given up")
    if unsaved and run.running:
        warnings.append("the run has not saved yet: bytes and times are unknown until its first checkpoint")
    if not run.running:
        warnings.append(f"the source does not run ({run.state}): the move starts from its newest complete checkpoint")
    stale = [host.name for host in snapshot.hosts if host.link != "live"]
    if stale:
        warnings.append(f"not answering: {', '.join(stale)}; a later copy of the run there would not be seen")
    return tuple(warnings)


def _shown(name: str, hosts: Sequence[str]) -> str:
    return f"{name} ({', '.join(hosts)})" if len(hosts) > 1 else name


def describe(plan: Plan) -> list[str]:
    """The plan in lines for a person: what `--dry-run` prints and the wizard shows."""
    megabyte = 1e6
    state = f"{plan.checkpoint_bytes / megabyte:.1f} MB" if plan.checkpoint_bytes else "an unknown amount"
    source, target = _shown(plan.source, plan.source_hosts), _shown(plan.target, plan.target_hosts)
    stores = (plan.source_store, plan.target_store)
    keeps = [store or "on its host" for store in stores]
    lines = [
        f"migration  {plan.migration}",
        f"run        {plan.run_id}  step {plan.source_step} ({plan.source_state})",
        f"from       {source}  {plan.source_devices} devices  epoch {plan.source_epoch}",
        f"to         {target}  {plan.target_devices} devices  epoch {plan.epoch}",
        f"mode       {plan.mode}",
        f"checkpoint {plan.checkpoint}"
        + ("" if plan.checkpoint_step is not None else " (a final save when the source is sealed)"),
        f"copies     {state} of state, {plan.data_bytes / megabyte:.1f} MB of data",
        f"route      {plan.route}",
        *([f"keeps      checkpoints {' -> '.join(dict.fromkeys(keeps))}"] if any(stores) else []),
        f"loses      {plan.steps_lost} steps",
    ]
    for change in plan.changes:
        arrow = f"{change.before} -> {change.after}" if change.changed else f"{change.after} (kept)"
        note = f"  {change.note}" if change.note and change.changed else ""
        lines.append(f"{change.name:<10} {arrow}{note}")
    seconds = ", ".join(f"{name} {value:.1f}" for name, value in plan.predicted_seconds.items() if value)
    lines.append(f"downtime   about {plan.predicted_downtime:.0f} s ({seconds})")
    if plan.cost is not None:
        lines += [f"cost       {line}" for line in cost.describe(plan.cost)]
    lines += [f"warning    {warning}" for warning in plan.warnings]
    lines += [f"agree to   {asked} (--yes)" for asked in plan.consent]
    lines.append(f"same as    {plan.command()}")
    return lines
