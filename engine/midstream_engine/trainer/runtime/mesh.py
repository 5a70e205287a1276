"""Which device holds what: the mesh, and the mappings from named axes to its axes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import haliax as hax
import jax
import numpy as np
from haliax import NamedArray
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from midstream_engine.config.errors import ConfigError
from midstream_engine.config.trainer import TrainerConfig

DATA, MODEL = "data", "model"  # the mesh's axes
Mapped = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Layout:
    """The mesh, and which of its axes each named axis is cut over: at rest (``parameters``) and in ``compute``."""

    mesh: Mesh
    parameters: Mapped
    compute: Mapped
    batch_axis: str

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Inside, haliax constrains activations by the compute mapping."""
        with hax.partitioning.set_mesh(self.mesh), hax.axis_mapping(dict(self.compute)):
            yield

    @property
    def batch_shards(self) -> int:
        """Over how many parts of the mesh a batch is cut."""
        return _ways(self.mesh.shape, self.compute.get(self.batch_axis, ()))

    def replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    def sharding(self, axes: Sequence[str], mapping: Mapped) -> NamedSharding:
        """The sharding of an array with these named axes. A mesh axis cuts the first axis that asks for it."""
        taken: set[str] = set()
        parts: list[Any] = []
        for axis in axes:
            wanted = tuple(name for name in mapping.get(axis, ()) if name not in taken)
            taken.update(wanted)
            parts.append(wanted[0] if len(wanted) == 1 else wanted or None)
        return NamedSharding(self.mesh, PartitionSpec(*parts))

    def at_rest(self, tree: Any) -> Any:
        """One sharding for each array of ``tree``, in the place of the NamedArray; plain arrays are replicated."""

        def sharding(leaf: Any) -> NamedSharding:
            if isinstance(leaf, NamedArray):
                return self.sharding([axis.name for axis in leaf.axes], self.parameters)
            return self.replicated()

        return jax.tree.map(sharding, tree, is_leaf=_is_named)

    def constrained(self, tree: Any) -> Any:
        """``tree`` inside jit, its named arrays held to their shardings at rest."""
        return jax.lax.with_sharding_constraint(tree, self.at_rest(tree))


def place(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """``array``, which every process has the whole of, on the devices; no process waits for another one, so any thread
    may call it."""
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def build_layout(config: TrainerConfig, devices: Sequence[Any] | None = None) -> Layout:
    """The mesh (data, model) over ``devices`` and the mappings that the configuration asks for.

    Raises ConfigError where ``model_axis_size`` does not divide the devices or a mesh axis is not known.
    """
    devices = list(jax.devices() if devices is None else devices)
    if len(devices) % config.model_axis_size:
        fitting = [size for size in range(1, len(devices) + 1) if len(devices) % size == 0]
        raise ConfigError(
            f"trainer.model_axis_size: {config.model_axis_size} does not divide the {len(devices)} devices; "
            f"use one of {', '.join(map(str, fitting))}"
        )
    # haliax 1.4 breaks on Explicit axes, which are jax's default.
    mesh = jax.make_mesh(
        (len(devices) // config.model_axis_size, config.model_axis_size),
        (DATA, MODEL),
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=devices,
    )
    tensor = {axis: [MODEL] for axis in config.tensor_parallel_axes}
    shared = {**tensor, **config.axis_resources}
    parameters = {**{axis: [DATA] for axis in config.fsdp_axis}, **shared, **config.parameter_axis_resources}
    compute = {config.batch_axis: [DATA], **shared, **config.compute_axis_resources}
    for mapping in (parameters, compute):
        for axis, names in mapping.items():
            for name in names:
                if name not in (DATA, MODEL):
                    raise ConfigError(f"trainer: axis {axis!r} is mapped to {name!r}; the mesh has {DATA} and {MODEL}")
    return Layout(mesh, _tuples(parameters), _tuples(compute), config.batch_axis)


def check_divides(layout: Layout, state: Any, batch_size: int) -> None:
    """Refuse, before anything is compiled, a mapped axis that its part of the mesh does not divide.

    ``state`` is the training state or its shapes. Raises ConfigError naming the axis and the device
    counts that would do.
    """
    sizes: dict[str, set[int]] = {}
    for leaf in jax.tree.leaves(state, is_leaf=_is_named):
        if isinstance(leaf, NamedArray):
            for axis in leaf.axes:
                sizes.setdefault(axis.name, set()).add(axis.size)
    uses = [
        (axis, size, names)
        for mapping in (layout.parameters, layout.compute)
        for axis, names in mapping.items()
        for size in (sizes.get(axis, set()) if axis != layout.batch_axis else {batch_size})
    ]

    def fits(data: int, model: int) -> list[str]:
        shape = {DATA: data, MODEL: model}
        return [
            f"axis {axis!r} of size {size} does not divide over the {_ways(shape, names)} devices of {', '.join(names)}"
            for axis, size, names in uses
            if size % _ways(shape, names)
        ]

    shape = layout.mesh.shape
    refused = fits(shape[DATA], shape[MODEL])
    if refused:
        good = [
            f"{count} ({count // shape[MODEL]}x{shape[MODEL]})"
            for count in range(shape[MODEL], 4 * shape[DATA] * shape[MODEL] + 1, shape[MODEL])
            if not fits(count // shape[MODEL], shape[MODEL])
        ]
        raise ConfigError(
            f"{refused[0]}; device counts that would do (data x model): "
            f"{', '.join(good) or 'none with this model_axis_size'}"
        )


def _ways(shape: Mapping[str, int], names: Sequence[str]) -> int:
    ways = 1
    for name in names:
        ways *= shape[name]
    return ways


def _tuples(mapping: Mapping[str, Sequence[str]]) -> Mapped:
    return {axis: tuple(names) for axis, names in mapping.items() if names}


def _is_named(node: Any) -> bool:
    return isinstance(node, NamedArray)
