"""The mesh of devices, and the mappings from named axes to its axes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import haliax as hax
import jax
import numpy as np
from haliax import NamedArray
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from midstream_core.mesh_division import (
    DATA,
    MODEL,
    AxisMapping,
    axis_mappings,
    axis_uses,
    device_counts,
    divisors,
    partition,
    shard_count,
    undivided,
)
from midstream_engine.array_types import Device, Leaf, PyTree
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.trainer import TrainerConfig
from midstream_engine.models.axes import BATCH, EMBED, HEAD_SIZE, HEADS, KEY_POSITION, KV_HEADS, MLP, POSITION, VOCAB
from midstream_engine.models.sharding import resting_mapping

# Axes of the activations, array by array; attention scores have the heads of the keys. And those of the head, which is
# sharded as the computation has it.
_ACTIVATIONS = (
    (VOCAB, EMBED),
    *((BATCH, POSITION, axis) for axis in (EMBED, MLP, VOCAB)),
    *((BATCH, POSITION, heads, HEAD_SIZE) for heads in (HEADS, KV_HEADS)),
)


@dataclass(frozen=True)
class Layout:
    """Mesh, and the mesh axes that shard each named axis.

    There are two mappings: at rest (``parameters``) and in ``compute``.
    """

    mesh: Mesh
    parameters: AxisMapping
    compute: AxisMapping
    batch_axis: str

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Context in which haliax constrains activations by the compute mapping."""
        mesh, compute = hax.partitioning.set_mesh(self.mesh), hax.axis_mapping(dict(self.compute))
        with mesh, compute, resting_mapping(self.parameters, self.phases):
            yield

    @property
    def platform(self) -> str:
        """The devices' platform: "cpu", "tpu" or "gpu"."""
        return self.mesh.devices.flat[0].platform

    @property
    def batch_shards(self) -> int:
        """Number of shards of a batch."""
        return shard_count(self.mesh.shape, self.compute.get(self.batch_axis, ()))

    @property
    def phases(self) -> tuple[int, ...]:
        """Factors of ``batch_shards`` over which a TPU slice sums gradients in turn.

        Over a plane or a cube of chips at once its compiler makes an all-reduce of a reduce-scatter, which sends twice
        the bytes. Along one side, or a ring of two rows, it does not; there is one phase then: ().

        On TPU7x it does not either, but one phase costs 1.8 GiB, and two expose more than three
        (docs/benchmarks/compiled-steps.md).
        """
        devices = self.mesh.devices[:, 0]
        if self.platform != "tpu" or len(devices) != self.batch_shards:
            return ()
        sides = [len(set(side)) for side in zip(*(_place(device) for device in devices), strict=True)]
        sizes = tuple(size for size in sides if size > 1)
        ring = len(sizes) < 2 or (len(sizes) == 2 and min(sizes) == 2)
        return () if ring or math.prod(sizes) != len(devices) else sizes

    def replicated(self) -> NamedSharding:
        """Return the sharding of an array that every device has completely."""
        return NamedSharding(self.mesh, PartitionSpec())

    def sharding(self, axes: Sequence[str], mapping: AxisMapping) -> NamedSharding:
        """Return the sharding of an array with these named axes.

        A mesh axis shards the first axis mapped to it.
        """
        parts = [names[0] if len(names) == 1 else names or None for names in partition(axes, mapping)]
        return NamedSharding(self.mesh, PartitionSpec(*parts))

    def at_rest(self, tree: PyTree) -> PyTree:
        """Return ``tree`` with a sharding instead of each NamedArray or array.

        Plain arrays are replicated.
        """

        def sharding(leaf: Leaf) -> NamedSharding:
            if isinstance(leaf, NamedArray):
                return self.sharding([axis.name for axis in leaf.axes], self.parameters)
            return self.replicated()

        return jax.tree.map(sharding, tree, is_leaf=_is_named)

    def constrained(self, tree: PyTree) -> PyTree:
        """Constrain the named arrays of ``tree``, inside jit, to their shardings at rest."""
        return jax.lax.with_sharding_constraint(tree, self.at_rest(tree))


