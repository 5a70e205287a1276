"""Create the slice or the pods of a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from midstream.errors import MidstreamError
from midstream.providers import fleet_slices

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet

PODS = "pods"  # in place of a price class


@dataclass(frozen=True)
class CreatableTarget:
    """A target that does not exist, or was preempted, and that midstream may create."""

    target: str
    path: str  # PROJECT/ZONE/NAME, or KIND/NAME of pods
    accelerator_type: str
    price_class: str
    price: str  # text: the price per hour, and where it comes from; of pods what they are
    state: str = ""  # what is there instead, as its provider reports it
    pending: bool = False  # it was requested already: it is waited for
    manifest: str = ""  # of pods

    @property
    def question(self) -> str:
        """Question to the user: state, path and price."""
        what = f"\n{self.manifest}" if self.manifest else f" {self.price}"
        then = "midstream would wait for it" if self.pending else f"it would be created as {self.path}"
        return f"{self.state or f'{self.target} does not exist'}; {then}:{what}"

    @property
    def lasts(self) -> str:
        """Words on how long it lasts, and whether it costs money."""
        verb = "runs" if self.price_class == PODS else "costs money"
        return f"{verb} until midstream --delete {self.target}"


def creatable_slice(fleet: Fleet, name: str) -> CreatableTarget | None:
    """Return a target whose slice midstream may create; None for another one."""
    target = fleet.slices.get(name)
    if target is None or not target.create:
        return None
    path, price = fleet_slices.slice_path(name, target), fleet_slices.price_text(target)
    return CreatableTarget(name, path, target.kind, target.price_class, price)


def creatable_target(fleet: Fleet, name: str) -> CreatableTarget | None:
    """Return the target if it is missing and may be created; None if not.

    Raises:
        HostError: The cluster of a target with pods does not answer.
    """
    from midstream.fleet.job_pods import job_manifest
    from midstream.hosts.pod_job import missing_pods

    unavailable = fleet.unavailable.get(name)
    pending = isinstance(unavailable, fleet_slices.SlicePendingError)
    if pending or isinstance(unavailable, fleet_slices.SliceMissingError):
        missing = creatable_slice(fleet, name)
        return missing and replace(missing, state=unavailable.message, pending=pending)
    job = missing_pods(fleet, name)
    if job is None:
        return None
    return CreatableTarget(name, job.path, "", PODS, job.description, manifest=job_manifest(name, job.target).rstrip())


def create_target(
    fleet: Fleet, missing: CreatableTarget, say: Callable[[str], None], created: Callable[[], None] = lambda: None
) -> Fleet:
    """Create a target's slice or pods, and wait until its hosts can be reached.

    Args:
        fleet: The fleet.
        missing: The target.
        say: Gets lines of progress.
        created: Called as soon as the slice exists, and costs money.

    Returns:
        The fleet with the target's hosts.

    Raises:
        MidstreamError: It cannot be created, or not be reached; then the message says that it costs money.
    """
    from midstream.hosts.pod_job import missing_pods

    name = missing.target
    if missing.price_class == PODS:
        job = missing_pods(fleet, name)
        if job is not None:
            job.create(say)
        created()
        return fleet
    target = fleet.slices[name]
    fleet_slices.provider_of(target).create(name, target, say)
    created()
    try:
        complete = fleet_slices.with_slices(fleet, say, only=(name,))
        fleet_slices.wait_for_login(complete, name, say)
    except MidstreamError as error:
        message = f"{error.message}; {missing.path} costs money: midstream --delete {name}"
        raise MidstreamError(message, error.hint) from error
    return complete
