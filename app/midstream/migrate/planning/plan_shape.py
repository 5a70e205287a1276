"""Shape of a migrated run: its batch on the target's devices, and its changes."""

from __future__ import annotations

from midstream.counts import count
from midstream.errors import HostError, UsageError
from midstream.migrate.journal.plan import Change, Shape
from midstream.migrate.journal.request import Request
from midstream.migrate.planning import batch_shape, memory_fit, schedule_change
from midstream.migrate.planning.plan_inputs import Ends, SourceContents
from midstream.migrate.planning.precision_changes import precision_changes
from midstream.watch.machine import Accelerator
from midstream.watch.snapshot import HostView, RunView, Snapshot
from midstream_core.json_types import RunConfig

UNKNOWN = "unknown"
LIMIT = "trainer.per_device_parallelism"


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
    return shape, _schedule_consent(schedule_changes, step)


def _schedule_consent(changes: tuple[Change, ...], step: int) -> tuple[str, ...]:
    """Return the consent that a changed batch size or number of steps needs."""
    if not changes:
        return ()
    listed = "; ".join(f"{change.name} {change.before} -> {change.after}" for change in changes if change.changed)
    return (f"from step {step} on the run differs from the one that was started: {listed}",)


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
