"""A SLURM cluster from its login node: submit a job, ask for it, signal it. Runs there; standard library only.

An attempt that is a job has ``slurm.json`` (``{job, submitted}``) in its directory. Its processes run on other machines
that share the file system, so that no process table tells whether they live: their heartbeats do, and before the first
one SLURM's own word.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from midstream_engine import records

JOB = "slurm.json"
SCRIPT, RANK = "job.sh", "rank.sh"
CALL = 60.0  # seconds for one of SLURM's commands
FRESH = 60.0  # seconds within which a heartbeat of another machine is a sign of life; file systems may lag
CACHED = 10.0  # seconds for which SLURM is not asked again
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "RESIZING", "SUSPENDED")
RUNNING = ("RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT")

_told: Dict[str, Tuple[float, Dict[str, str]]] = {}


class SlurmError(Exception):
    """A command of SLURM failed; its own words."""


def submit(path: records.AttemptPaths, flags: Sequence[str], script: str, rank: str, env: Mapping[str, str]) -> str:
    """Write the job's script and what each of its processes runs, and hand it to ``sbatch``; the job's id."""
    records.write_bytes(posixpath.join(path.dir, RANK), rank.encode())
    records.write_bytes(posixpath.join(path.dir, SCRIPT), script.encode())
    said = _run(["sbatch", "--parsable", *flags, posixpath.join(path.dir, SCRIPT)], env)
    match = re.search(r"^(\d+)", said.strip().splitlines()[-1] if said.strip() else "")
    if match is None:
        raise SlurmError("sbatch names no job: {!r}".format(said.strip()[:200]))
    records.write_json(posixpath.join(path.dir, JOB), {"job": match.group(1), "submitted": time.time()})
    return match.group(1)


def job_of(path: records.AttemptPaths) -> Optional[str]:
    """The attempt's job; None where it is no job."""
    value = records.read_json_or_none(posixpath.join(path.dir, JOB))
    return str(value["job"]) if value else None


def state(job: str) -> Dict[str, str]:
    """``{state, reason}`` in SLURM's words: of the queue, and once it has left that, of the accounting. ``UNKNOWN``
    where neither says anything."""
    found = _told.get(job)
    if found is None or time.monotonic() - found[0] > CACHED:
        found = (time.monotonic(), _ask(job))
        _told[job] = found
    return found[1]


def _ask(job: str) -> Dict[str, str]:
    for argv in (
        ["squeue", "--noheader", "--jobs", job, "--format", "%T|%r"],
        ["sacct", "--noheader", "--parsable2", "--allocations", "--jobs", job, "--format", "State,ExitCode"],
    ):
        try:
            said = _run(argv).strip()
        except SlurmError:  # squeue forgets a job some minutes after its end; not every cluster keeps accounts
            continue
        if said:
            word, _, reason = said.splitlines()[0].partition("|")
            return {"state": word.split()[0], "reason": reason}
    return {"state": "UNKNOWN", "reason": ""}


def is_running(path: records.AttemptPaths, status: Optional[records.Status]) -> bool:
    """Whether a process of the attempt runs on some machine of the cluster, or will: a heartbeat that is fresh, of a
    job that SLURM still has; before the first one that job alone."""
    job = job_of(path)
    if job is None:
        return False
    if status is not None and (status.state in records.ENDED or time.time() - status.heartbeat >= FRESH):
        return False
    said = state(job)["state"]
    return said in WAITING + RUNNING or (status is not None and said == "UNKNOWN")


def signal_job(job: str, name: str) -> bool:
    """Signal the job's processes; SIGKILL ends the job. Whether SLURM took it."""
    flags = [] if name == "SIGKILL" else ["--signal", name.replace("SIG", "")]
    try:
        _run(["scancel", *flags, job])
    except SlurmError:
        return False
    _told.pop(job, None)
    return True


def commands() -> Dict[str, str]:
    """What a preflight wants to know: the version of each command, or why it does not run."""
    found = {}
    for name in ("sbatch", "srun", "squeue", "scancel", "sacct"):
        try:
            found[name] = _run([name, "--version"]).strip()
        except SlurmError as error:
            found[name] = "!" + str(error)
    return found


def _run(argv: Sequence[str], env: Optional[Mapping[str, str]] = None) -> str:
    try:
        done = subprocess.run(list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=dict(os.environ, **(env or {})), timeout=CALL, check=False)  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise SlurmError("{} did not answer within {:.0f} s".format(argv[0], CALL)) from error
    except OSError as error:
        raise SlurmError("{}: {}".format(argv[0], error.strerror)) from error
    if done.returncode:
        words: List[str] = done.stderr.decode(errors="replace").strip().splitlines()
        raise SlurmError("{}: {}".format(argv[0], words[-1] if words else "exit code {}".format(done.returncode)))
    return done.stdout.decode(errors="replace")


def described(path: records.AttemptPaths) -> Optional[Dict[str, Any]]:
    """``{job, state, reason}`` of an attempt that is a job."""
    job = job_of(path)
    return None if job is None else dict(state(job), job=job)
