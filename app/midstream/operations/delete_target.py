"""Delete the slice or the pods of a target, and name what trains there."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from midstream.fleet.fleet import KubernetesTarget, SliceTarget
from midstream.providers import fleet_slices

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.watch.snapshot import RunView, Snapshot


@dataclass(frozen=True)
class Occupants:
    """The runs that train on a slice, and why more of them may be unknown."""

    runs: tuple[RunView, ...] = ()
    unknown: str = ""

    def lines(self) -> list[str]:
        """Return what is agreed to by the deletion."""
        return [*map(described, self.runs), *([self.unknown] if self.unknown else [])]


def occupants(snapshot: Snapshot, hosts: Collection[str]) -> Occupants:
    """Return what trains on these hosts.

    A host without an answer is no evidence that no run trains there.
    """
    runs: dict[str, RunView] = {}
    for run in snapshot.runs:
        if run.running and run.host in hosts:
            runs.setdefault(run.run_id, run)
    unreachable = [host for host in snapshot.hosts if host.name in hosts and host.link != "live"]
    named = "; ".join(f"{host.name} does not answer ({host.error or 'no answer'})" for host in unreachable[:3])
    return Occupants(tuple(runs.values()), f"what trains there may be unknown: {named}" if unreachable else "")


def not_a_target(place: str) -> str:
    """Return the line about a slice that no target names."""
    return f"{place} is not a target of the fleet file: what trains there is unknown"


def occupants_unknown(fleet: Fleet, name: str, place: str) -> Occupants:
    """Return what is known of a slice whose hosts are not."""
    if not name:
        return Occupants(unknown=not_a_target(place))
    missing = fleet.unavailable.get(name)
    if isinstance(missing, fleet_slices.SliceMissingError):
        return Occupants()
    return Occupants(unknown=f"what trains on {name} is unknown: {missing.message if missing else 'no workers'}")


def described(run: RunView) -> str:
    """Return what the deletion means for a run that trains on the slice."""
    complete = [checkpoint.step for checkpoint in run.checkpoints if checkpoint.complete]
    newest = f"its newest checkpoint is of step {max(complete)}" if complete else "it has no complete checkpoint"
    place = f"in {run.store}" if run.store else "on the slice's disks, which are deleted"
    return f"{run.run_id} trains on {run.host} at step {run.step}; {newest}" + (f", {place}" if complete else "")


def delete_target(fleet: Fleet, place: str, say: Callable[[str], None]) -> str:
    """Delete what a target has, or a slice by its path; return the outcome.

    Raises:
        MidstreamError: It could not be deleted.
    """
    target = fleet.targets.get(place)
    if isinstance(target, KubernetesTarget):
        from midstream.hosts.pod_job import PodJob

        job = PodJob(place, target)
        job.delete(say)
        return f"{job.path} is deleted"
    if isinstance(target, SliceTarget):
        place = fleet_slices.slice_path(place, target)
    fleet_slices.delete(fleet, place, say)
    return f"{place} is deleted and costs nothing more"
