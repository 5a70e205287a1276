"""Sharding of a model's arrays on the active mesh.

Layers and the loss need it while they are traced.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import NamedArray
from jax.sharding import PartitionSpec

from midstream_core.mesh_division import AxisMapping, partition
from midstream_engine.models.axes import BATCH

_AT_REST: ContextVar[AxisMapping | None] = ContextVar("at_rest", default=None)
_PHASES: ContextVar[tuple[int, ...]] = ContextVar("phases", default=())


@contextlib.contextmanager
def resting_mapping(mapping: AxisMapping, phases: tuple[int, ...] = ()) -> Iterator[None]:
    """Shard parameters at rest by ``mapping`` in this context.

    haliax has the mapping of the computation.

    Args:
        mapping: Of parameters at rest.
        phases: Devices in a group of each phase of a reduce-scatter over the batch's shards, of which they are the
            factors; empty: one phase.
    """
    tokens = _AT_REST.set(mapping), _PHASES.set(phases)
    try:
        yield
    finally:
        _AT_REST.reset(tokens[0])
        _PHASES.reset(tokens[1])


def mesh_platform() -> str:
    """Return the platform of the active mesh: "cpu", "tpu" or "gpu".

    The mesh's devices may not be on this host.

    Without a mesh it is the platform of jax's default devices.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def mesh_device_kind() -> str:
    """Return jax's name of the device kind of the active mesh.

    Without a mesh it is the kind of the default devices.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.devices()[0].device_kind if device is None else device.device_kind


def mesh_axes(axis: str) -> tuple[str, ...]:
    """Return the mesh axes that shard a named axis of activations, if any."""
    names = hax.partitioning.physical_axis_name(axis)
    if names is None or (hax.partitioning.physical_axis_size(axis) or 1) == 1:
        return ()
    return (names,) if isinstance(names, str) else tuple(names)


def gathered(parameter: NamedArray) -> NamedArray:
    """Return a parameter, cast to the compute precision, as the computation shards it.

    The gather is in that precision. Without the sharding at rest the compiler for GPUs gathers before the cast: twice
    the bytes. The compiler for TPUs casts first by itself, and would gather a tied embedding for its lookup too.
    """
    return hax.auto_sharded(at_rest(parameter))


def at_rest(parameter: NamedArray) -> NamedArray:
    """Return a parameter, cast to the compute precision, sharded as at rest.

    See :func:`gathered`.
    """
    resting = _AT_REST.get()
    return parameter if resting is None or mesh_platform() == "tpu" else hax.shard(parameter, resting)


def batch_shards() -> int:
    """Return the number of mesh parts that shard the batch; 1 without a mesh."""
    return (hax.partitioning.physical_axis_size(BATCH) or 1) if mesh_axes(BATCH) else 1


def by_batch_shard(array: jax.Array) -> jax.Array:
    """Map [batch, ...] to [shards, batch / shards, ...].

    The first axis is sharded as the batch was.
    """
    cut = array.reshape(batch_shards(), -1, *array.shape[1:])
    axes = mesh_axes(BATCH)
    if not axes:
        return cut
    rest = [PartitionSpec.UNCONSTRAINED] * (cut.ndim - 1)
    return jax.lax.with_sharding_constraint(cut, PartitionSpec(axes, *rest))


def batch_sum(parts: jax.Array, axes: Sequence[str]) -> jax.Array:
    """Sum the batch shards' gradients; shard the sum as the parameter is at rest.

    Where the parameter at rest is sharded over the batch's mesh axes this is one reduce-scatter in the dtype of
    ``parts``: half of the bytes of an all-reduce, which the compiler chooses by itself.

    Args:
        parts: [shards, ...], the first axis sharded as the batch.
        axes: Names of the other axes.
    """
    over = mesh_axes(BATCH)
    if not over:
        return parts[0]
    resting = partition(axes, _AT_REST.get() or {})
    if over not in resting:
        return jnp.sum(parts, 0, dtype=parts.dtype)
    cut = resting.index(over)
    others = [mesh_axes(axis) for axis in axes]
    others.insert(0, others.pop(cut))

    # The compiler for TPUs scatters the major axis alone; elsewhere the order is a matter of layout.
    def scatter(stacked: jax.Array) -> jax.Array:
        return _scatter(stacked[0], over)

    # Each device scatters its own part of that axis: where the computation shards it too, that is its outer division.
    moved = jnp.moveaxis(parts, 1 + cut, 1)
    scattered = jax.shard_map(
        scatter,
        in_specs=PartitionSpec(over, *others),
        out_specs=PartitionSpec((*others[0], *over), *others[1:]),
        check_vma=False,
    )(moved)
    return jnp.moveaxis(scattered, 0, cut)


def _scatter(array: jax.Array, over: tuple[str, ...]) -> jax.Array:
    """Return this device's share of the sum of ``array`` over the mesh axes ``over``.

    The share is a part of the first axis.

    With several phases (see :func:`resting_mapping`) it is summed in groups of devices, then over the groups.
    """
    sizes = list(_PHASES.get())
    if len(sizes) < 2 or len(over) != 1 or math.prod(sizes) != batch_shards():
        return jax.lax.psum_scatter(array, over, scatter_dimension=0, tiled=True)
    devices = np.arange(math.prod(sizes)).reshape(sizes)
    parts = array.reshape(*sizes, -1, *array.shape[1:])
    for axis in reversed(range(len(sizes))):  # neighbours first: they exchange the most
        groups = np.moveaxis(devices, axis, -1).reshape(-1, sizes[axis]).tolist()
        parts = jax.lax.psum_scatter(parts, over[0], scatter_dimension=axis, axis_index_groups=groups)
    return parts
