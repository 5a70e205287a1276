"""Ownership of a run: fence, signed records, migration lock, commands.

Runs on the host; standard library only.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Optional

from midstream_core import records
from midstream_core.json_types import JsonObject, int_of
from midstream_host.declarations import once, reads, repeatable
from midstream_host.runs import record_repair
from midstream_host.runs.run_state import RefusedError, running_attempt, status


@repeatable("a command that is not answered yet keeps its sequence number")
def send_command(root: str, run_id: str, attempt: int, command: JsonObject) -> int:
    """Write a command to an attempt and return its sequence number.

    A command that is not answered yet keeps its number.

    Raises:
        RefusedError: Another migration has the lock for this epoch or a later one. A lock of an earlier epoch does not
            count: a run may migrate back to where it was, and a standby waits there. Or the command seals the run, and
            its migration has no lock any more, or the run has a later owner: another process has rolled it back since.
    """
    paths = records.RunPaths(root, run_id)
    path = paths.attempt(attempt)
    with records.locked(paths.lock):
        lock = records.MigrationLock.held_or_none(paths.migration_lock)
        migration = command.get("migration")
        if migration and lock and lock.migration != migration and lock.epoch >= int_of(command.get("epoch", 1)):
            raise RefusedError(_locked_by(run_id, lock))
        seals = command.get("action") == records.STOP and command.get("owner")
        if migration and seals and (lock is None or lock.migration != migration):
            raise RefusedError("migration {} has no lock on run {} any more".format(migration, run_id))
        fence = records.Fence.read_or_none(paths.fence) if seals else None
        if fence is not None and fence.epoch > int_of(command.get("epoch", 1)):
            raise RefusedError("run {} belongs to {} (ownership {}) by now".format(run_id, fence.owner, fence.epoch))
        before = records.Command.read_or_none(path.command_file)
        now = records.Status.read_or_none(path.status())
        sequence = max(before.sequence if before else 0, now.acknowledged if now else 0) + 1
        new = records.Command.from_json({**command, "sequence": sequence}, "command")
        if before is not None and new == dataclasses.replace(before, sequence=sequence):
            answered = now is not None and max(now.acknowledged, now.rejected) >= before.sequence
            if not answered or not status(root, run_id, attempt).running:
                return before.sequence
        new.write(path.command_file)
    return sequence


@repeatable("the same migration acquires the lock again")
def acquire(root: str, run_id: str, migration: str, epoch: int, owner: str, seconds: float) -> records.Fence:
    """Acquire the migration lock for ``seconds`` and return the present fence.

    The lock announces a migration to ``owner`` under ``epoch``. One migration has it, until it releases it, or until it
    expires before its epoch began.

    Args:
        root: Root directory of the host.
        run_id: The run.
        migration: The migration.
        epoch: The epoch that it is to begin.
        owner: The target that the run is to pass to.
        seconds: How long the lock is valid.

    Raises:
        RefusedError: Another migration has the lock, the run has reached ``epoch`` already, or another process has
            rolled this migration back, with a copy of its files.
    """
    paths = records.RunPaths(root, run_id)
    with records.locked(paths.lock):
        fence = records.Fence.read_or_none(paths.fence) or records.first_fence("")
        lock = records.MigrationLock.read_or_none(paths.migration_lock)
        if lock is not None and lock.released and lock.migration == migration:
            raise RefusedError("migration {} was rolled back by another process".format(migration))
        mine = lock is not None and lock.migration == migration and lock.epoch == epoch
        if not mine:
            if fence.epoch >= epoch:
                raise RefusedError("run {} has migrated to {} (ownership {})".format(run_id, fence.owner, fence.epoch))
            _refuse_others(paths, migration, epoch)
        if not mine or fence.epoch < epoch:
            records.MigrationLock(migration, epoch, owner, time.time() + seconds, "").write(paths.migration_lock)
    return fence


@reads()
def migration_lock(root: str, run_id: str) -> Optional[records.MigrationLock]:
    """Return the run's migration lock, held or expired; None where there is none."""
    return records.MigrationLock.held_or_none(records.RunPaths(root, run_id).migration_lock)


