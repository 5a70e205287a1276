"""Plan the migration of a run of another trainer. No side effects."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from midstream.counts import count
from midstream.errors import Exit, MidstreamError, UsageError
from midstream.fleet.fleet import Fleet
from midstream.format import duration
from midstream.migrate import host_files
from midstream.migrate.journal.plan import Plan, Policy, Shape, TrainerPlan
from midstream.migrate.journal.request import Request
from midstream.migrate.planning import source_checkpoint, source_run
from midstream.migrate.planning.assemble import identify, plan_route
from midstream.migrate.planning.complete_run import complete_warning
from midstream.migrate.planning.plan_estimate import trainer_estimate
from midstream.migrate.planning.plan_inputs import Ends, SourceContents
from midstream.migrate.planning.plan_policy import warnings_of
from midstream.migrate.planning.plan_shape import devices_of
from midstream.migrate.planning.progress import Pace
from midstream.migrate.planning.trainer_world import (
    check_data_iterator,
    hidden_devices,
    world_changes,
    world_of_source,
)
from midstream.trainers import conda_lock
from midstream.trainers.continuation import changes_of, processes_text, stored_for
from midstream.trainers.run_file_parser import as_text, from_value
from midstream.trainers.world import check_group, check_world, world_of
from midstream.watch.snapshot import RunView, Snapshot
from midstream_core import records
from midstream_core.json_types import JsonObject
from midstream_core.listed_checkpoint import newest_checkpoint
from midstream_host.allowlist import shown
from midstream_host.driver.run_file import NO, UNKNOWN, RunFile, StoredContents


def plan_trainer(fleet: Fleet, snapshot: Snapshot, request: Request, ends: Ends, config: JsonObject) -> Plan:
    """Plan the migration of another trainer's run.

    Errors as of `planner.make_plan`.

    Args:
        fleet: The fleet.
        snapshot: State of the fleet.
        request: The migration that is requested.
        ends: The run and both ends of the migration.
        config: The run's ``run.yaml``, decoded.
    """
    run, source = ends.run, ends.source
    try:
        described = from_value(config, f"run.yaml of {run.host}")
    except records.RecordError as error:
        raise MidstreamError(str(error), "the run directory needs its run.yaml") from None
    _check_request(request, ends, described)
    before = world_of_source(described, ends, snapshot)
    accelerators = [devices_of(snapshot.host(name), name) for name in ends.target.hosts]
    devices = [len(accelerator) or 1 for accelerator in accelerators]
    if len(set(devices)) > 1:
        raise MidstreamError(
            f"the numbers of devices on the hosts of {ends.target.name} differ: {', '.join(map(str, devices))}",
            "choose a target of equal hosts",
            Exit.REFUSED,
        )
    # CUDA_VISIBLE_DEVICES hides no TPU.
    hides = not any(accelerator.kind.startswith("TPU") for accelerator in accelerators[0])
    after = world_of(described, len(devices), devices[0], before.device_count if hides else 0)
    changed_batch = check_world(described, before, after)
    check_data_iterator(source, run.run_id, described, before, after)
    stored = stored_for(described, before.size, after.size)
    checkpoint = source_checkpoint.choose_checkpoint(run, request.checkpoint)
    owner_consent = source_run.ownership_consent(fleet, snapshot, run, checkpoint)
    newest = newest_checkpoint(run.usable)
    digests = (described.files_digest,) if described.files_digest else ()
    data = host_files.missing_data(source, ends.data_hosts, digests)
    contents = SourceContents(
        config=config,
        owner_consent=owner_consent,
        consent=(),
        checkpoint=checkpoint,
        newest=newest.name if newest else "",
        arrays=(),
        checkpoint_bytes=newest.size if newest else 0,
        data_digests=digests,
        data_bytes=data,
        steps_lost=max(0, ends.done - checkpoint.step) if checkpoint else 0,
    )
    route = replace(plan_route(ends, contents), data_location="")
    return Plan(
        identity=identify(fleet, ends, contents),
        shape=Shape(
            source_devices=before.device_count,
            target_devices=after.device_count,
            train_batch_size=described.batch.sequences,
            per_device_parallelism=after.per_device,
            accumulation=after.accumulation,
            num_train_steps=described.steps,
            changes=world_changes(described, before, after),
        ),
        route=route,
        estimate=trainer_estimate(request, ends, contents),
        policy=Policy(
            source_lost=request.source_lost,
            certify_steps=request.certify_steps,
            healthy_steps=request.healthy_steps,
            consent=(
                *contents.owner_consent,
                *filter(None, (changed_batch,)),
                *_consent(ends, described, before.size, after.size),
            ),
            warnings=(
                *warnings_of(snapshot, ends, contents),
                *hidden_devices(described, ends.target.name, after, devices[0]),
                *_warnings(ends, described, request, stored),
                *complete_warning(run.run_id, ends.mode, described, checkpoint),
                *(
                    f"{processes_text(before.size, after.size)}: {line}"
                    for line in changes_of(described, before.size, after.size)
                ),
            ),
        ),
        trainer=TrainerPlan(
            name=described.trainer,
            run_text=travelling_text(described),
            source_flags=tuple(before.flags()),
            target_flags=tuple(after.flags()),
            saves_on_signal=described.stop.saves,
            wait=described.stop.wait,
            same_world=(before.size, before.device_count) == (after.size, after.device_count),
            losses_may_differ=NO in (stored.data_position, stored.random_state),
            advice=tuple(stored.advice),
            batch_may_differ=bool(changed_batch),
            one_node=before.nodes == after.nodes == 1,
        ),
    )


def travelling_text(run: RunFile) -> str:
    """Return a run file's text as a target gets it: without the working directory."""
    return as_text(replace(run, directory=""))