def place(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """Put ``array``, which every process has completely, on the devices.

    No process waits for another one, so any thread may call it.
    """
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def build_layout(config: TrainerConfig, devices: Sequence[Device] | None = None) -> Layout:
    """Build the mesh (data, model) over ``devices`` and the configured mappings.

    Raises:
        ConfigError: ``model_axis_size`` does not divide the devices, or a mesh axis is unknown.
    """
    devices = list(jax.devices() if devices is None else devices)
    if len(devices) % config.model_axis_size:
        raise ConfigError(
            f"trainer.model_axis_size: {config.model_axis_size} does not divide the {len(devices)} devices; "
            f"use one of {', '.join(map(str, divisors(len(devices))))}"
        )
    # haliax 1.4 breaks on Explicit axes, which are jax's default.
    mesh = jax.make_mesh(
        (len(devices) // config.model_axis_size, config.model_axis_size),
        (DATA, MODEL),
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=devices,
    )
    parameters, compute = axis_mappings(vars(config))
    for mapping in (parameters, compute):
        for axis, names in mapping.items():
            for name in names:
                if name not in (DATA, MODEL):
                    raise ConfigError(f"trainer: axis {axis!r} is mapped to {name!r}; the mesh has {DATA} and {MODEL}")
            if len(set(names)) < len(names):
                raise ConfigError(f"trainer: axis {axis!r} is mapped to the same mesh axis twice: {', '.join(names)}")
    return Layout(mesh, parameters, compute, config.batch_axis)


def check_fits(layout: Layout, state: PyTree, batch_size: int) -> None:
    """Check that the mesh divides every mapped axis and no axes of an array collide.

    ``state`` is the training state or its shapes: nothing need be compiled.

    Raises:
        ConfigError: An axis is not divided (the message has valid device counts), or two axes of an activation are
            mapped to the same mesh axis.
    """
    sizes: dict[str, set[int]] = {}
    for leaf in jax.tree.leaves(state, is_leaf=_is_named):
        if isinstance(leaf, NamedArray):
            for axis in leaf.axes:
                sizes.setdefault(axis.name, set()).add(axis.size)
    _check_activations(layout.compute, KV_HEADS if KV_HEADS in sizes else HEADS)
    sizes[layout.batch_axis] = {batch_size}
    uses = axis_uses((layout.parameters, layout.compute), sizes)
    misfits = undivided(uses, layout.mesh.shape)
    if misfits:
        axis, size, names = misfits[0]
        model = layout.mesh.shape[MODEL]
        good = [f"{n} ({n // model}x{model})" for n in device_counts(uses, model, 4 * layout.mesh.size)]
        raise ConfigError(
            f"axis {axis!r} of size {size} does not divide over the {shard_count(layout.mesh.shape, names)} devices of "
            f"{', '.join(names)}; device counts that divide it (data x model): "
            f"{', '.join(good) or 'none with this model_axis_size'}"
        )


def _check_activations(compute: AxisMapping, key_heads: str) -> None:
    """Raise ConfigError if two axes of an activation are mapped to one mesh axis.

    Parameters at rest need no check: a mesh axis shards the first axis mapped to it (`Layout.sharding`).
    """
    for axes in (*_ACTIVATIONS, (BATCH, key_heads, POSITION, KEY_POSITION)):
        first: dict[str, str] = {}
        for axis in axes:
            for name in compute.get(axis, ()):
                if name in first:
                    raise ConfigError(
                        f"trainer.axis_resources: {first[name]!r} and {axis!r}, axes of the same array, are both "
                        f"mapped to the mesh axis {name} (hint: map one of them only, or stored parameters alone with "
                        "trainer.fsdp_axis or trainer.parameter_axis_resources)"
                    )
                first[name] = axis


def _is_named(node: Leaf) -> bool:
    return isinstance(node, NamedArray)


def _place(device: Device) -> tuple[int, ...]:
    """Return the coordinates of a TPU device's chip, and its number on the chip."""
    return (*device.coords, device.core_on_chip)