@repeatable("what is released stays released")
def release(root: str, run_id: str, migration: str, epoch: int, owner: str) -> None:
    """Release the lock of a migration that is rolled back.

    Another migration's lock stays. A process with a copy of the migration's files may still go on: from here on it
    cannot acquire the lock.

    Args:
        root: Root directory of the host.
        run_id: The run.
        migration: The migration.
        epoch: The epoch that it was to begin.
        owner: Its target.

    Raises:
        RefusedError: Another process of the migration has commanded the engine to stop since the rollback has looked,
            or has sealed the run.
    """
    paths = records.RunPaths(root, run_id)
    if not os.path.isdir(paths.dir):
        return
    with records.locked(paths.lock):
        lock = records.MigrationLock.read_or_none(paths.migration_lock)
        if lock is not None and lock.migration == migration and not lock.released:
            _refuse_unfinished(paths, migration, epoch, owner)
        if lock is None or (lock.released and lock.migration != migration):
            lock = records.MigrationLock(migration, epoch, owner, 0.0, "")
        if lock.migration == migration and not lock.released:
            dataclasses.replace(lock, expires=0.0, released=True).write(paths.migration_lock)


def _refuse_unfinished(paths: records.RunPaths, migration: str, epoch: int, owner: str) -> None:
    """Raise RefusedError where the run is sealed for a migration, or will be.

    Call with the run's lock held.
    """
    fence = records.Fence.read_or_none(paths.fence)
    if fence is not None and (fence.epoch, fence.owner) == (epoch, owner):
        raise RefusedError("another process of migration {} has sealed run {} by now".format(migration, paths.run_id))
    attempt = running_attempt(paths.root, paths.run_id)
    command = records.Command.read_or_none(paths.attempt(attempt).command_file) if attempt else None
    if command is None or (command.action, command.migration) != (records.STOP, migration):
        return
    state = status(paths.root, paths.run_id, attempt).status
    if state is None or max(state.acknowledged, state.rejected) < command.sequence:
        raise RefusedError(
            "another process of migration {} has commanded attempt {} of {} to stop by now".format(
                migration, attempt, paths.run_id
            )
        )


def _locked_by(run_id: str, lock: records.MigrationLock) -> str:
    return "run {} is locked for {} by migration {}".format(run_id, lock.owner, lock.migration)


def _refuse_others(paths: records.RunPaths, migration: str, epoch: int) -> None:
    """Raise RefusedError where another migration has the lock.

    Call with the run's lock held.
    """
    lock = records.MigrationLock.held_or_none(paths.migration_lock)
    if lock is None or lock.migration == migration or lock.epoch < epoch:
        return
    fence = records.Fence.read_or_none(paths.fence)
    begun = fence is not None and fence.epoch >= lock.epoch
    if begun or lock.expires > time.time():
        raise RefusedError(_locked_by(paths.run_id, lock))


@repeatable("the same seal changes nothing")
def seal(root: str, run_id: str, epoch: int, owner: str, sealed_step: int, migration: str = "") -> records.Fence:
    """Seal a run whose engine has exited: write the fence of ``epoch`` and ``owner``.

    Checkpoints past ``sealed_step`` are rejected from then on.

    Args:
        root: Root directory of the host.
        run_id: The run.
        epoch: Epoch of the new fence.
        owner: Its owner: the target that the run passes to.
        sealed_step: Step up to which checkpoints of older epochs are accepted.
        migration: The migration that seals the run; empty: none.

    Raises:
        RefusedError: An engine runs (it seals the run itself, on a command), or another migration has the lock.
    """
    paths = records.RunPaths(root, run_id)
    with records.locked(paths.lock):
        running = running_attempt(root, run_id)
        if running:
            raise RefusedError(
                "attempt {} of {} runs; an engine that runs is sealed by a command".format(running, run_id)
            )
        _refuse_others(paths, migration, epoch)
        fence = records.Fence.read_or_none(paths.fence) or records.first_fence("")
        if fence.epoch == epoch and fence.owner == owner and fence.sealed_step == sealed_step:
            return fence
        sealed = fence.sealed(epoch, owner, sealed_step)
        sealed.write(paths.fence)
    return sealed


