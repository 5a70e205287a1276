"""Fence of another trainer's attempt, which the driver enforces."""

from __future__ import annotations

from midstream_core import records
from midstream_core.attempt import save_fence, start_number
from midstream_host.driver import recorded_checkpoints
from midstream_host.driver.attempt_place import AttemptPlace


def check_fence(place: AttemptPlace, *, first: bool) -> AttemptPlace:
    """Return the place with its start number.

    Raises FenceRejectedError where a later epoch has the run. ``first``: this is the first node, which writes the
    fence of a run that has none, and takes the number. Raises FenceUnreadableError where the fence cannot be read, or
    has been removed.
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
            "run {} belongs to {} (ownership {}, sealed at step {}); ownership {} cannot continue it".format(
                paths.run_id, fence.owner, fence.epoch, fence.sealed_step, place.epoch
            )
        )
    if not first:
        return place
    taken = start_number.take(paths, place.epoch, lambda fence: recorded_checkpoints.newest(paths, fence))
    return place._replace(start=taken.start if taken is not None else 0)


def keep_fence(place: AttemptPlace) -> None:
    """Raise FenceRejectedError if a newer epoch or start has the run.

    A fence that cannot be read is read again at the next call: the trainer trains on.
    """
    try:
        fence = save_fence.read_fence(place.paths)
    except save_fence.FenceUnreadableError:
        return
    if fence is not None and fence.epoch > place.epoch:
        raise save_fence.FenceRejectedError(
            "run {} has passed to {} (ownership {})".format(place.paths.run_id, fence.owner, fence.epoch)
        )
    if fence is not None and place.start and save_fence.is_superseded(fence, place.epoch, place.start):
        raise save_fence.FenceRejectedError(
            "run {} was started again (start {} of ownership {}): start {} ends".format(
                place.paths.run_id, fence.start, fence.epoch, place.start
            )
        )
