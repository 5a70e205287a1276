"""Pods that a guard creates for a migration, and deletes if the run never arrives."""

from __future__ import annotations

from collections.abc import Callable

from midstream.errors import HostError, MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.hosts.pod_job import PodJob, missing_pods

START_TIMEOUT = 600.0  # seconds until all pods run: other targets of the guard are tried then

Report = Callable[[str, str, str], None]  # kind of the event, target, message


def create(fleet: Fleet, name: str, agreed: bool, report: Report) -> PodJob | None:
    """Create the pods of target ``name`` if they do not exist, and return them.

    None where nothing was created.

    Args:
        fleet: The fleet.
        name: A target of any type.
        agreed: The user has agreed to all consent that a plan needs.
        report: Receives what is done.

    Raises:
        MidstreamError: They would have to be created, and the user has not agreed, or the cluster refuses it.
    """
    job = missing_pods(fleet, name)
    if job is None:
        return None
    if not agreed:
        raise MidstreamError(f"it does not exist, and would be created as {job.path}", "--guard with --yes creates it")
    report("creating", name, f"{name} does not exist: creating {job.description}")
    job.create(lambda line: report("creating", name, line), timeout=START_TIMEOUT)
    return job


def delete(job: PodJob | None, report: Report, *, needed: bool = False) -> None:
    """Delete pods that were created for a migration which did not bring the run there.

    ``needed``: another migration may bring the run there, and they are not deleted.
    """
    if job is None:
        return
    if needed:
        report("kept", job.name, f"another migration may use {job.name}; midstream --delete {job.name} deletes it")
        return
    try:
        job.delete(lambda line: report("deleted", job.name, line))
    except HostError as error:
        report("kept", job.name, f"{error.message}; midstream --delete {job.name} deletes it")
