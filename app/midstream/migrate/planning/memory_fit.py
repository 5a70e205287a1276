"""Whether a run fits a target's devices: bytes of each device, and numbers that the hardware can compute with.

An estimate, before anything is touched: exact for the state, rough for activations. The rehearsal's memory analysis
on the target is what counts in the end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midstream.errors import MidstreamError
from midstream.migrate.planning.batch_shape import BatchShape, batch_shape
from midstream.output import size
from midstream_engine.records import ArrayEntry

GIB = 1 << 30
USABLE = 0.92  # of a device's memory: the rest is the runtime's, and lost between allocations
PREALLOCATED = 0.75  # of a GPU's, which is what jax takes at its start and stays within

# Memory of one jax device in bytes, by a part of its kind, where the host does not report it; from the makers' data
# sheets. A device of TPU v2, v3 and 7x is one core: half a chip.
MEMORY = {
    "TPU v2": 8 * GIB,
    "TPU v3": 16 * GIB,
    "TPU v4": 32 * GIB,
    "TPU v5 lite": 16 * GIB,
    "TPU v5e": 16 * GIB,
    "TPU v5p": 95 * GIB,
    "TPU v5": 95 * GIB,
    "TPU v6 lite": 32 * GIB,
    "TPU v6e": 32 * GIB,
    "TPU7x": 96 * GIB,
}
# GPUs whose matrix units came before bfloat16: compute capability below 8.0.
WITHOUT_BFLOAT16 = re.compile(
    r"(?<![A-Za-z0-9])(V100|P100|P40|P4|K80|T4|GTX \d+|TITAN|RTX 20\d\d|Quadro RTX)(?![0-9])", re.IGNORECASE
)
BFLOAT16 = ("bfloat16", "bf16")


def device_memory(kind: str, reported: int | None) -> int | None:
    """Bytes of one device: what the host reports, else what the maker says; None where neither is known, or where the
    device is virtual and shares the host's memory."""
    if reported:
        return reported
    found = [name for name in MEMORY if _names(kind, name)]
    return MEMORY[max(found, key=len)] if found else None


def _names(kind: str, name: str) -> bool:
    """As whole words: an L40 is no L4, a T400 no T4."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![0-9])", kind) is not None


def usable(memory: int, kind: str) -> float:
    """Bytes of a device's ``memory`` that a training step may fill."""
    return (PREALLOCATED if re.search(r"NVIDIA|Tesla|GeForce|Quadro|AMD", kind) else USABLE) * memory


@dataclass(frozen=True)
class Footprint:
    """Bytes that one device holds in a step."""

    state: int  # parameters, moments, averages: its share
    gradients: int  # in float32, its share, and once more where micro-batches are added up
    copies: int  # parameters in the compute precision: the layer at work and the next one, gathered
    activations: int

    @property
    def total(self) -> int:
        return self.state + self.gradients + self.copies + self.activations

    def describe(self) -> str:
        return (
            f"{size(self.total)} a device: state {size(self.state)}, gradients {size(self.gradients)}, "
            f"gathered layers {size(self.copies)}, activations about {size(self.activations)}"
        )


