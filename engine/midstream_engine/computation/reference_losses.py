"""Reference losses: losses of fixed sequences at a saved state.

The target recomputes and compares them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis, NamedArray
from jax.sharding import NamedSharding, PartitionSpec

from midstream_core import records
from midstream_engine.array_types import Compiled
from midstream_engine.computation.program_cache import cached_program
from midstream_engine.computation.setup import CompilePlan
from midstream_engine.data.batches import Batch, example_digest
from midstream_engine.models.lm import BATCH, POSITION, LmModel, token_losses
from midstream_engine.processes.rendezvous import ALONE, Processes
from midstream_engine.runtime.mesh import place

SEQUENCES = 8
TOLERANCE = 1e-4  # relative


def losses_of(model: LmModel, tokens: NamedArray, mask: NamedArray, *, eos: int | None) -> NamedArray:
    """Return the mean loss of each sequence, float32 [batch], without dropout.

    Products have the highest matmul precision.
    """
    with jax.default_matmul_precision("highest"):
        wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), model)
        losses = hax.sum(token_losses(wide, tokens, mask, eos=eos), POSITION)
        return losses / hax.maximum(hax.sum(mask.astype(jnp.float32), POSITION), 1.0)


@dataclass(frozen=True)
class MeasuredLosses:
    """Losses of the first sequences of a batch, and the digests of both."""

    losses: list[float]
    sequences: str  # SHA-256 over the sequences' example digests
    batch_digest: str

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form in ``train.json``."""
        return {"losses": self.losses, "sequences": self.sequences, "batch_digest": self.batch_digest}


class ReferenceLosses:
    """Measurement of reference losses on a layout, by a program of its own."""

    def __init__(self, setup: CompilePlan, processes: Processes = ALONE) -> None:
        layout, seq_len, eos = setup.layout, setup.positions, setup.eos
        self.count = min(SEQUENCES, max(size for _, size in setup.batch_schedule.points))
        names = layout.compute.get(layout.batch_axis, ()) if self.count % layout.batch_shards == 0 else ()
        self._axes = (Axis(BATCH, self.count), Axis(POSITION, seq_len))
        self._sharding = NamedSharding(layout.mesh, PartitionSpec(names or None, None))
        # Fewer sequences than devices: every device computes all of them, which needs no batch axis on the mesh.
        compute = dict(layout.compute)
        if not names:
            compute.pop(layout.batch_axis, None)
        shape = jax.ShapeDtypeStruct((self.count, seq_len), np.int32, sharding=self._sharding)
        named = NamedArray(shape, self._axes)  # pyright: ignore[reportArgumentType]
        arguments = (setup.abstract.model, named, named)

        def measure(model: LmModel, tokens: NamedArray, mask: NamedArray) -> jax.Array:
            return losses_of(model, tokens, mask, eos=eos).array

        def make() -> Compiled:
            with layout.active(), hax.axis_mapping(compute):
                return jax.jit(measure, out_shardings=layout.replicated()).lower(*arguments).compile()

        self.compiled: Compiled = cached_program(setup, f"reference-losses-{self.count}", make, arguments, 0)
        self._program = processes.consensus("reference_losses", self.compiled)

    def measure(self, model: LmModel, batch: Batch) -> MeasuredLosses:
        """Measure the first ``count`` sequences of ``batch``, or all where it has fewer."""
        tokens, mask = batch.tokens[: self.count], batch.loss_mask[: self.count]
        missing = ((0, self.count - len(tokens)), (0, 0))
        padded = [self._put(np.pad(array, missing)) for array in (tokens, mask)]
        losses = np.asarray(self._program(model, *padded))[: len(tokens)]
        digests = b"".join(example_digest(*example) for example in zip(tokens, mask, strict=True))
        return MeasuredLosses([float(loss) for loss in losses], hashlib.sha256(digests).hexdigest(), batch.digest)

    def _put(self, array: np.ndarray) -> NamedArray:
        return NamedArray(place(array.astype(np.int32), self._sharding), self._axes)


def worst_error(recorded: list[float], recomputed: list[float]) -> float:
    """Return the largest relative difference.

    Infinity where the numbers of losses differ.
    """
    if len(recorded) != len(recomputed):
        return float("inf")
    return max((records.relative_difference(a, b) for a, b in zip(recorded, recomputed, strict=True)), default=0.0)
