"""The fence on disk: which start of which epoch may commit.

:class:`midstream_core.records.Fence` defines the rule.
"""

from __future__ import annotations

import os

from midstream_core.attempt.errors import CheckpointError
from midstream_core.records import Fence, RecordError, RunPaths, locked


class FenceRejectedError(Exception):
    """Rejection of a commit because another owner has the run.

    What this process would commit is not in the accepted lineage.
    """


class SupersededError(FenceRejectedError):
    """Rejection of a commit because a newer start of the epoch has the run."""


class FenceUnreadableError(CheckpointError):
    """The fence exists and cannot be read, so the owner of the run is unknown.

    Training continues; nothing is committed until the fence is readable.
    """


def read_fence(paths: RunPaths) -> Fence | None:
    """Return the run's fence, None if it has none yet.

    Raises:
        FenceUnreadableError: The fence exists and cannot be read.
    """
    try:
        return Fence.read_or_none(paths.fence)
    except (RecordError, OSError) as error:
        raise FenceUnreadableError(f"{error}; nothing is committed until the fence can be read") from error


def check_not_removed(paths: RunPaths, start: int = 0) -> None:
    """Raise FenceUnreadableError where a fence that was not found was removed.

    The run had one if it has a lineage, which is written after the fence, or if the caller has taken its ``start``
    number in it: a snapshot that is put back has neither. A file that is absent for a moment, as on a network file
    system, may be the fence of another owner.
    """
    if start or os.path.exists(paths.lineage):
        raise fence_removed(paths)


def fence_removed(paths: RunPaths) -> FenceUnreadableError:
    """Return the error of a run whose fence was removed, with its hint."""
    return FenceUnreadableError(
        f"{paths.fence} has been removed; nothing is committed until it exists "
        f"(hint: midstream --repair {paths.run_id})"
    )


def check(paths: RunPaths, epoch: int, step: int, start: int = 0) -> Fence | None:
    """Return the fence if ``start`` of ``epoch`` may commit ``step-<step>``.

    The result stays valid only while the caller holds ``records.locked(paths.lock)``.

    Raises:
        FenceRejectedError: The fence does not accept that step of that epoch, or the start is superseded.
        FenceUnreadableError: The fence cannot be read, or has been removed.
    """
    fence = read_fence(paths)
    if fence is None:
        check_not_removed(paths, start)
    else:
        refuse_commit(fence, epoch, step, start, f"run {paths.run_id}")
    return fence


def refuse_commit(fence: Fence, epoch: int, step: int, start: int, what: str) -> None:
    """Raise FenceRejectedError unless a start may commit ``step-<step>``.

    ``what``: the run, for the message.
    """
    if not fence.accepts_epoch(epoch, step):
        raise FenceRejectedError(
            f"{what} is owned by {fence.owner} under ownership {fence.epoch}, "
            f"sealed at step {fence.sealed_step}: step {step} of ownership {epoch} is not accepted; "
            "this attempt must end"
        )
    if is_superseded(fence, epoch, start):
        raise SupersededError(
            f"{what} was started again on {fence.owner} (start {fence.start} of ownership {epoch}): "
            f"a later start has replaced start {start}, step {step} is not accepted, and this process must end"
        )


def is_superseded(fence: Fence, epoch: int, start: int) -> bool:
    """Return whether a newer start of the same epoch has the run."""
    return fence.epoch == epoch and fence.start > start


def seal(paths: RunPaths, *, epoch: int, owner: str, step: int, start: int = 0) -> Fence:
    """Give the run to ``owner`` under ``epoch`` and seal older epochs at ``step``.

    Returns the new fence. ``start``: that of the caller.

    Takes the run's lock. Repeating a seal changes nothing.

    Raises:
        FenceRejectedError: The start is superseded, or the fence is at this epoch or later, for another owner or step.
        FenceUnreadableError: The fence cannot be read.
    """
    with locked(paths.lock):
        fence = read_fence(paths)
        if fence is None:
            check_not_removed(paths, start)
        old = fence or Fence(epoch - 1, "")
        if (old.epoch, old.owner, old.sealed_step) == (epoch, owner, step):
            return old
        if old.start > start:
            raise SupersededError(
                f"run {paths.run_id} was started again (start {old.start} of ownership {old.epoch}): "
                f"a later start has replaced start {start}, which cannot seal it"
            )
        try:
            new = old.sealed(epoch, owner, step)
        except RecordError as error:
            raise FenceRejectedError(f"run {paths.run_id}: {error}") from error
        new.write(paths.fence)
        return new
