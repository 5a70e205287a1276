"""Rules of a host for the records of a run, as an abstract model without files.

`test_ownership_model.py` runs the real functions beside these rules. A rule returns the host after a call, or raises
Refused. Steps are numbers of saved checkpoints; times are left out but for "valid" and "expired".
"""

from __future__ import annotations

import math
from typing import NamedTuple

LAST = math.inf
STOP, SAVE = "stop", "save"


class Refused(Exception):  # noqa: N818  a signal, no fault
    """The host refuses a call."""


class Fence(NamedTuple):
    """``fence.json``. ``seals``: (epoch, step, alone); ``starts``: (epoch, start, step)."""

    epoch: int
    owner: str
    sealed: int | None = None
    seals: tuple[tuple[int, int, bool], ...] = ()
    start: int = 0
    starts: tuple[tuple[int, int, int | None], ...] = ()


class Lock(NamedTuple):
    """``migration_lock.json``."""

    migration: str
    epoch: int
    owner: str
    allowed: str = ""  # the process that may start the target
    valid: bool = True
    released: bool = False


class Engine(NamedTuple):
    """A running engine. ``start`` is None until it has a number, ``step`` the one of its state."""

    attempt: int
    epoch: int
    start: int | None
    step: int
    restored: int


class Link(NamedTuple):
    """A signed record of the chain."""

    epoch: int
    owner: str
    migration: str


Chain = tuple[Link, ...]
Save = tuple[int, int, int, int]  # step, epoch, start, attempt


class Host(NamedTuple):
    """Records of the run on one host."""

    fence: Fence | None = None
    lock: Lock | None = None
    chain: Chain = ()
    engine: Engine | None = None
    command: tuple[str, str, int, str] | None = None  # to the engine: action, migration, epoch, owner
    saves: tuple[Save, ...] = ()


def epoch_limit(fence: Fence, epoch: int) -> float:
    """Return the last step of an epoch that counts."""
    if epoch >= fence.epoch:
        return LAST
    return min(
        (step for sealed, step, alone in fence.seals if sealed == epoch or (sealed > epoch and not alone)), default=-1
    )


def start_limit(fence: Fence, epoch: int, start: int) -> float:
    """Return the last step of a start that counts, by later starts alone."""
    if (epoch, start) >= (fence.epoch, fence.start):
        return LAST
    closed = [step for of, number, step in fence.starts if of == epoch and number >= start]
    if not closed:
        return LAST if epoch < fence.epoch else -1
    return min(-1 if step is None else step for step in closed)


def accepts(fence: Fence, epoch: int, step: int, start: int) -> bool:
    """Return whether a checkpoint counts."""
    return step <= min(epoch_limit(fence, epoch), start_limit(fence, epoch, start))


def accepted_steps(host: Host) -> list[int]:
    """Return the steps of the checkpoints that count."""
    fence = host.fence
    return [step for step, epoch, start, _ in host.saves if fence is None or accepts(fence, epoch, step, start)]


def may_commit(host: Host) -> bool:
    """Return whether the host's engine may commit its next step."""
    engine, fence = host.engine, host.fence
    if engine is None or engine.start is None:
        return False
    if fence is None:
        return True
    superseded = fence.epoch == engine.epoch and fence.start > engine.start
    return engine.step + 1 <= epoch_limit(fence, engine.epoch) and not superseded


def sealed(fence: Fence, epoch: int, owner: str, step: int) -> Fence:
    """Return the fence that gives the run to an owner."""
    if epoch <= fence.epoch:
        raise Refused
    return Fence(epoch, owner, step, (*fence.seals, (epoch - 1, step, False)), 0, fence.starts)


def rolled_back(fence: Fence, owner: str, step: int) -> Fence:
    """Return the fence after the last migration was undone."""
    if fence.sealed is None or not fence.seals or step < fence.sealed:
        raise Refused
    seals = (*fence.seals[:-1], (fence.epoch - 1, step, False), (fence.epoch, fence.sealed, True))
    return Fence(fence.epoch + 1, owner, step, seals, 0, fence.starts)


def continues(fence: Fence, other: Fence) -> bool:
    """Return whether a fence is another one, perhaps after further starts."""
    same = fence._replace(start=other.start, starts=other.starts) == other
    return same and fence.start >= other.start and fence.starts[: len(other.starts)] == other.starts


def held(host: Host) -> Lock | None:
    """Return the lock that is not released."""
    return None if host.lock is None or host.lock.released else host.lock


def _refuse_others(host: Host, migration: str, epoch: int) -> None:
    lock = held(host)
    if lock is None or lock.migration == migration or lock.epoch < epoch:
        return
    if (host.fence is not None and host.fence.epoch >= lock.epoch) or lock.valid:
        raise Refused


def _grown(host: Host, chain: Chain) -> Host:
    if chain[: len(host.chain)] != host.chain:
        raise Refused
    return host._replace(chain=chain)


def acquire(host: Host, migration: str, epoch: int, owner: str) -> Host:
    """Acquire the migration lock."""
    fence, lock = host.fence or Fence(1, ""), host.lock
    if lock is not None and lock.released and lock.migration == migration:
        raise Refused
    mine = lock is not None and (lock.migration, lock.epoch) == (migration, epoch)
    if not mine:
        if fence.epoch >= epoch:
            raise Refused
        _refuse_others(host, migration, epoch)
    if not mine or fence.epoch < epoch:
        return host._replace(lock=Lock(migration, epoch, owner))
    return host


