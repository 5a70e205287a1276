"""State of the model of ownership: hosts, the migration's process, a rollback, and what has really been committed."""

from __future__ import annotations

from typing import NamedTuple

from simulation.ownership_rules import Chain, Engine, Fence, Host

LOCK, COMMAND, SEALED, HAND_OVER, RELAUNCH, FENCE, START, DONE, ENDED = range(9)  # of a migration's process
OWNS, WITHDRAW, ANSWERED, READ, CLOSE, CLOSE_FENCE, REOPEN, RESTART, RELEASE, BACK, GIVEN_UP = range(
    11
)  # of a rollback


class Process(NamedTuple):
    """The process of the migration, and what its state directory has."""

    at: int = LOCK
    number: str = "p1"  # a random number of each process
    permission: str = ""  # to start the target: fresh, old, or none
    sealed: Fence | None = None
    memory: Chain = ()


class Return(NamedTuple):
    """A rollback with a copy of the state directory."""

    at: int
    sealed: bool
    relaunching: bool
    memory: Chain
    back: Fence | None = None
    closed: bool = False  # the target's fence accepts no start of the migration


class Committed(NamedTuple):
    """The newest commit that really happened."""

    host: str
    attempt: int
    start: int
    step: int


class State(NamedTuple):
    """Everything at one moment."""

    a: Host
    b: Host
    process: Process = Process()
    rollback: Return | None = None
    other: int = -1  # steps of a second migration; -1: none begins
    newest: Committed = Committed("a", 1, 1, 1)
    crashes: int = 0  # that may still happen, of the migration's process
    deaths: int = 0  # of engines
    dead: tuple[str, Engine] | None = None  # an engine that may be requeued
