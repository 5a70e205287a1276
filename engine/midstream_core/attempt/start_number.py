"""Numbers of the starts of a run.

Each start of an engine or driver that may commit takes the next one. The start before it is closed at its newest
accepted checkpoint. Standard library only, Python 3.8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from midstream_core.attempt import save_fence
from midstream_core.attempt.save_fence import FenceRejectedError
from midstream_core.records import Fence, RecordError, RunPaths, locked, parse_checkpoint_name

Newest = Callable[[Fence], "str | None"]  # name of the newest complete checkpoint that a fence accepts


class BucketFence(Protocol):
    """The fence of a run in a bucket."""

    def read_fence(self, paths: RunPaths, /) -> tuple[Fence | None, str]:
        """Return the fence in the bucket and its version."""
        ...

    def write_fence(self, paths: RunPaths, fence: Fence, version: str, /) -> None:
        """Replace ``version`` of the fence.

        Raises FileExistsError where there is another version by now.
        """
        ...

    def hold_for_start(self, paths: RunPaths, checkpoint: str, /) -> bool:
        """Pin the checkpoint that a start continues from; return whether it exists."""
        ...


def take(
    paths: RunPaths, epoch: int, newest: Newest, other: Fence | None = None, bucket: BucketFence | None = None
) -> Fence | None:
    """Take the next start number of ``epoch``; return the fence that has it.

    None where no fence of this epoch is here: the caller has number 0, and may commit until one arrives.

    Args:
        paths: The run.
        epoch: The epoch of the caller.
        newest: Finds the checkpoint at which the present start is closed.
        other: Newest fence that other hosts of the attempt have.
        bucket: The fence in the bucket, of a run whose checkpoints are in one.

    Raises:
        FenceRejectedError: The run has passed to a later epoch, or has no further start number.
        FenceUnreadableError: The fence cannot be read.
    """
    if bool(paths.store) != (bucket is not None):
        raise ValueError(f"run {paths.run_id}: the fence of a bucket goes with a run that has one")
    with locked(paths.lock):
        here = save_fence.read_fence(paths)
        fence = max((entry for entry in (here, other) if entry), key=lambda entry: entry.order, default=None)
        if bucket is not None:
            taken = _take_in_bucket(bucket, paths, epoch, newest, fence)
        else:
            taken = _next(paths, epoch, fence, newest)[0]
        if taken is not None:
            taken.write(paths.fence)
        return taken


def adopt(paths: RunPaths, fence: Fence) -> None:
    """Write the fence that another host of the attempt has taken its number in.

    Epoch and start never decrease: a newer fence stays.
    """
    with locked(paths.lock):
        here = save_fence.read_fence(paths)
        if here is None or here.order < fence.order:
            fence.write(paths.fence)


def _next(paths: RunPaths, epoch: int, fence: Fence | None, newest: Newest) -> tuple[Fence | None, str]:
    """Return the next start's fence, and the checkpoint that it continues, if any."""
    if fence is None or fence.epoch < epoch:
        return None, ""
    if fence.epoch > epoch:
        raise FenceRejectedError(
            f"run {paths.run_id} has passed to {fence.owner} (ownership {fence.epoch}, sealed at {fence.sealed_step}); "
            f"ownership {epoch} cannot continue it"
        )
    name = newest(fence)
    parsed = parse_checkpoint_name(name) if name else None
    try:
        return fence.started(parsed[0] if parsed else fence.sealed_step), name or ""
    except RecordError as error:
        raise FenceRejectedError(f"run {paths.run_id}: {error}") from error


def _take_in_bucket(
    bucket: BucketFence, paths: RunPaths, epoch: int, newest: Newest, fence: Fence | None
) -> Fence | None:
    """Take a number in the bucket, which has no lock.

    The write replaces only the fence that was read.
    """
    while True:
        shared, version = bucket.read_fence(paths)
        present = max((entry for entry in (fence, shared) if entry), key=lambda entry: entry.order, default=None)
        taken, name = _next(paths, epoch, present, newest)
        if taken is None:
            return None
        if name and not bucket.hold_for_start(paths, name):
            continue  # the present start has removed it after a newer one
        try:
            bucket.write_fence(paths, taken, version)
        except FileExistsError:
            continue  # another start was faster
        return taken
