"""One line about an attempt's job: its wait, its pause, or its end.

Runs on the login node; standard library only.
"""

from __future__ import annotations

import os
import posixpath
from typing import Optional

from midstream_core import records
from midstream_host.runs import slurm

OUTPUT_TAIL = 8192  # bytes
SAID = "midstream: "  # begins a line of the job's script
STARTED = SAID + "job starts on "


def remark(path: records.AttemptPaths, status: Optional[records.Status]) -> str:
    """Return what an attempt's job waits for, or how it ended; empty for none.

    The end of a job that SLURM has forgotten is in the job's output.
    """
    job = slurm.described(path)
    if job is None:
        return ""
    over = status is not None and status.state in records.ENDED
    if status is not None and status.state == records.FINISHED and not (job.waits or job.runs):
        return ""
    if job.waits or job.runs or (job.reason and not over):
        words = job.describe()
        if words:
            said = _recorded_end(path, over=True) if job.ended else ""
            return "{}; {}".format(words, said) if said else words
    return "" if job.waits or job.runs else _recorded_end(path, over)


def _recorded_end(path: records.AttemptPaths, over: bool) -> str:
    """Return the line of the job's output about its last end; empty without one.

    ``over``: the engine has recorded its own end, which only a line of the job's script explains.
    """
    try:
        with records.open_regular(posixpath.join(path.dir, slurm.OUTPUT)) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - OUTPUT_TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except (OSError, records.RecordError):
        return ""
    for line in reversed(lines):
        if line.startswith(SAID) or (not over and "***" in line):
            return "" if line.startswith(STARTED) else line[len(SAID) :] if line.startswith(SAID) else line.strip()
    return ""
