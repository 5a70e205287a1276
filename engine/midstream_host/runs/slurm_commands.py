"""Commands of SLURM, run without the variables that change what they show.

Runs on the login node; standard library only.
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import List, Mapping, Optional, Sequence, Tuple

COMMAND_TIMEOUT = 60.0  # seconds
TIMES = {"SLURM_TIME_FORMAT": "%s"}  # times as UTC seconds, whatever the host's time zone
# Variables that change what the commands show or do: filters, forms, questions, an array of jobs.
VARIABLES = re.compile(r"(SQUEUE|SCANCEL|SACCT|SINFO)_\w+|SBATCH_(ARRAY_INX|WAIT)")


class SlurmError(Exception):
    """A command of SLURM failed; the message is its last line of stderr."""


class MissingError(SlurmError):
    """A command of SLURM is not installed.

    The records are those of another machine's job.
    """


def named(job: str) -> Tuple[str, List[str]]:
    """Return the id of a job, and the flags that name its cluster."""
    number, _, cluster = job.partition(";")
    return number, ["--clusters", cluster] if cluster else []


def run(argv: Sequence[str], env: Optional[Mapping[str, str]] = None, timeout: float = COMMAND_TIMEOUT) -> str:
    """Run a command of SLURM and return its output. Raises SlurmError where it fails."""
    return done(argv, env, timeout).stdout.decode(errors="replace")


def done(
    argv: Sequence[str], env: Optional[Mapping[str, str]] = None, timeout: float = COMMAND_TIMEOUT
) -> "subprocess.CompletedProcess[bytes]":
    """Run a command of SLURM to its end. Raises SlurmError where it fails."""
    inherited = {name: value for name, value in os.environ.items() if not VARIABLES.fullmatch(name)}
    try:
        ended = subprocess.run(list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=dict(inherited, **(env or {})), timeout=timeout, check=False)  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise SlurmError("{} did not answer within {:.0f} s".format(argv[0], timeout)) from error
    except FileNotFoundError as error:
        raise MissingError("{}: {}".format(argv[0], error.strerror)) from error
    except OSError as error:
        raise SlurmError("{}: {}".format(argv[0], error.strerror)) from error
    if ended.returncode:
        lines: List[str] = ended.stderr.decode(errors="replace").strip().splitlines()
        words = [line for line in lines if not line.startswith('Try "')]  # of an unknown flag: the line before has it
        last = words[-1] if words else "exit code {}".format(ended.returncode)
        raise SlurmError("{}: {}".format(argv[0], re.sub("^{0}: (error: )?".format(re.escape(argv[0])), "", last)))
    return ended


def words_of(argv: Sequence[str]) -> List[str]:
    """Return the words that a command prints; none where it fails."""
    try:
        return run(argv).split()
    except SlurmError:
        return []
