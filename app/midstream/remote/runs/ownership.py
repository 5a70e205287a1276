"""Whose a run is, and in whose hands: the fence, the migration that moves the run, the orders that it gives. Runs on
the host; standard library only."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any, Dict, Mapping, Optional

from midstream.remote.runs.run_state import Refused, running_attempt, status
from midstream_engine import records


def send_command(root: str, run_id: str, attempt: int, order: Mapping[str, Any]) -> int:
    """Write an attempt's order under the next serial, which is returned: the engine's status names the last that it
    carried out. Refused where the order is a migration's and another one has the run in its hands; one that began an
    earlier epoch than the order's has not: a run comes back to where it was, and an attempt stands by there."""
    paths = records.RunPaths(root, run_id)
    path = paths.attempt(attempt)
    with records.locked(paths.lock):
        mover = records.MigrationLock.read_or_none(paths.migration_lock)
        migration = order.get("migration")
        if migration and mover and mover.migration != migration and mover.epoch >= order.get("epoch", 1):
            raise Refused(_in_other_hands(run_id, mover))
        before = records.Command.read_or_none(path.command_file)
        found = records.Status.read_or_none(path.status())
        serial = max(before.sequence if before else 0, found.acknowledged if found else 0) + 1
        new = records.Command.from_json({**order, "sequence": serial}, "command")
        if before is not None and new == dataclasses.replace(before, sequence=serial):
            answered = found is not None and max(found.acknowledged, found.rejected) >= before.sequence
            if not answered or not status(root, run_id, attempt)["running"]:
                return before.sequence
        new.write(path.command_file)
    return serial


def acquire(root: str, run_id: str, migration: str, epoch: int, holder: str, seconds: float) -> Dict[str, Any]:
    """Take the run in hand for ``seconds``, to move it to ``holder`` under ``epoch``; returns the fence as it is. One
    migration alone can, until it lets go, or its time is over and it has not begun the epoch. Refused to all others."""
    paths = records.RunPaths(root, run_id)
    with records.locked(paths.lock):
        fence = records.Fence.read_or_none(paths.fence) or records.first_fence("")
        mover = records.MigrationLock.read_or_none(paths.migration_lock)
        mine = mover is not None and mover.migration == migration and mover.epoch == epoch
        if not mine:
            if fence.epoch >= epoch:
                raise Refused("run {} was moved on to {} (epoch {}) meanwhile".format(run_id, fence.owner, fence.epoch))
            _refuse_others(paths, migration, epoch)
        if not mine or fence.epoch < epoch:
            records.MigrationLock(migration, epoch, holder, time.time() + seconds).write(paths.migration_lock)
    return fence.to_json()


def migration_lock(root: str, run_id: str) -> Optional[Dict[str, Any]]:
    """Who has the run in its hands, or began its present epoch; None where nobody ever had."""
    found = records.MigrationLock.read_or_none(records.RunPaths(root, run_id).migration_lock)
    return found.to_json() if found else None


def release(root: str, run_id: str, migration: str) -> None:
    """End what ``take`` began; nothing where another migration has the run."""
    paths = records.RunPaths(root, run_id)
    if not os.path.isdir(paths.dir):
        return
    with records.locked(paths.lock):
        found = records.MigrationLock.read_or_none(paths.migration_lock)
        if found is not None and found.migration == migration:
            os.unlink(paths.migration_lock)


def _in_other_hands(run_id: str, mover: records.MigrationLock) -> str:
    return "run {} is being moved to {} by migration {}".format(run_id, mover.owner, mover.migration)


def _refuse_others(paths: records.RunPaths, migration: str, epoch: int) -> None:
    """To be called with the run's lock held."""
    found = records.MigrationLock.read_or_none(paths.migration_lock)
    if found is None or found.migration == migration or found.epoch < epoch:
        return
    fence = records.Fence.read_or_none(paths.fence)
    begun = fence is not None and fence.epoch >= found.epoch
    if begun or found.expires > time.time():
        raise Refused(_in_other_hands(paths.run_id, found))


def seal(root: str, run_id: str, epoch: int, holder: str, sealed_step: int, migration: str = "") -> Dict[str, Any]:
    """Close a run whose engine is gone: the fence goes to ``epoch`` and ``holder``, everything past ``sealed_step`` is
    refused from now on. Refused while an engine runs: it seals itself, when it is ordered to."""
    paths = records.RunPaths(root, run_id)
    with records.locked(paths.lock):
        living = running_attempt(root, run_id)
        if living:
            raise Refused("attempt {} of {} runs; an engine that runs is sealed by an order".format(living, run_id))
        _refuse_others(paths, migration, epoch)
        fence = records.Fence.read_or_none(paths.fence) or records.first_fence("")
        if fence.epoch == epoch and fence.owner == holder and fence.sealed_step == sealed_step:
            return fence.to_json()
        sealed = fence.sealed(epoch, holder, sealed_step)
        sealed.write(paths.fence)
    return sealed.to_json()


def put_fence(root: str, run_id: str, fence: Mapping[str, Any], migration: str = "") -> Dict[str, Any]:
    """Write a fence that was decided elsewhere, by ``migration`` where one did. It only ever goes up; the same one
    again changes nothing. Refused where another migration has the run in its hands."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    new = records.Fence.from_json(dict(fence), "fence")
    os.makedirs(paths.dir, exist_ok=True)
    with records.locked(paths.lock):
        old = records.Fence.read_or_none(paths.fence)
        if old is not None:
            if old == new:
                return old.to_json()
            if old.epoch >= new.epoch:
                raise Refused(
                    "the fence of {} is at epoch {} (holder {}) here; epoch {} (holder {}) cannot replace it".format(
                        run_id, old.epoch, old.owner, new.epoch, new.owner
                    )
                )
        if migration:
            _refuse_others(paths, migration, new.epoch)
            records.MigrationLock(migration, new.epoch, new.owner, time.time()).write(paths.migration_lock)
        new.write(paths.fence)
    return new.to_json()
