"""Attempts of a run on this host: the claim on a number, its inputs and its start."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from typing import Mapping, Optional, Sequence

from midstream_core import records
from midstream_core.json_types import JsonObject
from midstream_host.declarations import repeatable
from midstream_host.runs import run_state, slurm, slurm_submission
from midstream_host.runs.attempt_secrets import put_secrets, secrets_file
from midstream_host.runs.process_start import detached, spawn, with_setup
from midstream_host.runs.slurm_commands import SlurmError

RUN_DIRECTORY = "MIDSTREAM_RUN_DIRECTORY"  # environment variable: base of relative paths in the config
WORK = "work-"  # prefix of working directories in the attempt's directory
EXIT_TIMEOUT = 30.0  # seconds from a process's last status to its exit


@repeatable("a second call finds the process that the first one started")
def start(
    root: str,
    run_id: str,
    number: int,
    argv: Sequence[str],
    env: Mapping[str, str],
    setup: Sequence[str] = (),
    config: Optional[str] = None,
    command: Optional[JsonObject] = None,
    process: int = 0,
    group: Sequence[str] = (),
    secrets: Optional[Mapping[str, str]] = None,
    epoch: int = 0,
) -> records.ProcessIdentity:
    """Start a process of an attempt in a session of its own and return its identity.

    Its output is appended to the attempt's log. It starts in a new, empty directory: programs read files of their
    working directory (modules, settings of W&B or uv), and copies write other hosts' files into the run's directory.

    If this process was started already, its identity is returned: contact was lost before the first answer.

    Args:
        root: Root of this host.
        run_id: The run.
        number: The attempt, which the caller has claimed.
        argv: The program and its arguments.
        env: Added to this process' environment.
        setup: Shell lines to evaluate before the program, in the same process.
        config: Text of the run's config, written where there is none.
        command: JSON of the attempt's first command.
        process: Number of the process in ``group``.
        group: Hosts of the attempt's processes, in their order.
        secrets: Written to a file that only its owner can read, for the engine's supervisor.
        epoch: Epoch under which the attempt is to commit; 0: not checked.

    Raises:
        RefusedError: Another attempt of the run runs here, or the run has passed to another owner; the claim on the
            number is withdrawn.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    attempt = paths.attempt(number)
    full_argv = with_setup(argv, setup)
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "PYTHONPATH")}
    environment.update(env)
    _wait_for_ends(root, run_id)
    _refuse_running(paths, number, besides_it=True)
    with records.locked(paths.lock):
        before = records.read_json_or_none(attempt.launched(process))
        if before is not None:
            return records.ProcessIdentity.from_json(before, attempt.launched(process))
        _refuse_passed_on(paths, number, epoch)
        _refuse_running(paths, number, besides_it=process > 0)
        _write_inputs(paths, number, config, command)
        put_secrets(secrets_file(root, run_id, number, str(process)), secrets or {})
        launched = attempt.launched(process)
        note = {"process": process, "group": list(group)} if group else {}
        work = tempfile.mkdtemp(prefix="{}{}-".format(WORK, process), dir=attempt.dir)
        return spawn(detached(full_argv), environment, work, attempt.log(process), launched, note)


@repeatable("a second call finds the attempt's job")
def submit(
    root: str,
    run_id: str,
    number: int,
    flags: Sequence[str],
    script: str,
    rank: str,
    config: Optional[str] = None,
    command: Optional[JsonObject] = None,
    secrets: Optional[Mapping[str, str]] = None,
    epoch: int = 0,
) -> str:
    """Submit an attempt as a job of SLURM and return the job's id.

    If the attempt has a job already, its id is returned: contact was lost before the first answer.

    Args:
        root: Root of this host.
        run_id: The run.
        number: The attempt, which the caller has claimed.
        flags: Flags of sbatch.
        script: Text of the job's script.
        rank: Text of the script of each process.
        config: Text of the run's config, written where there is none.
        command: JSON of the attempt's first command.
        secrets: Written to a file that only its owner can read, for the engine's supervisor.
        epoch: Epoch under which the attempt is to commit; 0: not checked.

    Raises:
        RefusedError: Another attempt of the run runs here, or the run has passed to another owner; the claim on the
            number is released.
        SlurmError: The job was not submitted; the claim is released.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    attempt = paths.attempt(number)
    _wait_for_ends(root, run_id)
    _refuse_running(paths, number, besides_it=True)
    with records.locked(paths.lock):
        before = slurm.job_of(attempt)  # submitted already: contact was lost before the first answer arrived
        if before is not None:
            return before
        _refuse_passed_on(paths, number, epoch)
        _refuse_running(paths, number, besides_it=False)
        _write_inputs(paths, number, config, command)
        put_secrets(secrets_file(root, run_id, number), secrets or {})
        try:
            return slurm_submission.submit(attempt, flags, script, rank)
        except SlurmError:
            put_secrets(secrets_file(root, run_id, number), {})
            shutil.rmtree(attempt.dir)
            raise


def _refuse_running(paths: records.RunPaths, number: int, besides_it: bool) -> None:
    """Raise RefusedError where an attempt of the run runs here, and release the claim.

    Callers need not have the run's lock: a process that is stopped or suspended may hold it. ``besides_it``: the
    attempt ``number`` itself may run.
    """
    running = run_state.running_attempt(paths.root, paths.run_id)
    if running and not (besides_it and running == number):
        release_claim(paths.root, paths.run_id, number)
        raise run_state.RefusedError("attempt {} of {} runs here already".format(running, paths.run_id))


def _refuse_passed_on(paths: records.RunPaths, number: int, epoch: int) -> None:
    """Raise RefusedError where the run has passed to a later owner.

    Call with the run's lock held.
    """
    fence = records.Fence.read_or_none(paths.fence)
    if epoch and fence is not None and fence.epoch > epoch:
        release_claim(paths.root, paths.run_id, number)
        raise run_state.RefusedError(
            "run {} belongs to {} (ownership {}) by now; an attempt of ownership {} is not started".format(
                paths.run_id, fence.owner, fence.epoch, epoch
            )
        )


def _wait_for_ends(root: str, run_id: str) -> None:
    """Wait while an attempt that has reported its end still runs.

    The attempt may be another host's on this machine: its statuses came with the run's history.
    """
    deadline = time.monotonic() + EXIT_TIMEOUT
    while time.monotonic() < deadline:
        running = run_state.running_attempt(root, run_id)
        status = run_state.status(root, run_id, running).status if running else None
        if status is None or status.state not in records.ENDED:
            return
        job = slurm.described(records.RunPaths(root, run_id).attempt(running))
        if job is not None and job.waits:  # it was requeued, and starts again
            return
        time.sleep(0.1)


def _write_inputs(
    paths: records.RunPaths,
    number: int,
    config: Optional[str],
    command: Optional[JsonObject],
) -> None:
    """Write the config and the first command before the engine starts."""
    if not os.path.exists(paths.config):
        if config is None:
            raise FileNotFoundError("run {} has no config: {} is missing".format(paths.run_id, paths.config))
        records.write_bytes(paths.config, config.encode(), mode=0o600)
    path = paths.attempt(number).command_file
    if command is not None and not os.path.exists(path):  # another process' start wrote it here; a newer one stays
        records.write_json(path, dict(command))


@repeatable("it removes a directory only where that is empty")
def release_claim(root: str, run_id: str, number: int) -> None:
    """Release the claim on an attempt that started no process."""
    with contextlib.suppress(OSError):  # not empty: a process was started
        os.rmdir(records.RunPaths(root, records.check_run_id(run_id)).attempt(number).dir)
