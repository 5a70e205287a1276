"""Fence of an attempt of another trainer.

Its driver enforces it, because the trainer cannot read it.
"""

from __future__ import annotations

from midstream_engine import records
from midstream_engine.checkpoint import save_fence
from midstream_engine.foreign.attempt.attempt_place import AttemptPlace


def check_fence(place: AttemptPlace, *, first: bool) -> None:
    """Raise FenceRejectedError where a later epoch has the run.

    ``first``: this is the first node, which writes the fence of a run that has none. Raises FenceUnreadableError where
    the fence cannot be read, or has been removed.
    """
    paths = place.paths
    with records.locked(paths.lock):
        fence = save_fence.read_fence(paths)
        if fence is None and first:
            save_fence.check_not_removed(paths)
            fence = records.Fence(place.epoch, place.target)
            fence.write(paths.fence)
    if fence is not None and fence.epoch > place.epoch:
        raise save_fence.FenceRejectedError(
            "run {} belongs to {} (epoch {}, sealed at step {}); epoch {} cannot continue it".format(
                paths.run_id, fence.owner, fence.epoch, fence.sealed_step, place.epoch
            )
        )


def keep_fence(place: AttemptPlace) -> None:
    """Raise FenceRejectedError where the run has passed to another epoch.

    A fence that cannot be read is read again at the next call: the trainer trains on.
    """
    try:
        fence = save_fence.read_fence(place.paths)
    except save_fence.FenceUnreadableError:
        return
    if fence is not None and fence.epoch > place.epoch:
        raise save_fence.FenceRejectedError(
            "run {} has passed to {} (epoch {})".format(place.paths.run_id, fence.owner, fence.epoch)
        )
