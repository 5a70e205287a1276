"""Division of axes and batches over a mesh, for the engine and the app's planner.

The mesh has two axes, data and model. A configuration maps each named axis of an array to mesh axes; the product of
their sizes has to divide the axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from midstream_core.json_types import JsonObject, JsonValue, optional_list, optional_object

DATA, MODEL = "data", "model"  # the mesh's axes
AxisMapping = Mapping[str, tuple[str, ...]]  # a named axis -> the mesh axes that shard it


class AxisUse(NamedTuple):
    """A named axis of some array, and the mesh axes that shard it."""

    axis: str
    size: int
    mesh_axes: tuple[str, ...]


def axis_mappings(trainer: JsonObject) -> tuple[AxisMapping, AxisMapping]:
    """Return the mappings of parameters at rest and of computation in ``trainer``.

    A missing field has its default; a name alone stands for a list of one.
    """
    tensor = {axis: [MODEL] for axis in _names(trainer.get("tensor_parallel_axes"))}
    shared: JsonObject = {**tensor, **optional_object(trainer.get("axis_resources"))}
    fsdp_axis = trainer.get("fsdp_axis")
    fsdp = {axis: [DATA] for axis in _names("embed" if fsdp_axis is None else fsdp_axis)}
    parameters: JsonObject = {**fsdp, **shared, **optional_object(trainer.get("parameter_axis_resources"))}
    batch_axis = str(trainer.get("batch_axis") or "batch")
    compute: JsonObject = {
        batch_axis: [DATA],
        **shared,
        **optional_object(trainer.get("compute_axis_resources")),
    }
    return _mapping(parameters), _mapping(compute)


def _mapping(mapping: JsonObject) -> AxisMapping:
    return {axis: tuple(_names(names)) for axis, names in mapping.items() if names}


def _names(value: JsonValue) -> list[str]:
    return [value] if isinstance(value, str) else [str(name) for name in optional_list(value)]


def partition(axes: Iterable[str], mapping: AxisMapping) -> tuple[tuple[str, ...], ...]:
    """Return the mesh axes of each named axis of an array.

    A mesh axis shards the first axis mapped to it.
    """
    used: set[str] = set()
    parts: list[tuple[str, ...]] = []
    for axis in axes:
        names = tuple(name for name in mapping.get(axis, ()) if name not in used)
        used.update(names)
        parts.append(names)
    return tuple(parts)


def shard_count(mesh_shape: Mapping[str, int], mesh_axes: Iterable[str]) -> int:
    """Return the number of shards of an axis that these mesh axes shard.

    A mesh axis that does not exist counts 1.
    """
    count = 1
    for name in mesh_axes:
        count *= mesh_shape.get(name, 1)
    return count


def axis_uses(mappings: Iterable[AxisMapping], sizes: Mapping[str, Iterable[int]]) -> list[AxisUse]:
    """Return every mapped axis with each of its ``sizes``."""
    return [
        AxisUse(axis, size, names)
        for mapping in mappings
        for axis, names in mapping.items()
        for size in sizes.get(axis, ())
    ]


def undivided(uses: Iterable[AxisUse], mesh_shape: Mapping[str, int]) -> list[AxisUse]:
    """Return the axes that a mesh of this shape does not divide."""
    return [use for use in uses if use.size % shard_count(mesh_shape, use.mesh_axes)]


def device_counts(uses: Sequence[AxisUse], model_axis_size: int, largest: int) -> list[int]:
    """Return the device counts whose mesh divides every axis, up to ``largest``."""
    counts = range(model_axis_size, largest + 1, model_axis_size)
    return [n for n in counts if not undivided(uses, {DATA: n // model_axis_size, MODEL: model_axis_size})]


def divisors(number: int) -> list[int]:
    """Return the positive divisors of ``number``, ascending."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return small + [number // divisor for divisor in reversed(small) if divisor * divisor != number]


def examples_at_once(share: int, per_device: int) -> int:
    """Return how many of its ``share`` of a batch a device computes at a time.

    ``per_device`` is ``trainer.per_device_parallelism``, a limit: micro-batches are equal, so it is the largest divisor
    of the share that is not above it. Below 1 it is the complete share.
    """
    return share if per_device < 1 else max(divisor for divisor in divisors(share) if divisor <= per_device)
