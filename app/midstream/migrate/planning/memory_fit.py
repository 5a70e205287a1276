"""Estimated fit of a run on a target: memory of each device, precisions.

The precisions are those that the devices support.

Exact for the state, rough for activations. The compiler's memory analysis in the rehearsal on the target decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from midstream.counts import count
from midstream.errors import MidstreamError
from midstream.format import size
from midstream.migrate.journal.json_values import section
from midstream.migrate.planning.batch_shape import BatchShape, batch_shape
from midstream.watch.machine import Accelerator
from midstream_core.accelerators import find_accelerator
from midstream_core.json_types import JsonObject
from midstream_core.logits import MAX_BLOCK
from midstream_core.mesh_division import DATA, MODEL, axis_mappings, partition, shard_count
from midstream_core.precision import Precision, precision_of
from midstream_core.records import ArrayEntry
from midstream_core.stored_activations import stored_width

USABLE = 0.92  # share of a device's memory; the rest is used by the runtime and lost to fragmentation
PREALLOCATED = 0.75  # share of a GPU's memory that jax allocates at its start and does not exceed

# GPUs without bfloat16: compute capability below 8.0.
WITHOUT_BFLOAT16 = re.compile(
    r"(?<![A-Za-z0-9])(V100|P100|P40|P4|K80|T4|GTX \d+|TITAN|RTX 20\d\d|Quadro RTX)(?![0-9])", re.IGNORECASE
)


def device_memory(kind: str, reported: int | None) -> int | None:
    """Return the bytes of one device: reported by the host, else by the data sheet.

    None where neither is known, or where the device is virtual and shares the host's memory.
    """
    if reported:
        return reported
    accelerator = find_accelerator(kind)
    return None if accelerator is None else accelerator.memory


def usable(memory: int, kind: str) -> float:
    """Return the bytes of a device's ``memory`` that a training step may use."""
    return (PREALLOCATED if re.search(r"NVIDIA|Tesla|GeForce|Quadro|AMD", kind) else USABLE) * memory


@dataclass(frozen=True)
class Footprint:
    """Bytes that one device uses in a step."""

    state: int  # its share of parameters, moments and averages
    gradients: int  # its share in float32; twice that where micro-batches are accumulated
    copies: int  # parameters of two gathered layers (current and next) in the compute precision
    activations: int

    @property
    def total(self) -> int:
        return self.state + self.gradients + self.copies + self.activations

    def describe(self) -> str:
        return (
            f"{size(self.total)} a device: state {size(self.state)}, gradients {size(self.gradients)}, "
            f"gathered layers {size(self.copies)}, activations about {size(self.activations)}"
        )

    def describe_on(self, memory: int | None, kind: str) -> str:
        """Describe the bytes on devices of ``memory`` bytes; None: not known."""
        has = "the memory of its devices is not known" if memory is None else f"of {size(usable(memory, kind))} usable"
        return f"{self.describe()}; {has}"


