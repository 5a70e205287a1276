"""Divide a run's global batch over devices.

Pure arithmetic. Data order and gradient do not depend on the result, because the engine weights micro-batches by
their tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from midstream.counts import count
from midstream.errors import MidstreamError
from midstream_core.json_types import RunConfig
from midstream_core.mesh_division import (
    DATA,
    MODEL,
    axis_mappings,
    axis_uses,
    device_counts,
    divisors,
    examples_at_once,
    shard_count,
    undivided,
)
from midstream_core.records import ArrayEntry


@dataclass(frozen=True)
class BatchShape:
    """``train_batch_size = data_parallel * per_device * accumulation``."""

    train_batch_size: int  # examples an update
    data_parallel: int  # devices along the data axis
    per_device: int  # examples of one device in a micro-batch
    accumulation: int  # micro-batches an update


def batch_shape(
    train_batch_size: int, devices: int, per_device_parallelism: int = -1, model_axis_size: int = 1
) -> BatchShape:
    """Divide ``train_batch_size`` over ``devices``.

    ``per_device_parallelism`` is a limit (-1: none): the result has the largest divisor that is not above it.

    Raises:
        MidstreamError: The batch cannot be divided; the hint has the device counts that can be used.
    """
    if devices % model_axis_size:
        raise MidstreamError(
            f"{count(devices, 'device')} cannot be divided into model groups of {model_axis_size} "
            "(trainer.model_axis_size)",
            f"choose a target with a multiple of {count(model_axis_size, 'device')}",
        )
    data_parallel = devices // model_axis_size
    if train_batch_size % data_parallel:
        counts = [divisor * model_axis_size for divisor in divisors(train_batch_size)]
        raise MidstreamError(
            f"a batch of {train_batch_size} cannot be divided over {data_parallel} data-parallel devices",
            f"device counts that divide it: {_nearest(counts, devices)}",
        )
    share = train_batch_size // data_parallel
    per_device = examples_at_once(share, per_device_parallelism)
    return BatchShape(train_batch_size, data_parallel, per_device, share // per_device)


def batch_sizes(train_batch_size: Any, step: int) -> list[int]:
    """Return the global batch sizes from ``step`` on, the current one first.

    ``train_batch_size`` is one number, or a schedule of ``{start, value}``.

    Raises:
        MidstreamError: It is neither.
    """
    single = [{"start": 0, "value": train_batch_size}]
    entries = cast("list[Any]", train_batch_size) if isinstance(train_batch_size, list) else single
    try:
        steps = sorted((int(entry["start"]), int(entry["value"])) for entry in entries)
    except (TypeError, KeyError, AttributeError, ValueError):
        raise MidstreamError(f"trainer.train_batch_size of the run cannot be read: {train_batch_size!r}") from None
    past = [size for start, size in steps if start <= step]
    sizes = [*past[-1:], *(size for start, size in steps if start > step)]
    if not sizes or min(sizes) < 1:
        raise MidstreamError(f"trainer.train_batch_size of the run is {train_batch_size!r}", "it has to be 1 or more")
    return sizes


def check_axes(arrays: Sequence[ArrayEntry], trainer: RunConfig, devices: int) -> list[str]:
    """Return a line for each sharded checkpoint axis that ``devices`` do not divide."""
    model_size = int(trainer.get("model_axis_size") or 1)
    mesh_shape = {DATA: max(1, devices // model_size), MODEL: model_size}
    sizes: dict[str, set[int]] = {}
    for array in arrays:
        for axis, size in zip(array.axes, array.shape, strict=True):
            sizes.setdefault(axis, set()).add(size)
    problems: set[str] = set()
    for use in undivided(axis_uses(axis_mappings(trainer), sizes), mesh_shape):
        shards = shard_count(mesh_shape, use.mesh_axes)
        counts = device_counts([use], model_size, use.size * model_size)
        problems.add(
            f"axis {use.axis} ({use.size}) cannot be sharded over {count(shards, 'device')}; "
            f"device counts that divide it: {_nearest(counts, devices) or 'none with this model_axis_size'}"
        )
    return sorted(problems)


def _nearest(counts: Sequence[int], requested: int) -> str:
    """Return the six counts nearest to ``requested``, ascending, as text."""
    nearest = sorted(counts, key=lambda count: abs(count - requested))[:6]
    return ", ".join(str(count) for count in sorted(nearest))
