"""The wait for a SLURM attempt's allocation, and its comparison with the plan.

The wait has no limit: a queue takes as long as it takes, and the user can roll back at any time.
"""

from __future__ import annotations

import time

from midstream.counts import count
from midstream.errors import ConnectionLostError, MidstreamError
from midstream.hosts.deadline import RECONNECT_STEP, Deadline
from midstream.launch.attempt_monitor import look
from midstream.migrate.host_group import HostGroup
from midstream.migrate.steps.migration import Migration
from midstream_core import records
from midstream_host.runs import run_state, slurm

QUERY_INTERVAL = 5.0  # seconds between two looks at the job
WAIT_STEP = 0.5  # seconds between two looks for a requested rollback
UNKNOWN_TIMEOUT = 600.0  # seconds that SLURM may not know a job of which there is a status
UNKNOWN = "UNKNOWN"  # state of a job that SLURM does not know


def wait_in_queue(migration: Migration, group: HostGroup, attempt: int) -> None:
    """Wait until the attempt's job has its nodes.

    Returns at once where the group's target is no SLURM allocation.

    A login node that does not answer is no evidence: the wait goes on. Neither is a job that SLURM does not know: its
    controller may not answer, or the job ended minutes ago. Then the engine's status decides, if there is one.

    Raises:
        MidstreamError: The job has ended before it ran, or the attempt has none.
        RollbackRequested: The user has requested a rollback.
    """
    if group.target.slurm is None:
        return
    said, contact, unknown = "", True, _unknown()
    while True:
        migration.check_requests()
        job, host = None, group.lookup_first()
        try:
            host.connect()
            job = host.call(slurm.job_of_attempt)(root=host.root, run_id=migration.plan.run_id, attempt=attempt)
            contact = True
            if job is None:
                raise MidstreamError(
                    f"attempt {attempt} of {migration.plan.run_id} on {group.target.name} has no job of SLURM",
                    f"see {host.name}:{group.paths.attempt(attempt).dir}",
                )
        except ConnectionLostError as error:
            if contact:
                migration.note(f"{error.message}; the job stays in the queue")
            contact = False
        if job is not None:
            if job.runs:
                if said:
                    migration.note(f"job {job.job} has started on {group.target.name}")
                return
            if job.waits:
                unknown = _unknown()
            else:
                status = host.call(run_state.status)(host.root, migration.plan.run_id, attempt).status
                over = job.state != UNKNOWN or unknown.count()
                if status is not None and (over or status.state in records.ENDED):
                    return  # it ran, and what the engine left says why it ended
                if job.state != UNKNOWN:
                    log = look(host, migration.plan.run_id, attempt).log  # without a log, the job's own output
                    output = f"its output: {group.first.name}:{group.paths.attempt(attempt).dir}/job.txt"
                    raise MidstreamError(
                        f"job {job.job} on {group.target.name} ended before its engine started: {job.state} "
                        f"({job.reason}){f': {log[-1].strip()}' if log else ''}",
                        output if log else "it had not started: scancel, or the cluster's administrator, ended it",
                    )
            words = _waiting(job)
            if words != said:
                migration.note(words)
                said = words
        _pause(migration)


def _unknown() -> Deadline:
    return Deadline(UNKNOWN_TIMEOUT, RECONNECT_STEP)


def _waiting(job: slurm.JobState) -> str:
    if job.state == UNKNOWN:
        return f"SLURM reports no job {job.job}: it has ended, or the cluster's controller does not answer"
    wait = job.started - time.time()
    when = f", expected to start in about {max(1.0, wait / 60):.0f} min" if wait > 0 else ""
    return job.describe() + when


def _pause(migration: Migration) -> None:
    end = time.monotonic() + QUERY_INTERVAL
    while time.monotonic() < end:
        migration.check_requests()
        time.sleep(WAIT_STEP)


def check_devices(migration: Migration, group: HostGroup, status: records.Status | None) -> None:
    """Check that an allocation has the devices that the plan was made for.

    Raises:
        MidstreamError: It has another number of them.
    """
    if group.target.slurm is None or group is not migration.target_group or status is None or not status.devices:
        return
    planned, devices = migration.plan.shape.target_devices, len(status.devices)
    kinds = ", ".join(sorted({str(device.get("kind", "")) for device in status.devices}))
    if devices != planned:
        raise MidstreamError(
            f"the allocation of {group.target.name} has {count(devices, 'device')} ({kinds}), and the plan was made "
            f"for {planned}",
            f"correct sbatch: of target {group.target.name} in the fleet file, then plan again",
        )
    migration.note(f"the allocation of {group.target.name} has {count(devices, 'device')} ({kinds}), as planned")
