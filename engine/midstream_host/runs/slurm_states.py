"""States of SLURM's jobs, and which of them say that a job has ended.

Runs on the login node; standard library only. The words are those of ``squeue`` (its manual, "JOB STATE CODES") and of
SLURM's page "Job State Codes". A word that is not listed, as of a newer version, may be that of a job that runs.
"""

from __future__ import annotations

import dataclasses
import re
import time
from typing import Dict

from midstream_host.shapes import Text

WAITS = "waits"  # in the queue, with no process
RUNS = "runs"  # it has its nodes
PAUSED = "paused"  # it has processes, which do not run
ELSEWHERE = "elsewhere"  # another cluster of the federation runs it
ENDED = "ended"
UNKNOWN = "UNKNOWN"  # our own word: neither the queue nor the accounting has the job
COMPLETED, COMPLETING = "COMPLETED", "COMPLETING"
NODE_FAIL = "NODE_FAIL"  # ended, but nodes that fail do not report that the processes have
KINDS: Dict[str, str] = {
    "PENDING": WAITS,
    "CONFIGURING": WAITS,
    "POWER_UP_NODE": WAITS,
    "REQUEUED": WAITS,
    "REQUEUE_FED": WAITS,
    "REQUEUE_HOLD": WAITS,
    "RESV_DEL_HOLD": WAITS,
    "SPECIAL_EXIT": WAITS,
    "RUNNING": RUNS,
    COMPLETING: RUNS,
    "RESIZING": RUNS,
    "SIGNALING": RUNS,
    "STAGE_OUT": RUNS,
    "STOPPED": PAUSED,
    "SUSPENDED": PAUSED,
    "REVOKED": ELSEWHERE,
    "BOOT_FAIL": ENDED,
    "CANCELLED": ENDED,
    COMPLETED: ENDED,
    "DEADLINE": ENDED,
    "FAILED": ENDED,
    NODE_FAIL: ENDED,
    "OUT_OF_MEMORY": ENDED,
    "PREEMPTED": ENDED,
    "TIMEOUT": ENDED,
}
SKEW = 30.0  # seconds by which clocks may differ; the shortest time limit is a minute
CONTINUES = {"STOPPED": "scancel --signal=CONT {}", "SUSPENDED": "scontrol resume {}"}
DURATION = re.compile(r"(?:(\d{1,6})-(?=\d))?(\d{1,9})(?::(\d{1,6}))?(?::(\d{1,6}))?")


@dataclasses.dataclass(frozen=True)
class JobState:
    """State and reason of a job, in SLURM's words.

    Times are UTC seconds by the cluster's clock.
    """

    job: str
    state: str
    reason: str
    started: float = 0.0  # of a waiting job: when it is expected to start; 0: not known
    ends: float = 0.0  # when it reaches its time limit, or its reservation's end; 0: it has none, or it is not known
    script: Text = ""  # path of its script; empty: not known
    name: Text = ""
    reservation: Text = ""  # where it ends before the time limit: then ``ends`` is its end

    @property
    def waits(self) -> bool:
        """Whether it waits in the queue, also after it was requeued."""
        return KINDS.get(self.state) == WAITS or self._is_requeued

    @property
    def _is_requeued(self) -> bool:
        """Whether its processes end, and it waits then.

        Of a job that is about to wait, squeue has no end, or the one that its time limit would give it.
        """
        return self.state == COMPLETING and (not self.ends or self.ends > time.time() + SKEW)

    @property
    def runs(self) -> bool:
        """Whether it has its nodes, or may have them."""
        return not (self.waits or self.ended or self.state == UNKNOWN)

    @property
    def ended(self) -> bool:
        """Whether SLURM reports its end."""
        return KINDS.get(self.state) == ENDED

    @property
    def paused(self) -> bool:
        """Whether its processes exist and do not run."""
        return KINDS.get(self.state) == PAUSED

    @property
    def limit(self) -> str:
        """Reason of its end at ``ends``, in words."""
        return "the end of its reservation {}".format(self.reservation) if self.reservation else "its time limit"

    def describe(self) -> str:
        """Return in one line what it waits for, or how it ended.

        Empty for a job that runs or has completed, and for one that SLURM does not know.
        """
        if self.waits:
            return "job {} waits in the queue: {} ({})".format(self.job, self.state.lower(), self.reason)
        if self.paused:
            continues = CONTINUES[self.state].format(self.job.partition(";")[0])
            return "job {} is {}: its processes do not run (hint: {})".format(self.job, self.state.lower(), continues)
        if self.ended and self.state != COMPLETED:
            return "job {} has ended: {} ({})".format(self.job, self.state.lower(), self.reason)
        if self.state == UNKNOWN and self.reason:
            return "the state of job {} is unknown: {}".format(self.job, self.reason)
        if KINDS.get(self.state) == ELSEWHERE:
            return "job {} is revoked: another cluster of the federation runs it".format(self.job)
        if self.state not in KINDS and self.state != UNKNOWN:
            return "job {} is in the state {}, and may run".format(self.job, self.state)
        return ""


def seconds_of(text: str) -> float:
    """Return the seconds of a time limit in SLURM's forms; 0 for none.

    ``MINUTES``, ``MINUTES:SECONDS``, ``HOURS:MINUTES:SECONDS``, ``DAYS-HOURS``, ``DAYS-HOURS:MINUTES``,
    ``DAYS-HOURS:MINUTES:SECONDS``.
    """
    match = DURATION.fullmatch(text.strip())
    if match is None:  # UNLIMITED, INFINITE, NONE, n/a
        return 0.0
    days, *numbers = match.groups()
    values = [float(number) for number in numbers if number]
    if days is not None:
        hours, minutes, seconds = [*values, 0.0, 0.0][:3]
    elif len(values) == 3:
        hours, minutes, seconds = values
    else:
        hours, (minutes, seconds) = 0.0, [*values, 0.0][:2]
    return float(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds
