"""Division of a global batch over the devices, and into micro-batches in sequence."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass

import jax
import numpy as np
from haliax import Axis, NamedArray
from jax.sharding import NamedSharding, PartitionSpec

from midstream_core.mesh_division import divisors, examples_at_once
from midstream_engine.config.batch_schedule import BatchSchedule
from midstream_engine.config.errors import ConfigError
from midstream_engine.data.batches import Batch, TrainingBatches
from midstream_engine.models.lm import BATCH, POSITION
from midstream_engine.runtime.mesh import Layout, place

log = logging.getLogger(__name__)
MICRO = "micro"  # the axis of micro-batches, which are computed in order


@dataclass(frozen=True)
class Cut:
    """Division into ``micro`` micro-batches of ``size`` examples.

    Example e of the batch is row e % size of micro-batch e // size.
    """

    micro: int
    size: int
    sharding: NamedSharding  # of [micro, batch, position]

    @property
    def examples(self) -> int:
        """Examples in the batch."""
        return self.micro * self.size

    def axes(self, positions: int) -> tuple[Axis, Axis, Axis]:
        """Return the axes (micro, batch, position) of a divided batch."""
        return Axis(MICRO, self.micro), Axis(BATCH, self.size), Axis(POSITION, positions)

    def put(self, array: np.ndarray, dtype: type = np.int32) -> NamedArray:
        """Put this host's batch [batch, position] on devices as [micro, batch, position]."""
        cut = np.ascontiguousarray(array.reshape(self.micro, self.size, -1), dtype)
        return NamedArray(place(cut, self.sharding), self.axes(array.shape[-1]))

    def shape(self, positions: int, dtype: type = np.int32) -> NamedArray:
        """Return the shape of the result of ``put``, for lowering ahead of time."""
        axes = self.axes(positions)
        struct = jax.ShapeDtypeStruct(tuple(axis.size for axis in axes), dtype, sharding=self.sharding)
        return NamedArray(struct, axes)  # pyright: ignore[reportArgumentType]

    def rows(self, process: int) -> np.ndarray:
        """Return a batch's examples on the devices of ``process``, in order, int64 [n]."""
        return _rows(self)[process]

    def owned(self, process: int) -> np.ndarray:
        """Return those of its examples that no process before it has. int64 [n]."""
        earlier = [rows for other, rows in _rows(self).items() if other < process]
        return np.setdiff1d(self.rows(process), np.concatenate([np.empty(0, np.int64), *earlier]))


@functools.cache
def _rows(cut: Cut) -> dict[int, np.ndarray]:
    """Return the examples of a batch that the devices of each process have, in order."""
    examples = np.arange(cut.examples).reshape(cut.micro, cut.size, 1)
    rows_by_device: dict[int, set[int]] = {}
    for device, index in cut.sharding.devices_indices_map(examples.shape).items():
        rows_by_device.setdefault(device.process_index, set()).update(examples[index].ravel().tolist())
    return {process: np.array(sorted(rows), np.int64) for process, rows in rows_by_device.items()}


class ScheduledBatches:
    """Batches of a run whose batch size may change.

    Batch k begins where batch k - 1 ends.
    """

    def __init__(self, samples: TrainingBatches, schedule: BatchSchedule) -> None:
        self.cache, self.sequences = samples.cache, samples.sequences
        self._samples, self._schedule = samples, schedule

    def batch(self, index: int, rows: np.ndarray | None = None) -> Batch:
        """Read batch ``index``, or only its ``rows`` (int64 [n]).

        The time does not depend on ``index``.
        """
        return self._samples.samples(index, self._schedule.first_sample(index), self._schedule.size(index), rows)

    def epoch(self, index: int) -> float:
        """Return how many times the data has been read when batch ``index`` begins."""
        return self._schedule.first_sample(index) / self.sequences

    def under(self, schedule: BatchSchedule) -> ScheduledBatches:
        """Return the same samples in the batches of ``schedule``."""
        return ScheduledBatches(self._samples, schedule)


def cut_batch(layout: Layout, batch_size: int, per_device: int, name: str = "trainer.per_device_parallelism") -> Cut:
    """Divide a batch; a device computes at most ``per_device`` examples at a time.

    Args:
        layout: The mesh and mappings.
        batch_size: Examples in the batch.
        per_device: -1 for a device's complete share of the batch.
        name: The key of ``per_device`` in the configuration, for messages.

    Raises:
        ConfigError: The devices' shares would not be equal.
    """
    shards = layout.batch_shards
    if batch_size % shards:
        raise ConfigError(
            f"trainer.train_batch_size: {batch_size} does not divide over {shards} devices; "
            f"it does over {', '.join(map(str, divisors(batch_size)))}"
        )
    share = batch_size // shards
    at_once = examples_at_once(share, per_device)
    if per_device > at_once:
        log.info("%s: %d does not divide a device's %d examples of a batch; using %d", name, per_device, share, at_once)
    names = layout.compute.get(layout.batch_axis, ())
    sharded = names[0] if len(names) == 1 else names or None
    sharding = NamedSharding(layout.mesh, PartitionSpec(None, sharded, None))
    return Cut(share // at_once, at_once * shards, sharding)
