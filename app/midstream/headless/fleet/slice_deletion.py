"""Deletion of a slice by ``--delete``: name its runs, and save them if requested."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from midstream.errors import Exit, MidstreamError, UsageError
from midstream.fleet.fleet import KubernetesTarget
from midstream.headless.confirmation import can_ask, confirmed
from midstream.headless.fleet.pod_creation import delete_pods
from midstream.operations.fleet_snapshot import fleet_snapshot
from midstream.output import Output
from midstream.providers import fleet_slices
from midstream.suggestions import did_you_mean

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import HostPool
    from midstream.watch.snapshot import RunView, Snapshot


@dataclass(frozen=True)
class _Occupants:
    """The runs that train on a slice, and why more of them may be unknown."""

    runs: tuple[RunView, ...] = ()
    unknown: str = ""
    snapshot: Snapshot | None = None  # that shows the runs


def delete(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Delete a target's slice, or one by its path, with everything that runs there."""
    pods = fleet.targets.get(options.delete)
    if isinstance(pods, KubernetesTarget):
        return delete_pods(options.delete, pods, options, output)
    known = fleet.slices
    paths = {fleet_slices.slice_path(name, target): name for name, target in known.items()}
    if options.delete in known:
        name, place = options.delete, fleet_slices.slice_path(options.delete, known[options.delete])
    elif options.delete.count("/") == 2:
        name, place = paths.get(options.delete, ""), options.delete
    else:
        hint = did_you_mean(options.delete, known) or ", or ".join(["PROJECT/ZONE/NAME of a slice", *known])
        raise UsageError(f"{options.delete!r} is not a target of type tpu, gce or kubernetes", hint)
    found, hosts = _with_hosts(fleet, name, output)
    try:
        occupants = _occupants(found, hosts, name, place)
        for run in occupants.runs:
            output.value(
                {"event": "occupant", "run": run.run_id, "host": run.host, "step": run.step, "store": run.store}
            )
            output.message(f"midstream: {_described(run)}")
        if occupants.unknown:
            output.message(f"midstream: {occupants.unknown}")
        _save_first(hosts, occupants, options, output)
    finally:
        hosts.close()
    if not options.yes and not confirmed(f"Delete {place} and the data on its disks", output):
        training = f", where {', '.join(run.run_id for run in occupants.runs)} trains," if occupants.runs else ""
        hint = "--yes deletes it" + ("; with --save-first a run is saved and stopped before" if occupants.runs else "")
        raise MidstreamError(f"{place}{training} would be deleted with the data on its disks", hint, Exit.REFUSED)
    fleet_slices.delete(fleet, place, output.message)
    output.value({"event": "result", "ok": True, "deleted": place}, f"{place} is deleted and costs nothing more")
    return Exit.DONE


def _with_hosts(fleet: Fleet, name: str, output: Output) -> tuple[Fleet, HostPool]:
    """Return a fleet of the slice's workers, with connections; no hosts if unknown."""
    from midstream.hosts.host_pool import HostPool

    found = fleet
    if name:
        found = fleet_slices.with_slices(fleet, output.message, only=(name,), touch=False)
    workers = found.hosts_of(name) if name else ()
    only = dataclasses.replace(
        found,
        hosts={worker: found.hosts[worker] for worker in workers},
        targets={name: found.targets[name]} if name else {},
    )
    return only, HostPool(only)


def _occupants(fleet: Fleet, hosts: HostPool, name: str, place: str) -> _Occupants:
    """Look up which runs train on the hosts of the fleet.

    A host without an answer is no evidence that no run trains there.
    """
    if not name:
        return _Occupants(unknown=f"{place} is not a target of the fleet file: what trains there is unknown")
    if not fleet.hosts:
        missing = fleet.unavailable.get(name)
        if isinstance(missing, fleet_slices.SliceMissingError):
            return _Occupants()
        return _Occupants(unknown=f"what trains on {name} is unknown: {missing.message if missing else 'no workers'}")
    snapshot = fleet_snapshot(fleet, hosts, remember=False)
    unreachable = [host for host in snapshot.hosts if host.link != "live"]
    unknown = "; ".join(f"{host.name} does not answer ({host.error or 'no answer'})" for host in unreachable[:3])
    return _Occupants(
        _training(snapshot), f"what trains there may be unknown: {unknown}" if unreachable else "", snapshot
    )


def _training(snapshot: Snapshot) -> tuple[RunView, ...]:
    """Return one view of each run that trains on these hosts."""
    found: dict[str, RunView] = {}
    for run in snapshot.runs:
        if run.running:
            found.setdefault(run.run_id, run)
    return tuple(found.values())


def _described(run: RunView) -> str:
    complete = [each.step for each in run.checkpoints if each.complete]
    newest = f"its newest checkpoint is of step {max(complete)}" if complete else "it has no complete checkpoint"
    place = f"in {run.store}" if run.store else "on the slice's disks, which are deleted"
    kept = f"{newest}, {place}" if complete else newest
    return f"{run.run_id} trains on {run.host} at step {run.step}; {kept}"


def _save_first(hosts: HostPool, occupants: _Occupants, options: argparse.Namespace, output: Output) -> None:
    """Save and stop the runs if the user agrees.

    Raises:
        MidstreamError: It is wanted, and the checkpoint would be deleted with the slice, or cannot be saved.
    """
    from midstream.operations.stop import stop

    runs, snapshot = occupants.runs, occupants.snapshot
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
    wanted = [run for run in runs if run.store]
    names = ", ".join(run.run_id for run in wanted)
    offered = bool(wanted) and not options.save_first and not options.yes and can_ask(output)
    if not wanted or not (options.save_first or (offered and confirmed(f"Save and stop {names} first", output))):
        return
    for run in wanted:
        stopped = stop(hosts, snapshot, run, output.message)
        step, checkpoint = (stopped.status.step, stopped.status.checkpoint) if stopped.status else (0, "")
        output.value({"event": "saved", "run": run.run_id, "step": step, "checkpoint": checkpoint}, stopped.words)
