"""Fence of a run against commits of older epochs and of superseded starts.

The fence names the start and the epoch that may commit checkpoints, and the step up to which older ones count.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Dict, List, Optional, Tuple

from midstream_core.json_types import JsonValue, RecordFields
from midstream_core.records.errors import RecordError
from midstream_core.records.field_forms import NAME
from midstream_core.records.record import JsonRecord

# Last epoch, and last start: checkpoints' names have 9 digits of a start, and engines agree on an epoch in 32 bits.
LAST = 10**9 - 1


@dataclasses.dataclass(frozen=True)
class Seal(JsonRecord):
    """Limit of checkpoints of ``epoch`` and older ones, ``step-<step>`` included."""

    epoch: int
    step: int
    alone: bool = False


@dataclasses.dataclass(frozen=True)
class ClosedStart(JsonRecord):
    """Limit of a superseded start's checkpoints, ``step-<step>`` included; None: none."""

    epoch: int
    start: int
    step: Optional[int] = None


@dataclasses.dataclass(frozen=True)
class Fence(JsonRecord):
    """``fence.json``: the epoch that may commit, its owner, and its newest start.

    ``seals`` has one entry per closed epoch: the newest seal alone would accept too much from a writer that was sealed
    two migrations ago.

    Each start of an engine, or of a driver of another trainer, that may commit has a number of its own within the
    epoch. ``start`` is the newest one; ``starts`` has one entry per superseded one. A version without start numbers
    writes neither, ignores both on reading, and follows the epochs alone: its starts have number 0.
    """

    FORMAT: ClassVar[int] = 1

    epoch: int
    owner: str = dataclasses.field(metadata={"form": NAME})
    sealed_step: Optional[int] = None  # first step of the current epoch; None for a run that has not been migrated
    seals: List[Dict[str, JsonValue]] = dataclasses.field(default_factory=lambda: [], metadata={"items": Seal})
    start: int = 0  # newest start of the current epoch; 0: no numbered one yet
    starts: List[RecordFields] = dataclasses.field(default_factory=lambda: [], metadata={"items": ClosedStart})

    @property
    def order(self) -> Tuple[int, int]:
        """Epoch and start, which never decrease as a pair."""
        return self.epoch, self.start

    def accepts(self, epoch: int, step: int, start: int = 0) -> bool:
        """Return whether the accepted lineage has ``step-<step>`` of this epoch and start."""
        return self.accepts_epoch(epoch, step) and step <= self.start_limit(epoch, start)

    def accepts_epoch(self, epoch: int, step: int) -> bool:
        """Return whether ``step`` of ``epoch`` counts, for some start of it.

        The rule of what has no start number, such as a row of metrics of an earlier version.
        """
        return step <= self.epoch_limit(epoch)

    def epoch_limit(self, epoch: int) -> float:
        """Return the last step of ``epoch`` that counts.

        Infinity for the present one, -1 where none does.
        """
        if epoch >= self.epoch:
            return math.inf
        seals = [Seal.from_checked(seal) for seal in self.seals]
        limits = [seal.step for seal in seals if seal.epoch == epoch or (seal.epoch > epoch and not seal.alone)]
        return min(limits, default=-1)

    def start_limit(self, epoch: int, start: int) -> float:
        """Return the last step that counts of ``start`` of ``epoch``.

        The epoch's own limit is left out. Infinity for a start that no later one has superseded, -1 where none does.
        """
        if (epoch, start) >= self.order:
            return math.inf
        closed = [ClosedStart.from_checked(entry) for entry in self.starts]
        limits = [entry.step for entry in closed if entry.epoch == epoch and entry.start >= start]
        if not limits:  # the last start of an older epoch: its seal is the limit
            return math.inf if epoch < self.epoch else -1
        return min(-1 if limit is None else limit for limit in limits)

    def refuse_last(self) -> None:
        """Raise RecordError where no epoch or no start can follow."""
        _refuse_last(self.epoch, "ownership")
        _refuse_last(self.start, "start")

    def continues(self, other: Fence) -> bool:
        """Return whether this is ``other``, perhaps after further starts."""
        same = dataclasses.replace(self, start=other.start, starts=other.starts) == other
        return same and self.start >= other.start and self.starts[: len(other.starts)] == other.starts

    def sealed(self, epoch: int, owner: str, step: int) -> Fence:
        """Return the fence of ``owner`` under ``epoch``; older epochs end at ``step``.

        Raises RecordError unless ``epoch`` is higher than the present one, and lower than the last one.
        """
        if epoch <= self.epoch:
            raise RecordError(
                f"the fence is already at ownership {self.epoch} (owner {self.owner}); cannot seal with {epoch}"
            )
        _refuse_last(epoch, "ownership")
        return Fence(epoch, owner, step, [*self.seals, Seal(epoch - 1, step).to_json()], 0, self.starts)

    def started(self, newest: Optional[int]) -> Fence:
        """Return the fence after the next start took the run over.

        ``newest``: step of the newest complete checkpoint that this fence accepts, from which that start continues;
        None without one. The present start is closed there. Raises RecordError after the last number.
        """
        _refuse_last(self.start + 1, "start")
        closed = ClosedStart(self.epoch, self.start, newest).to_json()
        return dataclasses.replace(self, start=self.start + 1, starts=[*self.starts, closed])

    def rolled_back(self, owner: str, step: int) -> Fence:
        """Return the fence, an epoch further, after the last migration was rolled back.

        ``owner`` owns the run again.

        The owner goes on from its own ``step-<step>``. What the target did past the seal is not accepted; what the
        source had saved past it is accepted again. Raises RecordError where there is no such migration.
        """
        if self.sealed_step is None or not self.seals or step < self.sealed_step:
            raise RecordError(
                f"the fence (ownership {self.epoch}, sealed at {self.sealed_step}) has no migration to roll back"
            )
        _refuse_last(self.epoch + 1, "ownership")
        seals = [
            *self.seals[:-1],
            Seal(self.epoch - 1, step).to_json(),
            Seal(self.epoch, self.sealed_step, True).to_json(),
        ]
        return Fence(self.epoch + 1, owner, step, seals, 0, self.starts)


def _refuse_last(number: int, what: str) -> None:
    """Raise RecordError for a number that none can follow: damaged, or false."""
    if number >= LAST:
        place = "the last one" if number == LAST else f"past the last one ({LAST})"
        raise RecordError(f"{what} {number} is {place}: a fence with it is damaged, or false")


def first_fence(owner: str) -> Fence:
    """Return the fence of a run that has not been migrated."""
    return Fence(1, owner)
