"""The fence on disk: who may go on with a run. :class:`midstream_engine.records.Fence` holds the rule itself."""

from __future__ import annotations

from midstream_engine.checkpoint.errors import CheckpointError
from midstream_engine.records import Fence, RecordError, RunPaths, locked


class Fenced(Exception):
    """The run was handed to another holder; what this process would commit is not of the accepted lineage."""


class FenceUnreadable(CheckpointError):
    """The fence is there and cannot be read: who may go on with the run is not known. Training goes on; nothing is
    committed until it can be read again."""


def read_fence(paths: RunPaths) -> Fence | None:
    """The run's fence; None where the run has none yet. FenceUnreadable."""
    try:
        return Fence.read_or_none(paths.fence)
    except (RecordError, OSError) as error:
        raise FenceUnreadable(f"{error}; nothing is committed until the fence can be read") from error


def check(paths: RunPaths, epoch: int, step: int) -> Fence | None:
    """The fence, after making sure that it accepts ``step-<step>`` of ``epoch``; else Fenced. FenceUnreadable.

    Only an answer obtained while ``records.locked(paths.lock)`` is held stays true until what follows is done.
    """
    fence = read_fence(paths)
    if fence is not None and not fence.accepts(epoch, step):
        raise Fenced(
            f"run {paths.run_id} is held by {fence.owner} under epoch {fence.epoch}, "
            f"sealed at step {fence.sealed_step}: step {step} of epoch {epoch} is not accepted; this attempt has to end"
        )
    return fence


def seal(paths: RunPaths, *, epoch: int, holder: str, step: int) -> Fence:
    """Hand the run to ``holder`` under ``epoch``, everything before it sealed at ``step``; returns the new fence.

    Takes the run's lock. Sealing the same thing twice is the same as once. Raises Fenced where the fence is already
    at this epoch or past it for another holder or step, FenceUnreadable where it cannot be read.
    """
    with locked(paths.lock):
        old = read_fence(paths) or Fence(epoch - 1, "")
        if (old.epoch, old.owner, old.sealed_step) == (epoch, holder, step):
            return old
        try:
            new = old.sealed(epoch, holder, step)
        except RecordError as error:
            raise Fenced(f"run {paths.run_id}: {error}") from error
        new.write(paths.fence)
        return new
