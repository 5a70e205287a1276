"""Assembly of a plan of what was found on both ends, without side effects."""

from __future__ import annotations

import time

from midstream.errors import HostError
from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_path import default_fleet_path
from midstream.hosts.host import Host
from midstream.migrate.checkpoint_store import CheckpointStore, copy_route
from midstream.migrate.journal import migration_directory
from midstream.migrate.journal.json_values import section
from midstream.migrate.journal.plan import NO_ROUTE, Identity, Plan, Route
from midstream.migrate.journal.request import Request
from midstream.migrate.planning.plan_estimate import estimate
from midstream.migrate.planning.plan_inputs import Ends, SourceContents
from midstream.migrate.planning.plan_policy import plan_policy
from midstream.migrate.planning.plan_shape import plan_shape
from midstream.watch.snapshot import Snapshot


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
    return Plan(
        identity=identify(fleet, ends, contents),
        shape=shape,
        route=plan_route(ends, contents),
        estimate=estimate(fleet, request, ends, contents, shape),
        policy=plan_policy(snapshot, request, ends, contents, consent),
    )


def identify(fleet: Fleet, ends: Ends, contents: SourceContents) -> Identity:
    run, checkpoint = ends.run, contents.checkpoint
    return Identity(
        migration=migration_directory.new_id(run.run_id),
        run_id=run.run_id,
        mode=ends.mode.name,
        source_epoch=ends.fence.epoch,
        epoch=ends.fence.epoch + 1,
        checkpoint=checkpoint.name if checkpoint else "now",
        checkpoint_step=checkpoint.step if checkpoint else None,
        fleet_file="" if fleet.path == str(default_fleet_path()) else fleet.path,
        created=time.time(),
        imports=contents.imported.words if contents.imported is not None else (),
    )


def plan_route(ends: Ends, contents: SourceContents) -> Route:
    run, target, data = ends.run, ends.target, contents.data_digests
    return Route(
        source=run.host,
        source_state=run.state,
        source_step=ends.done,
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


def _probe_route(here: CheckpointStore, there: CheckpointStore, source: Host, target: Host) -> str:
    """Find the route of the copy by a short probe.

    Returns `NO_ROUTE` and the reason where there is none.
    """
    try:
        return copy_route(here, there, source, target)
    except HostError as error:
        return f"{NO_ROUTE}{error.message}"
