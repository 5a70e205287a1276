"""The update that the devices compute while the loop handles the one before."""

from __future__ import annotations

from dataclasses import dataclass

from midstream_engine.array_types import Leaf
from midstream_engine.computation.train_step import StepResult
from midstream_engine.data.batches import Batch


@dataclass(frozen=True)
class RunningUpdate:
    """An update that was dispatched and is not settled."""

    index: int
    batch: Batch
    result: StepResult
    dispatched: float  # seconds of the monotonic clock
    loading: float  # seconds that the loop waited for the batch
    completed: tuple[float, float] | None = None  # seconds of the monotonic clock and of UTC; None: not waited for

    @property
    def done(self) -> bool:
        """Whether the devices have computed it."""
        loss: Leaf = self.result.loss  # jax.Array declares no is_ready
        return loss.is_ready()
