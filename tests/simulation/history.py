"""Commits, starts and seals that really happened: what invariants judge by."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulation import groups
from simulation.machines import SimulatedProcess


@dataclass(frozen=True)
class Commit:
    """One accepted save, in the order in which engines made them."""

    time: float
    run: str
    machine: str
    attempt: int
    epoch: int
    start: int
    step: int
    restored: int
    pid: int
    root_digest: str


@dataclass(frozen=True)
class Start:
    """One start of an engine that may commit."""

    machine: str
    epoch: int
    start: int
    restored: int


@dataclass
class History:
    """Events that really happened. No program under test reads them."""

    commits: list[Commit] = field(default_factory=list)
    lost: list[Commit] = field(default_factory=list)  # that no machine has any more
    starts: list[Start] = field(default_factory=list)
    training: dict[SimulatedProcess, int] = field(default_factory=dict)  # process -> epoch
    seals: list[tuple[float, str, int, str, int]] = field(default_factory=list)  # time, machine, epoch, owner, step
    doubles: list[str] = field(default_factory=list)  # engines beside one that worked
    unfenced: list[str] = field(default_factory=list)  # commits to a directory without a fence

    def take_start(self, process: SimulatedProcess, epoch: int) -> None:
        """Note that an engine is about to train while another one trains on its machine or under its epoch."""
        for other, its_epoch in self.training.items():
            working = other.exit_code is None and not other.hung
            if working and (other.machine is process.machine or its_epoch == epoch):
                self.doubles.append(f"{process} beside {other}")

    def clear(self) -> None:
        """Forget everything."""
        groups.ATTEMPTS.clear()
        self.commits.clear()
        self.lost.clear()
        self.starts.clear()
        self.training.clear()
        self.seals.clear()
        self.doubles.clear()
        self.unfenced.clear()


HISTORY = History()