def footprint(
    arrays: Sequence[ArrayEntry], config: Mapping[str, Any], shape: BatchShape, devices: int, kind: str = ""
) -> Footprint:
    """What a device of ``kind`` holds when ``arrays`` (a checkpoint's) are trained as ``config`` (a run.yaml) says.

    Arrays are sharded over all ``devices`` (FSDP) where they have a sharded axis; the rest, being small, is whole on
    each. Activations, following Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
    2022: a layer keeps ``seq * batch * hidden`` elements with recomputation; without, and while it is at work, 17 of
    them and 4 for each unit of the MLP's width over the model's, and, where attention is not blockwise (on a CPU),
    three times ``batch * heads * seq * seq``. A CPU computes bfloat16 in float32.
    """
    model, trainer = config.get("model") or {}, config.get("trainer") or {}
    sharded = _sharded_axes(trainer)
    state = parameters = 0
    for array in arrays:
        share = devices if sharded.intersection(array.axes) else 1
        stored = _elements(array) * _width(array.dtype)
        state += -(-stored // share)
        if array.name.startswith("model/"):
            parameters += -(-_elements(array) // share)
    plain = kind == "cpu"
    width = 2 if _is_low(trainer.get("mp")) and not plain else 4
    layers = max(1, int(model.get("num_layers") or 1))
    hidden, seq = int(model.get("hidden_dim") or 0), int(model.get("seq_len") or 0)
    mlp = int(model.get("intermediate_dim") or 4 * hidden)
    whole = sum(_elements(array) for array in arrays if array.name.startswith("model/") and "layers" in array.axes)
    unit = seq * shape.per_device * hidden * width
    busy = unit * (17 + 4 * mlp // max(1, hidden))
    if plain:
        busy += 3 * width * shape.per_device * int(model.get("num_heads") or 1) * seq * seq
    kept = unit * layers if model.get("gradient_checkpointing", True) else busy * layers
    return Footprint(
        state=state,
        gradients=4 * parameters * (2 if shape.accumulation > 1 else 1),
        copies=2 * width * whole // layers,
        activations=kept + busy,
    )


def fitting_shape(
    arrays: Sequence[ArrayEntry],
    config: Mapping[str, Any],
    batch: int,
    devices: int,
    memory: int | None,
    kind: str = "",
) -> tuple[BatchShape, Footprint]:
    """The shape that keeps ``batch`` on ``devices`` with ``memory`` bytes each (None: not known, no limit), with as
    many examples a device at once as fit, and no more than the run's own limit. MidstreamError with the numbers where
    not even one fits, or the batch does not divide."""
    trainer = config.get("trainer") or {}
    limit, model_axis = int(trainer.get("per_device_parallelism") or -1), int(trainer.get("model_axis_size") or 1)
    shape = batch_shape(batch, devices, limit, model_axis)
    held = footprint(arrays, config, shape, devices, kind)
    while memory is not None and held.total > usable(memory, kind):
        if shape.per_device == 1:
            raise MidstreamError(
                f"the run does not fit {devices} devices of {size(memory)}: it needs {held.describe()}, "
                "with one example at a time",
                _enough(arrays, config, batch, devices, memory, kind),
            )
        shape = batch_shape(batch, devices, shape.per_device - 1, model_axis)
        held = footprint(arrays, config, shape, devices, kind)
    return shape, held


def _enough(
    arrays: Sequence[ArrayEntry], config: Mapping[str, Any], batch: int, devices: int, memory: int, kind: str
) -> str:
    """How many devices of this kind would do, in words."""
    trainer = config.get("trainer") or {}
    for more in range(devices + 1, 64 * devices + 1):
        try:
            shape = batch_shape(batch, more, 1, int(trainer.get("model_axis_size") or 1))
        except MidstreamError:
            continue
        if footprint(arrays, config, shape, more, kind).total <= usable(memory, kind):
            return f"{more} of them would hold it; or a target with more memory a device"
    return "choose a target with more memory a device"


def check_precision(mp: str | None, kind: str) -> str:
    """Why ``trainer.mp`` cannot be computed on devices of ``kind``; empty where it can."""
    if not _is_low(mp, BFLOAT16):
        return ""
    if WITHOUT_BFLOAT16.search(kind) is None:
        return ""
    return f"{kind} has no bfloat16 (it came with compute capability 8.0), and the run computes in {mp}"


def _is_low(mp: Any, names: Sequence[str] = (*BFLOAT16, "float16", "f16", "half")) -> bool:
    """Whether a jmp policy computes in one of ``names``: ``bf16``, or ``c=bfloat16`` in ``p=f32,c=bfloat16``."""
    text = str(mp or "f32")
    parts = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    compute = parts.get("c", parts.get("compute", "")) if parts else text
    return compute.strip() in names


def _sharded_axes(trainer: Mapping[str, Any]) -> set[str]:
    found: set[str] = set()
    for name, default in (("fsdp_axis", "embed"), ("tensor_parallel_axes", ())):
        axes = trainer.get(name) or default
        found |= {axes} if isinstance(axes, str) else set(axes)
    return found


def _elements(array: ArrayEntry) -> int:
    count = 1
    for length in array.shape:
        count *= length
    return count


def _width(dtype: str) -> int:
    """Bytes of an element: ``float32``, ``bfloat16``, ``int8``."""
    digits = re.search(r"(\d+)$", dtype)
    return max(1, int(digits.group(1)) // 8) if digits else 1
