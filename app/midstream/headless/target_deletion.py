"""`--delete`: name the runs of a slice, and save them if requested."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from midstream.errors import Exit, MidstreamError, UsageError
from midstream.fleet.fleet import KubernetesTarget
from midstream.headless.confirmation import can_ask, confirmed
from midstream.hosts.pod_job import PodJob
from midstream.json_events.fleet_events import OccupantEvent, SavedEvent
from midstream.json_events.result_event import DeleteResult
from midstream.operations.delete_target import delete_target, occupants, occupants_unknown
from midstream.operations.fleet_snapshot import fleet_snapshot
from midstream.output import Output
from midstream.providers import fleet_slices
from midstream.suggestions import did_you_mean

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import HostPool
    from midstream.watch.snapshot import RunView, Snapshot


def delete(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Delete a target's slice, or one by its path, with everything that runs there."""
    pods = fleet.targets.get(options.delete)
    if isinstance(pods, KubernetesTarget):
        return _delete(
            fleet, options.delete, PodJob(options.delete, pods).path, "what runs in its pods", options, output
        )
    slices = fleet.slices
    paths = {fleet_slices.slice_path(name, target): name for name, target in slices.items()}
    if options.delete in slices:
        name, place = options.delete, fleet_slices.slice_path(options.delete, slices[options.delete])
    elif options.delete.count("/") == 2:
        name, place = paths.get(options.delete, ""), options.delete
    else:
        hint = did_you_mean(options.delete, slices) or ", or ".join(["PROJECT/ZONE/NAME of a slice", *slices])
        raise UsageError(f"{options.delete!r} is not a target of type tpu, gce or kubernetes", hint)
    slice_fleet, hosts = _with_hosts(fleet, name, output)
    try:
        snapshot = fleet_snapshot(hosts, remember=False) if slice_fleet.hosts else None
        there = occupants(snapshot, slice_fleet.hosts) if snapshot else occupants_unknown(slice_fleet, name, place)
        for run in there.runs:
            output.event(OccupantEvent(run=run.run_id, host=run.host, step=run.step, store=run.store))
        for line in there.lines():
            output.message(f"midstream: {line}")
        _save_first(hosts, snapshot, there.runs, options, output)
    finally:
        hosts.close()
    return _delete(fleet, place, place, "the data on its disks", options, output, there.runs)


def _delete(
    fleet: Fleet,
    name: str,
    place: str,
    lost: str,
    options: argparse.Namespace,
    output: Output,
    runs: Sequence[RunView] = (),
) -> int:
    """Ask, then delete a slice or the pods of a target.

    Raises:
        MidstreamError: The user did not agree, or it could not be deleted.
    """
    if not options.yes and not confirmed(f"Delete {place} and {lost}", output):
        training = f", where {', '.join(run.run_id for run in runs)} trains," if runs else ""
        hint = "--yes deletes it" + ("; with --save-first a run is saved and stopped before" if runs else "")
        raise MidstreamError(f"{place}{training} would be deleted with {lost}", hint, Exit.REFUSED)
    output.event(DeleteResult(deleted=place), delete_target(fleet, name, output.message))
    return Exit.DONE


def _with_hosts(fleet: Fleet, name: str, output: Output) -> tuple[Fleet, HostPool]:
    """Return a fleet of the slice's workers, with connections; no hosts if unknown."""
    from midstream.hosts.host_pool import HostPool

    found_fleet = fleet
    if name:
        found_fleet = fleet_slices.with_slices(fleet, output.message, only=(name,), touch=False)
    workers = found_fleet.hosts_of(name) if name else ()
    only = dataclasses.replace(
        found_fleet,
        hosts={worker: found_fleet.hosts[worker] for worker in workers},
        targets={name: found_fleet.targets[name]} if name else {},
    )
    return only, HostPool(only)


def _save_first(
    hosts: HostPool, snapshot: Snapshot | None, runs: Sequence[RunView], options: argparse.Namespace, output: Output
) -> None:
    """Save and stop the runs if the user agrees.

    Raises:
        MidstreamError: It is wanted, and the checkpoint would be deleted with the slice, or cannot be saved.
    """
    from midstream.operations.stop import stop

    if not runs or snapshot is None:
        return
    lost = [run.run_id for run in runs if not run.store]
    if lost and options.save_first:
        raise MidstreamError(
            f"{', '.join(lost)} has no bucket: a checkpoint that is saved there is deleted with the slice",
            f"midstream --migrate {lost[0]} --to TARGET moves it away first",
            Exit.REFUSED,
        )
    if lost:
        output.message(f"midstream: midstream --migrate {lost[0]} --to TARGET moves it away first")
    saved = [run for run in runs if run.store]
    names = ", ".join(run.run_id for run in saved)
    offered = bool(saved) and not options.save_first and not options.yes and can_ask(output)
    if not saved or not (options.save_first or (offered and confirmed(f"Save and stop {names} first", output))):
        return
    for run in saved:
        stopped = stop(hosts, snapshot, run, output.message)
        step, checkpoint = (stopped.status.step, stopped.status.checkpoint) if stopped.status else (0, "")
        output.event(SavedEvent(run=run.run_id, step=step, checkpoint=checkpoint), stopped.words)