@repeatable("a chain only grows")
def put_chain(root: str, run_id: str, chain: JsonObject) -> None:
    """Write a chain of signed ownership records, which may only grow.

    Signatures are not checked here: the operator's machine has checked them, and checks what it reads.

    Raises:
        RefusedError: The chain here is longer, or another one.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    os.makedirs(paths.dir, exist_ok=True)
    with records.locked(paths.lock):
        _grow_chain(paths, chain)


@repeatable("the same process is allowed again")
def allow_start(
    root: str, run_id: str, chain: JsonObject, epoch: int, owner: str, migration: str, process: str
) -> None:
    """Permit a process of ``migration`` to start the target.

    The source records that, and the new owner's signed record. From here on no copy of the migration's journal proves
    that the target was not started: a rollback by another process looks at the target. A process that was suspended
    finds here that the run has moved on without it.

    Args:
        root: Root directory of the host.
        run_id: The run.
        chain: JSON of the chain whose newest record names the new owner.
        epoch: Epoch of the fence that the migration has sealed the run with.
        owner: Its owner.
        migration: The migration.
        process: Random number of the migration's process.

    Raises:
        RefusedError: The fence or the migration lock is another one's by now.
    """
    paths = records.RunPaths(root, run_id)
    with records.locked(paths.lock):
        fence = records.Fence.read_or_none(paths.fence) or records.first_fence("")
        if (fence.epoch, fence.owner) != (epoch, owner):
            raise RefusedError(
                "run {} belongs to {} (ownership {}) by now: {} (ownership {}) is not started".format(
                    run_id, fence.owner, fence.epoch, owner, epoch
                )
            )
        lock = records.MigrationLock.held_or_none(paths.migration_lock)
        if lock is None or lock.migration != migration:
            raise RefusedError(
                _locked_by(run_id, lock) if lock else "migration {} has no lock on run {}".format(migration, run_id)
            )
        _grow_chain(paths, chain)
        if lock.start_allowed != process:
            dataclasses.replace(lock, start_allowed=process).write(paths.migration_lock)


def _grow_chain(paths: records.RunPaths, chain: JsonObject) -> None:
    """Write ``chain`` where it continues the one here. Call with the run's lock held."""
    new = records.OwnershipChain.from_json(dict(chain), "chain")
    new.check_links()
    old = records.OwnershipChain.read_or_none(paths.ownership)
    if old == new:
        return
    if old is not None and not new.continues(old):
        there, here = new.head, old.head
        raise RefusedError(
            "{} has newer or other ownership records of {}: {} (ownership {}); {} (ownership {}) cannot replace "
            "them".format(paths.dir, paths.run_id, here.owner, here.epoch, there.owner, there.epoch)
        )
    new.write(paths.ownership)


@once("a second call is rejected: the fence has risen, or the chain is there")
def adopt(root: str, run_id: str, fence: JsonObject, chain: JsonObject) -> str:
    """Make this host the run's owner: write the fence and a new chain.

    The user has agreed to that. The earlier chain is saved beside the new one; the saved file's name is returned, empty
    where there was none.

    Raises:
        RefusedError: An attempt runs here and the fence is to change, or the fence has risen.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    new, signed = records.Fence.from_json(dict(fence), "fence"), records.OwnershipChain.from_json(dict(chain), "chain")
    signed.check_links()
    with records.locked(paths.lock):
        old = records.Fence.read_or_none(paths.fence)
        if old is not None and old != new:
            running = running_attempt(root, run_id)
            if running:
                raise RefusedError("attempt {} of {} runs here: stop it first".format(running, run_id))
            if old.epoch >= new.epoch:
                raise RefusedError("the fence of {} is at ownership {} by now".format(run_id, old.epoch))
        kept = record_repair.keep(paths.ownership)
        signed.write(paths.ownership)
        if old != new:
            new.write(paths.fence)
    return os.path.basename(kept)


@repeatable("a fence only rises")
def put_fence(
    root: str,
    run_id: str,
    fence: JsonObject,
    migration: str = "",
    chain: Optional[JsonObject] = None,
    process: Optional[str] = None,
) -> records.Fence:
    """Write a fence, which only rises, for ``migration`` if that decided on it.

    A start may have taken a number in it since it was written: the answer to that call, and to the start, may be lost.

    Args:
        root: Root directory of the host.
        run_id: The run.
        fence: JSON of the fence.
        migration: The migration that decided on it.
        chain: JSON of the signed records that prove it. The chain is written first, and only grows too.
        process: Random number of the process that rolls the migration back and has not closed its target; None: no
            other process can start that.

    Raises:
        RefusedError: The fence or the chain here is at this epoch or a later one, or another migration has the lock. Or
            another process than ``process`` has got the permission to start the target.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    new = records.Fence.from_json(dict(fence), "fence")
    os.makedirs(paths.dir, exist_ok=True)
    with records.locked(paths.lock):
        if chain is not None:
            _grow_chain(paths, chain)
        old = records.Fence.read_or_none(paths.fence)
        if old is not None:
            if old.continues(new):
                return old
            if old.epoch >= new.epoch and not new.continues(old):
                raise RefusedError(
                    "the fence of {} is at ownership {} (owner {}) here; "
                    "ownership {} (owner {}) cannot replace it".format(
                        run_id, old.epoch, old.owner, new.epoch, new.owner
                    )
                )
        if migration:
            _refuse_others(paths, migration, new.epoch)
            lock = records.MigrationLock.held_or_none(paths.migration_lock)
            if process is not None and lock is not None and lock.start_allowed not in ("", process):
                raise RefusedError("another process of migration {} may start its target by now".format(migration))
            records.MigrationLock(migration, new.epoch, new.owner, time.time(), "").write(paths.migration_lock)
        new.write(paths.fence)
    return new
