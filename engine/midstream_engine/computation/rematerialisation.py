"""Choice of each layer's stored arrays by the memory of the devices.

``model.gradient_checkpointing: auto`` selects it.

Stored are the arrays that save most time for their memory: first the result of attention, whose kernel would run again,
then queries, keys and values, then the inner products of the MLP. The arithmetic is that of the arrays' sizes; the
compiler has the last word (`midstream --compare` shows its number).
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from midstream_core.accelerators import find_accelerator
from midstream_core.stored_activations import stored_width
from midstream_engine.array_types import Device
from midstream_engine.config.model import LmConfig

RICHEST_FIRST = ("qkv+attention+mlp", "qkv+attention", "attention")
# Share of a device's memory that arrays may take: the rest is for programs, fragments and what this does not count.
USABLE = 0.8
_BLOCK_ARRAYS = 3  # with the logits of a block of positions: their exponentials and their gradient
_LOGITS = 1 / 16  # of the memory, at most: see `models.loss.positions_a_block`


def by_memory(
    config: LmConfig, device: Device, *, state: float, gradients: float, tokens: int, width: int
) -> bool | str:
    """Return the ``gradient_checkpointing`` that stores the most and fits, else True.

    Args:
        config: The model.
        device: One of the devices.
        state: Bytes of the training state on a device.
        gradients: Bytes of the gradients on a device.
        tokens: Tokens of a micro-batch on a device.
        width: Bytes of a number in the computation.
    """
    memory = memory_of(device)
    if memory is None:
        return True
    unit = tokens * width
    carried = unit * config.hidden_dim * config.num_layers
    within = unit * (8 * config.hidden_dim + 3 * layer_width(config, RICHEST_FIRST[0]))  # one layer, and its gradients
    room = USABLE * memory - state - gradients - carried - within - _BLOCK_ARRAYS * _LOGITS * memory
    for value in RICHEST_FIRST:
        if unit * layer_width(config, value) * config.num_layers <= room:
            return value
    return True


def layer_width(config: LmConfig, value: str) -> int:
    """Return the numbers that a layer stores of a token."""
    return stored_width(
        value, heads=config.num_heads, kv_heads=config.kv_heads, head_size=config.head_size, mlp=config.mlp_dim,
        gated=config.gated_mlp,
    )  # fmt: skip


def own_device(devices: Sequence[Device]) -> object:
    """Return one of this process's devices; the first where it has none of them.

    Devices of other processes do not report their memory. Process 0 would then choose by another number than they do,
    and their programs would differ.
    """
    here = jax.process_index()
    return next((device for device in devices if device.process_index == here), devices[0])


def memory_of(device: Device) -> int | None:
    """Return the bytes that a program may use on a device; None if unknown."""
    if device.platform == "cpu":
        return None
    try:
        limit = (device.memory_stats() or {}).get("bytes_limit")
    except Exception:  # noqa: BLE001 (of a device that is not here: its client has no statistics)
        limit = None
    accelerator = find_accelerator(device.device_kind)
    return limit or (accelerator.memory if accelerator else None)
