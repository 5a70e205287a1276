"""Which checkpoints in a run's bucket count, by what is proven of the run's owner.

A bucket has a fence and checkpoints, and no signed record. Any program that writes to it can show any epoch. What it
shows beyond the proven epoch is a claim: it makes no checkpoint count. It still limits what counts, as it may remember
what a restored host and operator do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from midstream_core import records
from midstream_core.listed_checkpoint import ListedCheckpoint


@dataclass(frozen=True)
class Acceptance:
    """Fences that all have to accept a checkpoint, and the highest proven epoch.

    Attributes:
        fences: The fences.
        proven: Newest epoch of a signed record or of the host's own fence; 0: nothing is known.
    """

    fences: tuple[records.Fence, ...]
    proven: int

    def accepts(self, epoch: int, step: int, start: int = 0) -> bool:
        """Return whether ``step-<step>``, committed by ``start`` of ``epoch``, counts."""
        is_proven = not self.proven or epoch <= self.proven
        return is_proven and all(fence.accepts(epoch, step, start) for fence in self.fences)


def acceptance(host: records.Fence | None, bucket: records.Fence | None, signed: int) -> Acceptance:
    """Return which checkpoints of a bucket count.

    Args:
        host: The fence of a host that is believed.
        bucket: The fence in the bucket.
        signed: Epoch of the newest signed record that is known; 0 without one.
    """
    fences = tuple(fence for fence in (host, bucket) if fence is not None)
    proven = max(host.epoch if host is not None else 0, signed)
    if bucket is not None and proven and bucket.epoch > proven:
        return Acceptance(fences, proven)
    newest = max(fences, key=lambda fence: fence.order, default=None)
    return Acceptance((newest,) if newest is not None else (), proven)


def claim(
    url: str, bucket: records.Fence | None, checkpoints: Iterable[ListedCheckpoint], proven: int, owned: str
) -> str:
    """Return what a bucket shows beyond the proven epoch, in one line, or nothing.

    Args:
        url: The run in the bucket.
        bucket: Its fence.
        checkpoints: As `BucketRun.checkpoints` describes them.
        proven: As of `Acceptance`.
        owned: Who is proven to own the run.
    """
    if bucket is not None and bucket.epoch > proven > 0:
        return f"{url} shows ownership {bucket.epoch} of {bucket.owner} without a signed record: {owned}"
    newer = [checkpoint for checkpoint in checkpoints if checkpoint.complete and checkpoint.epoch > proven > 0]
    if not newer:
        return ""
    newest = max(newer, key=lambda checkpoint: (checkpoint.epoch, checkpoint.step))
    return f"{url} has {newest.name} of ownership {newest.epoch} without a signed record: {owned}"


def owner_line(head: records.OwnershipRecord | None, host: str, fence: records.Fence | None) -> str:
    """Say who is proven to own a run: by a signed record, else by a host's fence."""
    if head is not None:
        return f"{head.owner} has it by a signed record (ownership {head.epoch})"
    return f"{host} has it under ownership {fence.epoch if fence is not None else 0}"
