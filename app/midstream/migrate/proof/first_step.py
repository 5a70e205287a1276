"""First step that a trainer logged after a start, beside its checkpoint's number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from midstream.counts import count
from midstream.migrate.proof.replay_overlap import Overlap
from midstream_core.json_types import LoggedRow


@dataclass(frozen=True)
class FirstStep:
    """The first step, and what the number of the checkpoint is.

    A script may store the number of its last step in place of the number of updates: the first row is then one too
    late, which equal losses explain, and nothing else.

    Attributes:
        checkpoint: Step of the checkpoint.
        first: First step that was logged.
        interval: Steps between two rows.
        logged: Whether the source has a row of the checkpoint's own step.
        same: Whether losses of both sides are equal bit by bit.
    """

    checkpoint: int
    first: int
    interval: int
    logged: bool
    same: bool

    @property
    def continues(self) -> bool:
        """Whether it is the next one, within the logging interval."""
        return self.checkpoint <= self.first < self.checkpoint + self.interval

    @property
    def may_follow_last_step(self) -> bool:
        """Whether it is the next one if the checkpoint has the number of its last step."""
        return self.first == self.checkpoint + self.interval and self.logged

    @property
    def follows_last_step(self) -> bool:
        """Whether the checkpoint is shown to have the number of its last step."""
        return self.may_follow_last_step and self.same

    @property
    def text(self) -> str:
        """Statement of a claim about it."""
        if self.may_follow_last_step:
            what = f"and the source has logged step {self.checkpoint} of the checkpoint"
            return f"the first step that the target logged is {self.first}, {what}"
        if self.continues:
            return f"the first step that the target logged is {self.first}, after {count(self.checkpoint, 'update')}"
        what = f"the checkpoint has {count(self.checkpoint, 'update')}"
        return f"the first step that the target logged is {self.first}; {what}"


def first_step(
    checkpoint: int, source: Sequence[LoggedRow], target: Sequence[LoggedRow], overlaps: Sequence[Overlap]
) -> FirstStep:
    """Return it of the target's rows, of which there is one at least."""
    steps = [row["global_step"] for row in (*source, *target)]
    gaps = [after - before for before, after in pairwise(steps) if after > before]
    compared = [overlap for overlap in overlaps if overlap.steps]
    return FirstStep(
        checkpoint,
        target[0]["global_step"],
        max(1, min(gaps, default=1)),
        any(row["global_step"] == checkpoint for row in source),
        bool(compared) and all(overlap.identical for overlap in compared),
    )