def _check_request(request: Request, ends: Ends, run: RunFile) -> None:
    """Refuse what a run of another trainer cannot do. UsageError."""
    if request.overrides:
        raise UsageError(f"{ends.run.run_id} is a run of {run.trainer}: flags of the engine do not apply")
    if ends.source_store.store or ends.target_store.store:
        store = ends.source_store.store or ends.target_store.store
        raise UsageError(
            f"checkpoints of {run.trainer} are copied between hosts, and {store} is a bucket",
            f"remove store: of {ends.target.name} in the fleet file, or choose another target",
        )
    check_group(run, ends.target)
    ends.mode.check_trainer(ends.run.run_id, run.trainer, (*ends.source_hosts, *ends.target.hosts))
    if run.directory and not run.files_digest:
        raise UsageError(
            f"{ends.run.run_id} trains in {shown(run.directory)} of {ends.run.host}, and its run file names no files",
            "files: in the run file names the code and data that travel",
        )


def _consent(ends: Ends, run: RunFile, before: int, after: int) -> tuple[str, ...]:
    """Return what needs consent: what the target executes, and what is not stored."""
    lines = [f"{ends.target.name} executes: {shown(' '.join(run.resume))}"]
    if run.files_digest:
        lines.append(
            f"{ends.target.name} gets and executes the files of {ends.run.host}, digest {run.files_digest[:12]}"
        )
    lines += _installed(ends.target.name, run)
    stored, other = stored_for(run, before, after), f" of {processes_text(before, after)}" if after != before else ""
    if stored.data_position == NO:
        hint = f" ({stored.advice[0]})" if stored.advice else ""
        lacking = "do not store it" if run.stored.data_position == NO else f"do not store that{other}"
        lines.append(f"the order of the data may begin again: checkpoints of {run.trainer} {lacking}{hint}")
    if stored.random_state == NO:
        lacking = "the random state" + ("" if run.stored.random_state == NO else other)
        lines.append(f"dropout and augmentation may draw other numbers: checkpoints of {run.trainer} lack {lacking}")
    return tuple(lines)


def _installed(target: str, run: RunFile) -> list[str]:
    """Return what the target installs and from where, with the variables sent there."""
    if run.environment.requirements:
        digest = hashlib.sha256(run.environment.requirements.encode()).hexdigest()
        number = sum(not line.startswith((" ", "#")) for line in run.environment.requirements.splitlines() if line)
        return [f"{target} installs the run file's {count(number, 'requirement')}, digest {digest[:12]}"]
    lists = conda_lock.by_platform(run.environment.conda).values()
    if not lists:
        return []
    servers = sorted({server for conda_list in lists for server in conda_list.servers})
    number = max(len(conda_list.packages) + len(conda_list.pip) for conda_list in lists)
    variables = sorted({f"${name}" for conda_list in lists for name in conda_list.variables})
    return [
        f"{target} installs {count(number, 'package')} of a lock of conda from {shown(', '.join(servers))}"
        + (f", and sends the value of {', '.join(variables)} there" if variables else "")
    ]


def _warnings(ends: Ends, described: RunFile, request: Request, stored: StoredContents) -> tuple[str, ...]:
    run, has_standby = ends.run, ends.mode.has_standby
    lines: list[str] = []
    if run.running and request.checkpoint == "now":
        if described.stop.saves:
            lines.append(f"{described.trainer} saves on {described.stop.signal}: no step is given up")
            if has_standby and not any(checkpoint.complete for checkpoint in run.checkpoints):
                lines.append(
                    f"a rehearsal needs an earlier checkpoint, and there is none: if {described.trainer} saves only "
                    f"on {described.stop.signal}, choose --mode cold"
                )
        else:
            lines.append(_waiting(run, described, ends.pace))
    if stored.data_position == UNKNOWN:
        lines.append(
            f"whether checkpoints of {described.trainer} store the position of the data is not known: "
            + ("the rehearsal compares losses before anything is stopped" if has_standby
               else "--mode warm compares losses before anything is stopped")
        )  # fmt: skip
    if described.checkpoints.rule == "glob":
        lines.append(
            "whether the number in a checkpoint's name is that of its last step or of the next is not known: "
            + ("the rehearsal" if has_standby else "--mode warm")
            + " finds out before anything is stopped"
        )
    return tuple(lines)


def _waiting(run: RunView, described: RunFile, pace: Pace) -> str:
    """Describe how long the next periodic checkpoint is waited for."""
    steps = sorted({checkpoint.step for checkpoint in run.checkpoints if checkpoint.complete})
    interval = steps[-1] - steps[-2] if len(steps) > 1 else 0
    if not interval:
        return f"{described.trainer} saves nothing on a signal: its next checkpoint is waited for; no step is given up"
    about = f", {duration(interval * pace.step)}" if pace.step else ""
    return (
        f"{described.trainer} saves nothing on a signal: its next checkpoint is waited for, at most "
        f"{count(interval, 'step')}{about}; it trains until then, and no step before it is given up"
    )
