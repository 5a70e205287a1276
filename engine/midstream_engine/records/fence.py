"""Fence of a run against commits of older epochs.

It says which epoch may commit checkpoints, and up to which step older epochs count.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Dict, List, Optional

from midstream_engine.records.errors import RecordError
from midstream_engine.records.field_forms import NAME
from midstream_engine.records.record import JsonRecord


@dataclasses.dataclass(frozen=True)
class Seal(JsonRecord):
    """Limit of the checkpoints of ``epoch`` and older ones: ``step-<step>``.

    They count up to and including it.

    ``alone``: the seal limits that one epoch only. A rollback writes such a seal; it does not limit older epochs.
    """

    epoch: int
    step: int
    alone: bool = False


@dataclasses.dataclass(frozen=True)
class Fence(JsonRecord):
    """``fence.json``: the epoch that may commit, and its owner.

    ``seals`` has one entry per closed epoch: the newest seal alone would accept too much from a writer that was sealed
    two migrations ago.
    """

    FORMAT: ClassVar[int] = 1

    epoch: int
    owner: str = dataclasses.field(metadata={"form": NAME})
    sealed_step: Optional[int] = None  # first step of the current epoch; None for a run that has not been migrated
    seals: List[Dict[str, Any]] = dataclasses.field(default_factory=lambda: [], metadata={"items": Seal})

    def accepts(self, epoch: int, step: int) -> bool:
        """Return whether a checkpoint belongs to the accepted lineage.

        The checkpoint is ``step-<step>`` of ``epoch``.
        """
        if epoch >= self.epoch:
            return True
        seals = [Seal.from_checked(seal) for seal in self.seals]
        limits = [seal.step for seal in seals if seal.epoch == epoch or (seal.epoch > epoch and not seal.alone)]
        return bool(limits) and step <= min(limits)

    def sealed(self, epoch: int, owner: str, step: int) -> Fence:
        """Return the fence after the run passed to ``owner`` under ``epoch``.

        The older epochs are sealed at ``step``.

        Raises RecordError unless ``epoch`` is higher than the present one.
        """
        if epoch <= self.epoch:
            raise RecordError(
                f"the fence is already at epoch {self.epoch} (owner {self.owner}); cannot seal with {epoch}"
            )
        return Fence(epoch, owner, step, [*self.seals, Seal(epoch - 1, step).to_json()])

    def rolled_back(self, owner: str, step: int) -> Fence:
        """Return the fence after the last migration was rolled back.

        It has one epoch more, and is owned by ``owner`` again.

        The owner goes on from its own ``step-<step>``. What the target did past the seal is not accepted; what the
        source had saved past it is accepted again. Raises RecordError where there is no such migration.
        """
        if self.sealed_step is None or not self.seals or step < self.sealed_step:
            raise RecordError(
                f"the fence (epoch {self.epoch}, sealed at {self.sealed_step}) has no migration to roll back"
            )
        seals = [
            *self.seals[:-1],
            Seal(self.epoch - 1, step).to_json(),
            Seal(self.epoch, self.sealed_step, True).to_json(),
        ]
        return Fence(self.epoch + 1, owner, step, seals)


def first_fence(owner: str) -> Fence:
    """Return the fence of a run that has not been migrated."""
    return Fence(1, owner)