def expire(host: Host) -> Host:
    """Let the time of the lock pass."""
    return host if host.lock is None else host._replace(lock=host.lock._replace(valid=False))


def release(host: Host, migration: str, epoch: int, owner: str) -> Host:
    """Release the lock of a migration that was rolled back; not while the source has its command, or its seal."""
    lock, command = host.lock, host.command
    if lock is not None and lock.migration == migration and not lock.released:
        commanded = host.engine is not None and command is not None and command[:2] == (STOP, migration)
        if commanded or (host.fence is not None and (host.fence.epoch, host.fence.owner) == (epoch, owner)):
            raise Refused
    if lock is None or (lock.released and lock.migration != migration):
        lock = Lock(migration, epoch, owner, valid=False)
    if lock.migration != migration or lock.released:
        return host
    return host._replace(lock=lock._replace(valid=False, released=True))


def send(host: Host, action: str, migration: str, epoch: int, owner: str) -> Host:
    """Send a command of a migration to the engine."""
    lock = held(host)
    if lock is not None and lock.migration != migration and lock.epoch >= epoch:
        raise Refused
    passed_on = host.fence is not None and host.fence.epoch > epoch
    if action == STOP and (lock is None or lock.migration != migration or passed_on):
        raise Refused
    return host._replace(command=(action, migration, epoch, owner))


def seal(host: Host, epoch: int, owner: str, step: int, migration: str) -> Host:
    """Seal a run whose engine has exited."""
    if host.engine is not None:
        raise Refused
    _refuse_others(host, migration, epoch)
    fence = host.fence or Fence(1, "")
    if (fence.epoch, fence.owner, fence.sealed) == (epoch, owner, step):
        return host
    return host._replace(fence=sealed(fence, epoch, owner, step))


def allow_start(host: Host, chain: Chain, epoch: int, owner: str, migration: str, process: str) -> Host:
    """Permit a process to start the target, and store the new owner's record."""
    fence, lock = host.fence or Fence(1, ""), held(host)
    if (fence.epoch, fence.owner) != (epoch, owner) or lock is None or lock.migration != migration:
        raise Refused
    return _grown(host, chain)._replace(lock=lock._replace(allowed=process))


def put_fence(host: Host, fence: Fence, migration: str, chain: Chain, process: str | None = None) -> Host:
    """Write a fence that a migration has decided on. ``process``: of a rollback that has not closed the target."""
    if chain:
        host = _grown(host, chain)
    old = host.fence
    if old is not None and continues(old, fence):
        return host
    if old is not None and old.epoch >= fence.epoch and not continues(fence, old):
        raise PartlyRefused(host)
    lock = held(host)
    if process is not None and lock is not None and lock.migration == migration and lock.allowed not in ("", process):
        raise PartlyRefused(host)
    try:
        _refuse_others(host, migration, fence.epoch)
    except Refused:
        raise PartlyRefused(host) from None
    return host._replace(fence=fence, lock=Lock(migration, fence.epoch, fence.owner, valid=False))


class PartlyRefused(Refused):
    """A call is refused after it has stored the chain: that is true whatever the fence says."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self.host = host


def start(host: Host, attempt: int, epoch: int, step: int) -> Host:
    """Start an attempt that is to restore a step."""
    engine = host.engine
    if engine is not None and engine.attempt != attempt:
        raise Refused
    if engine is not None:
        return host
    if host.fence is not None and host.fence.epoch > epoch:
        raise Refused
    return host._replace(engine=Engine(attempt, epoch, None, step, step), command=None)


def take_number(host: Host) -> Host:
    """Have the engine take its start number, and restore. It exits where the run has passed on."""
    engine, fence = host.engine, host.fence
    assert engine is not None
    own = [step for step, epoch, of, attempt in host.saves
           if attempt == engine.attempt and (fence is None or accepts(fence, epoch, step, of))]  # fmt: skip
    step = max(own, default=engine.step)
    if fence is None or fence.epoch < engine.epoch:
        return host._replace(engine=engine._replace(start=0, step=step, restored=step))
    if fence.epoch > engine.epoch:
        raise Refused
    newest = max(accepted_steps(host), default=fence.sealed)
    taken = fence._replace(start=fence.start + 1, starts=(*fence.starts, (fence.epoch, fence.start, newest)))
    return host._replace(fence=taken, engine=engine._replace(start=taken.start, step=step, restored=step))


def commit(host: Host) -> Host:
    """Have the engine save its next step; the fence has to accept it."""
    engine = host.engine
    assert engine is not None
    if not may_commit(host):
        raise Refused
    step = engine.step + 1
    saved = (step, engine.epoch, engine.start or 0, engine.attempt)
    return host._replace(engine=engine._replace(step=step), saves=(*host.saves, saved))


def seal_and_exit(host: Host, epoch: int, owner: str) -> Host:
    """Have the engine seal the run at its newest checkpoint, and exit, as a command to stop says."""
    engine = host.engine
    assert engine is not None
    assert host.fence is not None
    if host.fence.start > (engine.start or 0):
        raise Refused
    return host._replace(fence=sealed(host.fence, epoch, owner, engine.step), engine=None, command=None)
