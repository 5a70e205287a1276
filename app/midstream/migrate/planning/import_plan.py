"""Plan of the import of another trainer's checkpoint, and of its migration.

The plan reads the source alone. It writes nothing on any host, and needs neither engine nor Python packages there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from midstream.errors import Exit, MidstreamError, RemoteError, UsageError
from midstream.fleet.fleet import Fleet
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.launch.engine_flags import checked_flags
from midstream.migrate.checkpoint_store import checkpoint_store_of
from midstream.migrate.journal.plan import Plan
from midstream.migrate.journal.request import Request
from midstream.migrate.modes.registry import mode_of
from midstream.migrate.planning.assemble import assemble
from midstream.migrate.planning.batch_shape import check_axes
from midstream.migrate.planning.foreign_config import NAMES, ForeignRun, foreign_run, with_parameters
from midstream.migrate.planning.plan_inputs import Ends, PlannedImport, SourceContents
from midstream.migrate.planning.progress import Pace
from midstream.stores.bucket import app_errors
from midstream.stores.bucket_access import access_for
from midstream.watch.snapshot import RunView, Snapshot
from midstream_core import records
from midstream_core.listed_checkpoint import ListedCheckpoint
from midstream_core.object_store.open_bucket import open_bucket
from midstream_core.object_store.urls import in_bucket, split_url
from midstream_host.bucket.checkpoint_files import BucketFiles
from midstream_host.trainers import checkpoint_survey
from midstream_host.trainers.checkpoint_survey import CheckpointSurvey

IMPORTABLE = "docs/how-to/import.md says what can be imported"  # a hint
SURVEY_TIMEOUT = 300.0  # seconds: a checkpoint may have many files on a slow disk


def plan_import(
    hosts: HostPool,
    snapshot: Snapshot,
    request: Request,
    path: str,
    *,
    config: str = "",
    cast_parameters: str = "",
    flags: Sequence[str] = (),
) -> Plan:
    """Plan a migration of the run that an import would make.

    Reads from both ends and changes nothing.

    Args:
        hosts: Connections to the fleet's hosts.
        snapshot: Present state of the fleet.
        request: The migration; its source is the host that has the checkpoint.
        path: The checkpoint there, or its URL in a bucket, which that host imports.
        config: For a checkpoint of Levanter's, the run's YAML on that host; empty: near the checkpoint.
        cast_parameters: Type that parameters are rounded to; empty: none.
        flags: All flags of the import, for the plan's command line.

    Raises:
        UsageError: The target does not exist, or cannot be the target of this migration.
        MidstreamError: There is no checkpoint that can be read, or it does not fit the target.
    """
    fleet = hosts.fleet
    mode = mode_of(request.mode)
    mode.check_import()
    target = fleet.target(request.target)
    flags_of_engine = checked_flags(request.run_id, request.overrides)
    if request.source in target.hosts:
        raise UsageError(f"{request.source} has the checkpoint already", "choose another target")
    copies = snapshot.copies(request.run_id)
    if copies:
        raise MidstreamError(
            f"a run {request.run_id} exists on {copies[0].host} already",
            f"midstream --migrate {request.run_id} --to {target.name} migrates it; rename PATH to import another one",
            Exit.REFUSED,
        )
    source, destinations = hosts.get(request.source), tuple(hosts.get(name) for name in target.hosts)
    destination = destinations[0]
    survey = read_survey(fleet, source, path, config)
    foreign = foreign_run(survey, source.name, flags_of_engine)
    if cast_parameters:
        foreign = with_parameters(foreign, cast_parameters)
    store = flags_of_engine.get("trainer.checkpointer.base_path", fleet.store_of(destination.name)).rstrip("/")
    here = checkpoint_store_of(fleet, source, request.run_id, "")
    there = checkpoint_store_of(fleet, destination, request.run_id, "" if store == "null" else store)
    name = records.checkpoint_name(survey.step, 1)
    run = _run(request, source.name, survey, foreign, name)
    mode.check_stores(request.run_id, here.store or there.store)
    assert run.status is not None
    assert run.fence is not None
    ends = Ends(
        run,
        run.status,
        run.fence,
        target,
        source,
        destinations,
        (source.name,),
        here,
        there,
        flags_of_engine,
        mode,
        survey.step,
        Pace(),
    )
    contents = SourceContents(
        config=foreign.config,
        owner_consent=(),
        consent=(),
        checkpoint=run.checkpoints[0],
        newest=name,
        arrays=foreign.arrays,
        checkpoint_bytes=foreign.state_bytes,
        data_digests=(),
        data_bytes=None if (size := _data_bytes(source, foreign)) is None else (size,) * len(ends.data_hosts),
        imported=PlannedImport((f"{source.name}:{path}", *flags), _warnings(snapshot, survey, foreign)),
    )
    plan = assemble(fleet, snapshot, replace(request, checkpoint="latest"), ends, contents)
    problems = check_axes(foreign.arrays, contents.trainer, plan.shape.target_devices)
    if problems:
        raise MidstreamError(problems[0], "choose a target with one of these device counts", Exit.REFUSED)
    return plan


def read_survey(fleet: Fleet, source: Host, path: str, config: str) -> CheckpointSurvey:
    """Survey a checkpoint of another trainer: on its host, or here for a bucket.

    Arguments are those of `plan_import`.

    Raises:
        MidstreamError: There is no checkpoint that can be read.
    """
    where = path if in_bucket(path) else f"{source.name}: {path}"
    try:
        if in_bucket(path):
            return _bucket_survey(fleet, path, config)
        return source.call(checkpoint_survey.survey, timeout=SURVEY_TIMEOUT)(path=path, config=config)
    except OSError:
        raise MidstreamError(f"{where} cannot be read", "is it the checkpoint's path?", Exit.REFUSED) from None
    except ValueError as error:
        raise MidstreamError(str(error), IMPORTABLE, Exit.REFUSED) from error
    except RemoteError as error:
        if error.kind in ("FileNotFoundError", "NotADirectoryError", "PermissionError"):
            message = f"{where} cannot be read"
            raise MidstreamError(message, "is it the checkpoint's path?", Exit.REFUSED) from error
        if error.kind != "ValueError":
            raise
        raise MidstreamError(error.message, IMPORTABLE, Exit.REFUSED) from error


def _bucket_survey(fleet: Fleet, url: str, config: str) -> CheckpointSurvey:
    """Survey a checkpoint in a bucket.

    Reads a listing, and the parts of objects that say what it is.
    """
    with app_errors():
        scheme, bucket, _ = split_url(url)
        if config and not config.startswith(f"{scheme}{bucket}/"):
            raise UsageError(
                f"--config {config} is not in the checkpoint's bucket", f"write {scheme}{bucket}/NAME, or copy it there"
            )
        with open_bucket(scheme + bucket, replace(access_for(fleet, url), public=True)) as client:
            return checkpoint_survey.survey_of(BucketFiles(client), url.rstrip("/"), config)


def _run(request: Request, host: str, survey: CheckpointSurvey, foreign: ForeignRun, name: str) -> RunView:
    """Return the run as the import will leave it: stopped, with one checkpoint."""
    status = records.Status(
        state=records.STOPPED,
        step=survey.step,
        process=0,
        boot_id="",
        pid=0,
        start_ticks=0,
        heartbeat=0.0,
        num_train_steps=int(foreign.config["trainer"]["num_train_steps"]),
    )
    checkpoint = ListedCheckpoint(name, survey.step, 1, complete=True, accepted=True, size=foreign.state_bytes, epoch=1)
    return RunView(request.run_id, host, records.first_fence(host), None, 1, status, False, (checkpoint,))


def _data_bytes(source: Host, foreign: ForeignRun) -> int | None:
    """Return the bytes of the run's data; None where they are not known."""
    if not foreign.data_known:
        return None
    sizes = source.call(checkpoint_survey.sizes, timeout=SURVEY_TIMEOUT)(paths=list(foreign.data_paths))
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _warnings(snapshot: Snapshot, survey: CheckpointSurvey, foreign: ForeignRun) -> tuple[str, ...]:
    lines = [
        f"it starts from step {survey.step} of this checkpoint: what its trainer ({NAMES[survey.kind]}) has done since "
        "is not migrated",
        *_places(survey),
        *foreign.warnings,
        "the import checks every setting and array, and may refuse what this plan has not read",
    ]
    stale = [host.name for host in snapshot.hosts if host.link != "live"]
    return (*lines, *([f"not answering: {', '.join(stale)}"] if stale else []))


def _places(survey: CheckpointSurvey) -> Iterator[str]:
    """Yield where checkpoints of Levanter were looked for, and where not."""
    if len(survey.looked) > 1:
        yield f"checkpoints were looked for in {' and '.join(survey.looked)}; the newest is {survey.directory}"
    if survey.unread:
        yield (
            f"temporary_base_path of its configuration, {survey.unread}, was not looked at: a newer checkpoint may be "
            "there (hint: import it by its own path, with --config)"
        )
