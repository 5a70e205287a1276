"""Accelerators: memory and peak of one jax device, and the devices of a TPU.

The only table of hardware: the planner, the engine's model FLOPs utilisation and the probes on hosts read it. Numbers
are from the makers' data sheets. Its source is sent to hosts as that of :mod:`midstream_engine.records` is: standard
library alone, Python 3.8.
"""

from __future__ import annotations

import re
from typing import NamedTuple

GIB = 1 << 30


class Accelerator(NamedTuple):
    """One jax device. On TPU v2, v3 and 7x it is one core, which is half a chip."""

    peak_flops: float  # FLOP/s, dense, 16 bits
    memory: int | None = None  # bytes; None where products of one name differ: such hosts report it
    bandwidth: float | None = None  # bytes/s of its memory
    # Bytes/s that it sends to the others of its slice or host: of a TPU all of its links together, one direction each.
    interconnect: float | None = None
    clock: float | None = None  # Hz, of TPUs: the peak by the products that its matrix units begin in a cycle
    # FLOP/s of matrix products of float32 numbers on GPUs, dense: in float32, and rounded to TF32. For TPUs the
    # compiler's own cycles count the passes of such a product.
    float32_flops: float | None = None
    tf32_flops: float | None = None


# By a part of jax's ``device_kind``. Sources: the pages of the generations at https://cloud.google.com/tpu/docs (peak,
# HBM capacity and bandwidth, ICI bandwidth a chip), NVIDIA's data sheets of A100, H100 and H200 (NVLink: half of the
# bandwidth that counts both directions).
ACCELERATORS = {
    "A100": Accelerator(312e12, None, 1555e9, 300e9, None, 19.5e12, 156e12),
    "A100-SXM4-80GB": Accelerator(312e12, None, 2039e9, 300e9, None, 19.5e12, 156e12),
    "H100": Accelerator(989.5e12, None, 3350e9, 450e9, None, 67e12, 494.7e12),
    "H100 PCIe": Accelerator(756.5e12, None, 2000e9, 64e9, None, 51e12, 378e12),
    "H200": Accelerator(989.5e12, None, 4800e9, 450e9, None, 67e12, 494.7e12),
    "L4": Accelerator(121e12, None, 300e9, 32e9, None, 30.3e12, 60e12),
    "V100": Accelerator(125e12, None, 900e9, 150e9, None, 15.7e12, 15.7e12),  # it has no TF32
    "TPU v2": Accelerator(22.5e12, 8 * GIB),
    "TPU v3": Accelerator(61.5e12, 16 * GIB),
    "TPU v4": Accelerator(275e12, 32 * GIB, 1228e9, 300e9, 1.05e9),
    "TPU v5 lite": Accelerator(197e12, 16 * GIB, 819e9, 200e9, 1.5e9),
    "TPU v5e": Accelerator(197e12, 16 * GIB, 819e9, 200e9, 1.5e9),
    "TPU v5": Accelerator(459e12, 95 * GIB, 2765e9, 600e9, 1.75e9),
    "TPU v5p": Accelerator(459e12, 95 * GIB, 2765e9, 600e9, 1.75e9),
    "TPU v6 lite": Accelerator(918e12, 32 * GIB, 1600e9, 400e9, 1.75e9),
    "TPU v6e": Accelerator(918e12, 32 * GIB, 1600e9, 400e9, 1.75e9),
    "TPU7x": Accelerator(1153.5e12, 96 * GIB, 3690e9, 300e9, 2.2e9),
}


class TpuGeneration(NamedTuple):
    """Chips of a TPU generation, as the TPU API and as jax count them."""

    devices_per_chip: int
    units_per_device: int  # of the number in an accelerator type: v4-16 is 8 devices, v5litepod-16 is 16


# By what an accelerator type begins with. https://cloud.google.com/tpu/docs/supported-tpu-configurations
TPU_GENERATIONS = {
    "v2": TpuGeneration(2, 1),
    "v3": TpuGeneration(2, 1),
    "v4": TpuGeneration(1, 2),
    "v5p": TpuGeneration(1, 2),
    "v5litepod": TpuGeneration(1, 1),
    "v5e": TpuGeneration(1, 1),
    "v6e": TpuGeneration(1, 1),
    "tpu7x": TpuGeneration(2, 1),
}


class TpuChip(NamedTuple):
    """A chip on the PCI bus."""

    kind: str
    devices: int


# By PCI device id.
TPU_CHIPS = {
    "0x0027": TpuChip("TPU v2/v3", 2),  # one id for both
    "0x005e": TpuChip("TPU v4", 1),
    "0x0063": TpuChip("TPU v5e", 1),
    "0x0062": TpuChip("TPU v5p", 1),
    "0x006f": TpuChip("TPU v6e", 1),
    "0x0076": TpuChip("TPU7x", 2),
}


def find_accelerator(device_kind: str) -> Accelerator | None:
    """Return the accelerator whose name is in ``device_kind``; None if there is none.

    The longest name wins.
    """
    # As complete words: an L40 is no L4, and a GH200 no H200.
    pattern = r"(?<![A-Za-z0-9]){}(?![A-Za-z0-9])"
    found = [name for name in ACCELERATORS if re.search(pattern.format(re.escape(name)), device_kind)]
    return ACCELERATORS[max(found, key=len)] if found else None
