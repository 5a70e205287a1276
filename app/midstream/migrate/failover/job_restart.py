"""Restart of a run's SLURM job: save, stop, submit the next attempt.

The next attempt is a job of the same target.

Nothing is copied, and the fence stays as it is: the same owner continues under the same epoch.
"""

from __future__ import annotations

import time

from midstream.errors import HostError, MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.hosts.host_pool import HostPool
from midstream.install.errors import LaunchError
from midstream.launch.attempt_monitor import STOP_TIMEOUT, stop_run
from midstream.launch.host_group_start import prepare_target
from midstream.launch.launch_request import LaunchRequest
from midstream.launch.launch_run import launch_run
from midstream.launch.slurm_allocation import query_allocation
from midstream.migrate.modes.registry import COLD, mode_of
from midstream.migrate.planning import downtime_estimate
from midstream.migrate.planning.progress import pace_of
from midstream.watch.snapshot import RunView
from midstream_core import records
from midstream_host.runs import ownership, run_state

SUBMIT_TIMEOUT = 900.0  # seconds for which the submission is repeated: the run is stopped, and no one else starts it
SUBMIT_INTERVAL = 15.0  # seconds


def is_own_target(fleet: Fleet, run: RunView, target: str) -> bool:
    """Return whether the run trains as a job of this very target."""
    slurm = fleet.slurm_of(target)
    return slurm is not None and slurm.host == run.host and run.fence is not None and run.fence.owner == target


def stop_seconds(run: RunView) -> float:
    """Estimate the seconds until the run's engine has saved and stopped."""
    size = run.status.state_bytes if run.status is not None else 0
    predicted = downtime_estimate.predict(mode_of(COLD), pace_of(run.curve), size)
    return predicted["quiesce"] + predicted["save"]


def restart(hosts: HostPool, run: RunView, target: str) -> int:
    """Stop the run's attempt after a save, submit the next one and return its number.

    Return 0 where the run has reached its last step instead.

    What can be checked and installed is done before the stop.

    Args:
        hosts: Connections to the fleet's hosts.
        run: The run, whose attempt trains as a job of ``target``.
        target: The target.

    Raises:
        MidstreamError: It is not restarted; the message says whether it has been stopped.
    """
    chosen = hosts.fleet.target(target)
    assert chosen.slurm is not None
    host = hosts.get(run.host)
    description = host.call(run_state.describe)(root=host.root, run_id=run.run_id)
    if (
        not description.running
        or description.attempt != run.attempt
        or description.fence is None
        or description.fence.owner != target
    ):
        raise MidstreamError(f"attempt {run.attempt} of {run.run_id} does not run on {target} any more")
    lock = host.call(ownership.migration_lock)(root=host.root, run_id=run.run_id)
    if lock is not None and lock.epoch > description.fence.epoch and lock.expires > time.time():
        raise MidstreamError(
            f"run {run.run_id} is locked for {lock.owner} by migration {lock.migration}",
            f"midstream --continue {lock.migration}, or --rollback, where that migration was started",
        )
    query_allocation(host, target, chosen.slurm)  # SLURM accepts the flags
    prepare_target(hosts, chosen)
    ended = stop_run(hosts, run.host, run.run_id, run.attempt, timeout=STOP_TIMEOUT)
    if ended.state == records.FINISHED:
        return 0
    return _submit(hosts, run, target, ended.step)


def _submit(hosts: HostPool, run: RunView, target: str, step: int) -> int:
    """Submit the next attempt; repeat it while the cluster does not accept it.

    Raises:
        MidstreamError: No attempt could be submitted.
    """
    end = time.monotonic() + SUBMIT_TIMEOUT
    while True:
        try:
            host = hosts.get(run.host)
            number = host.call(run_state.running_attempt)(root=host.root, run_id=run.run_id)
            if number > run.attempt:  # submitted, and contact was lost before the answer
                return number
            # This process has just seen the run train and stop there: no other host can own it.
            return launch_run(hosts, LaunchRequest(target, run_id=run.run_id, agreed=True)).number
        except (HostError, LaunchError) as error:
            if time.monotonic() > end:
                raise MidstreamError(
                    f"run {run.run_id} is stopped at step {step}, and its next attempt could not be submitted to "
                    f"{target}: {error.message}",
                    f"midstream --restart {run.run_id}",
                ) from error
        time.sleep(SUBMIT_INTERVAL)
