"""State of one process of an attempt, and the reason of its end."""

from __future__ import annotations

from dataclasses import dataclass

from midstream_core import records


@dataclass(frozen=True)
class RankView:
    """The state of one process of an attempt. Times are those of this machine's clock."""

    process: int
    host: str
    status: records.Status | None = None
    running: bool = False  # positive evidence that it runs
    supervised: bool = False  # its supervisor runs
    exit: records.ProcessExit | None = None
    log: tuple[str, ...] = ()
    unreachable: float = 0.0  # seconds since its last heartbeat, by its own host's clock
    ended: float | None = None  # when it ended
    problem: str = ""  # why its state is unknown, in one line
    job: str = ""  # of SLURM, with its state
    job_unknown: bool = False  # SLURM does not know the job any more

    @property
    def name(self) -> str:
        return f"process {self.process} on {self.host}"

    @property
    def state(self) -> str:
        if self.status is None:
            return "failed" if self.failed else "starting" if self.running else "unknown" if self.problem else "empty"
        if self.status.state not in records.ENDED and not self.running and not self.problem:
            return "failed" if self.failed else "lost"
        return self.status.state

    @property
    def failed(self) -> bool:
        """Whether there is evidence that it failed."""
        if self.exit is not None:
            return self.exit.failed
        if self.status is not None and self.status.state in records.ENDED:
            return self.status.state == records.FAILED
        return not (self.running or self.supervised or self.problem)

    @property
    def ended_from_outside(self) -> bool:
        """Whether it was killed from outside, or lost with its machine.

        False if it ended by an error of its own.
        """
        return self.failed and (self.exit is None or (bool(self.exit.signal) and not self.exit.stalled))

    @property
    def why(self) -> str:
        """Reason of its end, in one line."""
        if self.exit is not None and self.exit.message:
            return self.exit.message
        if self.status is not None and self.status.message:
            return self.status.message
        last_line = next((line.strip() for line in reversed(self.log) if line.strip()), "its log is empty")
        if self.job_unknown:
            return f"SLURM does not know its {self.job} any more, and its processes report nothing: {last_line}"
        if self.job:
            return f"{self.job} has ended: {last_line}"
        return f"exited without a message: {last_line}"
