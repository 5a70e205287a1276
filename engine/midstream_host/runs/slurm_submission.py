"""Submission of an attempt as a job of SLURM.

Runs on the login node; standard library only.

``sbatch`` may report an error, or be killed, and the controller has accepted the job all the same. Two jobs of one
attempt would be two engines that write the same files. So only the script of the job that ``slurm.json`` names starts
an engine; a job that was submitted without a record is found by its script's path, and recorded or cancelled.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import time
from typing import List, Sequence

from midstream_core import records
from midstream_host.runs import slurm
from midstream_host.runs.slurm import SCRIPT
from midstream_host.runs.slurm_commands import SlurmError, named, run

RANK = "rank.sh"


def submit(path: records.AttemptPaths, flags: Sequence[str], script: str, rank: str) -> str:
    """Write the scripts of a job, submit it with ``sbatch`` and return its id.

    Args:
        path: Paths of the attempt; the scripts are written into its directory.
        flags: Flags of ``sbatch``.
        script: Text of the job's script.
        rank: Text of the script of its processes.

    Raises:
        SlurmError: It was not submitted.
    """
    strays = _jobs_of(path, flags)  # of an attempt of this number that was given up
    for stray in strays:
        number, cluster = named(stray)
        with contextlib.suppress(SlurmError):  # it ends by itself when it starts
            run(["scancel", *cluster, number])
    records.write_bytes(posixpath.join(path.dir, RANK), rank.encode())
    records.write_bytes(posixpath.join(path.dir, SCRIPT), script.encode())
    try:
        output = run(["sbatch", "--parsable", *flags, posixpath.join(path.dir, SCRIPT)])
    except SlurmError:
        jobs = [job for job in _jobs_of(path, flags) if job not in strays]
        if len(jobs) != 1:
            raise
        output = jobs[0]
    match = re.search(r"^(\d+(?:;[\w.-]+)?)", output.strip().splitlines()[-1] if output.strip() else "")
    if match is None:
        raise SlurmError("sbatch names no job: {!r}".format(output.strip()[:200]))
    records.write_json(posixpath.join(path.dir, slurm.JOB), {"job": match.group(1), "submitted": time.time()})
    return match.group(1)


def _jobs_of(path: records.AttemptPaths, flags: Sequence[str]) -> List[str]:
    """Return the ids of the jobs in the queue that run the attempt's script.

    There are none where the queue is not known.
    """
    cluster = _cluster(flags)
    words = ["--clusters", cluster] if cluster else []
    argv = ["squeue", *words, "--noheader", "--user", str(os.getuid()), "--states", "all", "--format", "%i|%T|%o"]
    try:
        lines = run(argv).splitlines()
    except SlurmError:
        return []
    cluster = "" if "," in cluster else cluster
    jobs: List[str] = []
    for line in lines:
        if line.startswith("CLUSTER:"):  # of the jobs that follow: the flags may name several clusters
            cluster = line.partition(":")[2].strip()
        number, word, script = [*line.split("|", 2), "", ""][:3]
        if slurm.is_script_of(script, path) and not slurm.JobState(number, word.strip(), "").ended:
            jobs.append(number.strip() + (";" + cluster if cluster else ""))
    return jobs


def _cluster(flags: Sequence[str]) -> str:
    """Return the clusters that flags of sbatch name; empty: the login node's own."""
    cluster = ""
    for flag, following in zip(flags, [*flags[1:], ""]):
        if flag in ("-M", "--clusters", "--cluster"):
            cluster = following
        elif flag.startswith(("--clusters=", "--cluster=")):
            cluster = flag.partition("=")[2]
        elif re.match("-M.", flag):
            cluster = flag[2:]
    return cluster
