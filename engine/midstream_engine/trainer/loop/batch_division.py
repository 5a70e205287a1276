"""How a global batch is cut: over the devices, and into micro-batches one after the other."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass

import jax
import numpy as np
from haliax import Axis, NamedArray
from jax.sharding import NamedSharding, PartitionSpec

from midstream_engine.config.batch_schedule import BatchSchedule
from midstream_engine.config.errors import ConfigError
from midstream_engine.data.order.batches import Batch, TrainingBatches
from midstream_engine.models.lm import BATCH, POSITION
from midstream_engine.trainer.runtime.mesh import Layout, place

log = logging.getLogger(__name__)
MICRO = "micro"  # the axis of micro-batches, walked in order


@dataclass(frozen=True)
class Cut:
    """``micro`` micro-batches of ``size`` examples. Example e of the batch is row e % size of micro-batch e // size."""

    micro: int
    size: int
    sharding: NamedSharding  # of [micro, batch, position]

    @property
    def examples(self) -> int:
        return self.micro * self.size

    def axes(self, positions: int) -> tuple[Axis, Axis, Axis]:
        return Axis(MICRO, self.micro), Axis(BATCH, self.size), Axis(POSITION, positions)

    def put(self, array: np.ndarray, dtype: type = np.int32) -> NamedArray:
        """[batch, position] on this host -> [micro, batch, position] on the devices."""
        cut = np.ascontiguousarray(array.reshape(self.micro, self.size, -1), dtype)
        return NamedArray(place(cut, self.sharding), self.axes(array.shape[-1]))

    def shape(self, positions: int, dtype: type = np.int32) -> NamedArray:
        """The shape of what ``put`` gives, for lowering ahead of time."""
        axes = self.axes(positions)
        struct = jax.ShapeDtypeStruct(tuple(axis.size for axis in axes), dtype, sharding=self.sharding)
        return NamedArray(struct, axes)  # pyright: ignore[reportArgumentType]

    def rows(self, process: int) -> np.ndarray:
        """The examples of a batch that the devices of ``process`` hold, in order. int64 [n]."""
        return _rows(self)[process]

    def owned(self, process: int) -> np.ndarray:
        """Those of them that no process before it holds. int64 [n]."""
        earlier = [rows for other, rows in _rows(self).items() if other < process]
        return np.setdiff1d(self.rows(process), np.concatenate([np.empty(0, np.int64), *earlier]))


@functools.cache
def _rows(cut: Cut) -> dict[int, np.ndarray]:
    """By process: the examples of a batch that its devices hold, in order."""
    examples = np.arange(cut.examples).reshape(cut.micro, cut.size, 1)
    held: dict[int, set[int]] = {}
    for device, index in cut.sharding.devices_indices_map(examples.shape).items():
        held.setdefault(device.process_index, set()).update(examples[index].ravel().tolist())
    return {process: np.array(sorted(rows), np.int64) for process, rows in held.items()}


class ScheduledBatches:
    """Batch k of a run whose batches may change their size: it begins where batch k - 1 ended."""

    def __init__(self, samples: TrainingBatches, schedule: BatchSchedule):
        self.cache, self.sequences = samples.cache, samples.sequences
        self._samples, self._schedule = samples, schedule

    def batch(self, index: int, rows: np.ndarray | None = None) -> Batch:
        """Batch ``index``, in time that does not depend on ``index``. Only ``rows`` of it are read (int64 [n]; None:
        all)."""
        return self._samples.samples(index, self._schedule.first_sample(index), self._schedule.size(index), rows)

    def epoch(self, index: int) -> float:
        """How many times the data has been read when batch ``index`` begins."""
        return self._schedule.first_sample(index) / self.sequences

    def under(self, schedule: BatchSchedule) -> ScheduledBatches:
        """The same samples in batches of other sizes."""
        return ScheduledBatches(self._samples, schedule)


def cut_batch(layout: Layout, batch_size: int, per_device: int, name: str = "trainer.per_device_parallelism") -> Cut:
    """``per_device`` examples on each device at a time; -1, or more than a device's share: its share at once.

    Raises ConfigError where the micro-batches would not be equal.
    """
    shards = layout.batch_shards
    if batch_size % shards:
        good = [count for count in range(1, batch_size + 1) if batch_size % count == 0]
        raise ConfigError(
            f"trainer.train_batch_size: {batch_size} does not divide over {shards} devices; "
            f"it does over {', '.join(map(str, good))}"
        )
    share = batch_size // shards
    if per_device > share:
        log.info("%s: %d is more than a device's share of the batch; using %d", name, per_device, share)
    at_once = share if per_device < 1 else min(per_device, share)
    if share % at_once:
        good = [count for count in range(1, share + 1) if share % count == 0]
        raise ConfigError(
            f"{name}: {at_once} does not divide each device's {share} examples of a batch; "
            f"use one of {', '.join(map(str, good))}"
        )
    names = layout.compute.get(layout.batch_axis, ())
    part = names[0] if len(names) == 1 else names or None
    sharding = NamedSharding(layout.mesh, PartitionSpec(None, part, None))
    return Cut(share // at_once, at_once * shards, sharding)
