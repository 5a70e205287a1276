"""Creation and deletion of the pods of Kubernetes targets by headless modes."""

from __future__ import annotations

import argparse

from midstream.errors import Exit, MidstreamError, UsageError
from midstream.fleet.fleet import Fleet, KubernetesTarget
from midstream.fleet.job_pods import job_manifest
from midstream.headless.confirmation import confirmed
from midstream.hosts.pod_job import PodJob, missing_pods
from midstream.json_events.fleet_events import CreatedEvent, DeletedEvent, KeptEvent
from midstream.json_events.result_event import DeleteResult
from midstream.output import Output


def create_pods(fleet: Fleet, options: argparse.Namespace, output: Output) -> None:
    """Create the pods of the target of --launch or --migrate if they do not exist.

    The user has to agree.

    Raises:
        MidstreamError: They do not exist, and were not created.
    """
    name = (options.launch and options.on) or (options.migrate and options.to) or ""
    job = missing_pods(fleet, name)
    if job is None:
        return
    manifest = job_manifest(name, job.target)
    output.message(f"midstream: {name} does not exist; it would be created as {job.path}:\n{manifest.rstrip()}")
    if options.dry_run:
        raise UsageError(
            f"{name} does not exist, so no migration to it can be planned",
            "with --yes and without --dry-run its pods are created",
            Exit.REFUSED,
        )
    if not options.yes and not confirmed(f"Create {job.path}", output):
        raise MidstreamError(f"{name} does not exist", "--yes creates its pods", Exit.REFUSED)
    job.create(output.message)
    options.created_pods = name
    output.event(CreatedEvent(target=name, slice=job.path, class_="pods"))


def settle_unused_pods(fleet: Fleet, options: argparse.Namespace, code: int, output: Output) -> None:
    """Delete pods that were created for a refused command.

    Keep them after a failed one. Reports either.
    """
    name = getattr(options, "created_pods", "")
    target = fleet.targets.get(name)
    if not isinstance(target, KubernetesTarget):
        return
    job = PodJob(name, target)
    if code in (Exit.REFUSED, Exit.USAGE) and not options.keep_slice:
        try:
            job.delete(output.message)
        except MidstreamError as error:
            output.message(f"midstream: {error}")
        else:
            output.event(DeletedEvent(target=name, slice=job.path))
            return
    output.event(KeptEvent(target=name, slice=job.path))
    output.message(f"midstream: {job.path} was created for this command and runs until midstream --delete {name}")


def delete_pods(name: str, target: KubernetesTarget, options: argparse.Namespace, output: Output) -> int:
    """Delete the Job or JobSet of a target, with everything that runs in its pods."""
    job = PodJob(name, target)
    if not options.yes and not confirmed(f"Delete {job.path} and what runs in its pods", output):
        raise MidstreamError(
            f"{job.path} would be deleted with what runs in its pods", "--yes deletes it", Exit.REFUSED
        )
    job.delete(output.message)
    output.event(DeleteResult(deleted=job.path), f"{job.path} is deleted")
    return Exit.DONE
