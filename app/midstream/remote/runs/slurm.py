"""Jobs of SLURM: submit, query, signal. Runs on the login node; standard library only.

An attempt that is a job has ``slurm.json`` (``{job, submitted}``) in its directory. Its processes run on other machines
that share the file system: their heartbeats show that they run and, before the first one, the state of the job.
"""

from __future__ import annotations

import dataclasses
import os
import posixpath
import re
import subprocess
import time
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from midstream.remote.declarations import reads
from midstream_engine import records

JOB = "slurm.json"
SCRIPT, RANK = "job.sh", "rank.sh"
COMMAND_TIMEOUT = 60.0  # seconds
HEARTBEAT_TIMEOUT = 60.0  # seconds; file systems may lag
CACHE_TIME = 10.0  # seconds for which a job's state is cached
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "RESIZING", "SUSPENDED")
RUNNING = ("RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT")


@dataclasses.dataclass(frozen=True)
class JobState:
    """State and reason of a job, in SLURM's words."""

    job: str
    state: str
    reason: str


_cached: Dict[str, Tuple[float, JobState]] = {}


class SlurmError(Exception):
    """A command of SLURM failed; the message is its last line of stderr."""


def submit(path: records.AttemptPaths, flags: Sequence[str], script: str, rank: str, env: Mapping[str, str]) -> str:
    """Write the scripts of the job and its processes, submit it with ``sbatch``, return its id."""
    records.write_bytes(posixpath.join(path.dir, RANK), rank.encode())
    records.write_bytes(posixpath.join(path.dir, SCRIPT), script.encode())
    output = _run(["sbatch", "--parsable", *flags, posixpath.join(path.dir, SCRIPT)], env)
    match = re.search(r"^(\d+)", output.strip().splitlines()[-1] if output.strip() else "")
    if match is None:
        raise SlurmError("sbatch names no job: {!r}".format(output.strip()[:200]))
    records.write_json(posixpath.join(path.dir, JOB), {"job": match.group(1), "submitted": time.time()})
    return match.group(1)


def job_of(path: records.AttemptPaths) -> Optional[str]:
    """Id of the attempt's job; None where it is no job."""
    value = records.read_json_or_none(posixpath.join(path.dir, JOB))
    return str(value["job"]) if value else None


def state(job: str) -> JobState:
    """The state of a job: from the queue, then from the accounting; ``UNKNOWN`` where neither has it."""
    found = _cached.get(job)
    if found is None or time.monotonic() - found[0] > CACHE_TIME:
        found = (time.monotonic(), _query(job))
        _cached[job] = found
    return found[1]


def _query(job: str) -> JobState:
    for argv in (
        ["squeue", "--noheader", "--jobs", job, "--format", "%T|%r"],
        ["sacct", "--noheader", "--parsable2", "--allocations", "--jobs", job, "--format", "State,ExitCode"],
    ):
        try:
            output = _run(argv).strip()
        except SlurmError:  # squeue drops ended jobs after some minutes; not every cluster has accounting
            continue
        if output:
            word, _, reason = output.splitlines()[0].partition("|")
            return JobState(job, word.split()[0], reason)
    return JobState(job, "UNKNOWN", "")


def is_running(path: records.AttemptPaths, status: Optional[records.Status]) -> bool:
    """Return whether a process of the attempt runs on the cluster, or will run.

    Evidence is a fresh heartbeat of a job that SLURM still has; before the first heartbeat, that job alone.
    """
    job = job_of(path)
    if job is None:
        return False
    if status is not None and (status.state in records.ENDED or time.time() - status.heartbeat >= HEARTBEAT_TIMEOUT):
        return False
    found = state(job).state
    return found in WAITING + RUNNING or (status is not None and found == "UNKNOWN")


def signal_job(job: str, name: str) -> bool:
    """Signal the job's processes; SIGKILL ends the job. Return whether SLURM accepted it."""
    flags = [] if name == "SIGKILL" else ["--signal", name.replace("SIG", "")]
    try:
        _run(["scancel", *flags, job])
    except SlurmError:
        return False
    _cached.pop(job, None)
    return True


@reads()
def commands() -> Dict[str, str]:
    """Version of each command of SLURM, or "!" and why it does not run."""
    found: Dict[str, str] = {}
    for name in ("sbatch", "srun", "squeue", "scancel", "sacct"):
        try:
            found[name] = _run([name, "--version"]).strip()
        except SlurmError as error:
            found[name] = "!" + str(error)
    return found


def _run(argv: Sequence[str], env: Optional[Mapping[str, str]] = None) -> str:
    try:
        done = subprocess.run(list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=dict(os.environ, **(env or {})), timeout=COMMAND_TIMEOUT, check=False)  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise SlurmError("{} did not answer within {:.0f} s".format(argv[0], COMMAND_TIMEOUT)) from error
    except OSError as error:
        raise SlurmError("{}: {}".format(argv[0], error.strerror)) from error
    if done.returncode:
        words: List[str] = done.stderr.decode(errors="replace").strip().splitlines()
        raise SlurmError("{}: {}".format(argv[0], words[-1] if words else "exit code {}".format(done.returncode)))
    return done.stdout.decode(errors="replace")


def described(path: records.AttemptPaths) -> Optional[JobState]:
    """The state of an attempt's job; None where the attempt is no job."""
    job = job_of(path)
    return None if job is None else state(job)