def footprint(
    arrays: Sequence[ArrayEntry], config: JsonObject, shape: BatchShape, devices: int, kind: str = ""
) -> Footprint:
    """Estimate the memory of a device that trains ``arrays`` with a run's config.

    Arrays are sharded as at rest on the engine's mesh, by ``trainer``'s mappings. Activations follow Korthikanti et
    al., "Reducing Activation Recomputation in Large Transformer Models", 2022. With recomputation, a layer stores
    ``seq * batch * hidden`` elements. Without, and during its own computation, it stores 17 of these, and 4 for each
    unit of the ratio of MLP width to model width.

    A CPU computes bfloat16 in float32. A layer stores 6 for that unit where the MLP has a gate, and, as attention is
    not blockwise, ``batch * heads * seq * seq`` once; its computation has these twice. The loss has the logits three
    times. On several virtual devices a layer's computation has 1.75 times what it stores, and the loss 6.5 times the
    logits. These numbers are of compiled programs of GPT-2 and Llama (jax 0.10.2).

    Args:
        arrays: Arrays of the checkpoint.
        config: Content of run.yaml.
        shape: Division of the batch.
        devices: Number of devices.
        kind: Kind of the devices, as jax names it.
    """
    model, trainer = section(config, "model"), section(config, "trainer")
    resting, _ = axis_mappings(trainer)
    mesh = {DATA: shape.data_parallel, MODEL: devices // shape.data_parallel}
    state = parameters = 0
    for array in arrays:
        share = math.prod(shard_count(mesh, names) for names in partition(array.axes, resting))
        nbytes = _elements(array) * _width(array.dtype)
        state += -(-nbytes // share)
        if array.name.startswith("model/"):
            parameters += -(-_elements(array) // share)
    on_cpu = kind == "cpu"
    width = 2 if precision_of(trainer.get("mp")).compute != "float32" and not on_cpu else 4
    layers = max(1, int(model.get("num_layers") or 1))
    hidden, seq = int(model.get("hidden_dim") or 0), int(model.get("seq_len") or 0)
    mlp = int(model.get("intermediate_dim") or int(model.get("mlp_scale") or 4) * hidden)
    layered = sum(_elements(array) for array in arrays if array.name.startswith("model/") and "layers" in array.axes)
    unit = seq * shape.per_device * hidden * width
    gated = model.get("type") == "llama"
    layer = work = unit * (17 + 4 * mlp // max(1, hidden))
    if on_cpu:
        scores = width * shape.per_device * int(model.get("num_heads") or 1) * seq * seq
        layer = unit * (17 + (6 if gated else 4) * mlp // max(1, hidden)) + scores
        logits = min(shape.per_device * seq * _vocabulary(arrays), MAX_BLOCK)
        alone = devices == 1
        work = max(layer + scores if alone else 7 * layer // 4, (6 if alone else 13) * width * logits // 2)
    remat, heads = model.get("gradient_checkpointing", True), int(model.get("num_heads") or 1)
    named = stored_width(
        remat,
        heads=heads,
        kv_heads=int(model.get("num_kv_heads") or heads),
        head_size=int(model.get("head_dim") or hidden // heads),
        mlp=mlp,
        gated=gated,
    )
    stored = (unit + seq * shape.per_device * named * width) * layers if remat else layer * layers
    return Footprint(
        state=state,
        gradients=4 * parameters * (2 if shape.accumulation > 1 else 1),
        copies=2 * width * layered // layers,
        activations=stored + work,
    )


def fitting_shape(
    arrays: Sequence[ArrayEntry],
    config: JsonObject,
    batch: int,
    devices: int,
    memory: int | None,
    kind: str = "",
) -> tuple[BatchShape, Footprint]:
    """Divide ``batch`` over the devices.

    A micro-batch has as many examples as their memory has room for.

    Args:
        arrays: Arrays of the checkpoint.
        config: Content of run.yaml; its ``per_device_parallelism`` is a limit.
        batch: Examples of an update.
        devices: Number of devices.
        memory: Bytes of one device; None: not known, no limit.
        kind: Kind of the devices, as jax names it.

    Raises:
        MidstreamError: A single example does not fit, or the batch does not divide.
    """
    trainer = section(config, "trainer")
    limit, model_axis = int(trainer.get("per_device_parallelism") or -1), int(trainer.get("model_axis_size") or 1)
    shape = batch_shape(batch, devices, limit, model_axis)
    needed = footprint(arrays, config, shape, devices, kind)
    while memory is not None and needed.total > usable(memory, kind):
        if shape.per_device == 1:
            raise MidstreamError(
                f"the run does not fit {count(devices, 'device')} of {size(memory)}: it needs {needed.describe()}, "
                "with one example at a time",
                _enough_devices(arrays, config, batch, devices, memory, kind),
            )
        shape = batch_shape(batch, devices, shape.per_device - 1, model_axis)
        needed = footprint(arrays, config, shape, devices, kind)
    return shape, needed


def fitting_division(
    arrays: Sequence[ArrayEntry],
    config: JsonObject,
    sizes: Sequence[int],
    devices: int,
    memory: int | None,
    kind: str = "",
) -> tuple[BatchShape, Footprint, int | None]:
    """Divide a run's batch so that later, larger batches of its schedule fit as well.

    Args:
        arrays: As of `fitting_shape`.
        config: As of `fitting_shape`.
        sizes: Examples of an update, now and later in the schedule.
        devices: As of `fitting_shape`.
        memory: As of `fitting_shape`.
        kind: As of `fitting_shape`.

    Returns:
        The division of the first size, its memory, and the limit of examples at a time that the memory needs; None
        where the engine's own divisions fit.

    Raises:
        MidstreamError: A single example does not fit, or a batch does not divide.
    """
    trainer = section(config, "trainer")
    limit, model_axis = int(trainer.get("per_device_parallelism") or -1), int(trainer.get("model_axis_size") or 1)
    lowered: list[int] = []
    for examples in sizes:
        fitted, _ = fitting_shape(arrays, config, examples, devices, memory, kind)
        if fitted.per_device < batch_shape(examples, devices, limit, model_axis).per_device:
            lowered.append(fitted.per_device)
    needed = min(lowered, default=None)
    if needed is not None:
        config = {**config, "trainer": {**trainer, "per_device_parallelism": needed}}
    return *fitting_shape(arrays, config, sizes[0], devices, memory, kind), needed


def _enough_devices(
    arrays: Sequence[ArrayEntry], config: JsonObject, batch: int, devices: int, memory: int, kind: str
) -> str:
    """Describe how many devices of this kind the run fits."""
    trainer = section(config, "trainer")
    for more in range(devices + 1, 64 * devices + 1):
        try:
            shape = batch_shape(batch, more, 1, int(trainer.get("model_axis_size") or 1))
        except MidstreamError:
            continue
        if footprint(arrays, config, shape, more, kind).total <= usable(memory, kind):
            return f"it fits {more} of them; or choose a target with more memory a device"
    return "choose a target with more memory a device"


def check_precision(mp: str | None, kind: str) -> str:
    """Return why ``kind`` devices cannot compute in ``trainer.mp``; empty if they can."""
    if precision_of(mp).compute != "bfloat16" or WITHOUT_BFLOAT16.search(kind) is None:
        return ""
    return f"{kind} does not support bfloat16 (compute capability 8.0 or newer does), and the run computes in {mp}"


def _vocabulary(arrays: Sequence[ArrayEntry]) -> int:
    """Return the size of the vocabulary, with padding."""
    return max((dict(zip(array.axes, array.shape, strict=True)).get("vocab", 0) for array in arrays), default=0)


def _elements(array: ArrayEntry) -> int:
    count = 1
    for length in array.shape:
        count *= length
    return count


def _width(dtype: str) -> int:
    """Return the bytes of an element: ``float32``, ``bfloat16``, ``int8``."""
    digits = re.search(r"(\d+)$", dtype)
    return max(1, int(digits.group(1)) // 8) if digits else 1


def require_precision(before: Any, after: Any, kind: str) -> None:
    """Check that devices of ``kind`` can compute in ``after``.

    Raises:
        MidstreamError: They cannot, or ``after`` has other parameters.
    """
    now, requested = precision_of(before), precision_of(after)
    if requested.parameters != now.parameters:
        raise MidstreamError(
            f"trainer.mp {after} has {requested.parameters} parameters, and the run's are {now.parameters}",
            f"a migration keeps them: -- --trainer.mp {requested.with_parameters(now.parameters)}",
        )
    if problem := check_precision(after, kind):
        raise MidstreamError(
            problem,
            "choose other devices, or compute in float32, which is slower and not identical to the last bit: "
            f"-- --trainer.mp {Precision(now.parameters, 'float32', 'float32')}",
        )


def smallest_memory(devices: Sequence[Accelerator]) -> int | None:
    """Return bytes of the smallest device; None where any is not known."""
    memories = [device_memory(device.kind, device.memory_total) for device in devices]
    reported = [memory for memory in memories if memory is not None]
    return min(reported) if reported and len(reported) == len(memories) else None
