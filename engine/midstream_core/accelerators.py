"""Accelerators: memory and peak of one jax device, and the devices of a TPU.

The only table of hardware: the planner, the engine's model FLOPs utilisation and the probes on hosts read it. Numbers
are from the makers' data sheets:

- NVIDIA's data sheets of V100 (SXM2), A100, L4, H100 (SXM and PCIe) and H200: dense peaks, so half of those that they
  print "with sparsity"; FP32 outside of the tensor cores; NVLink: half of the bandwidth that counts both directions.
- The pages of the generations at https://cloud.google.com/tpu/docs: 16-bit peak, capacity and bandwidth of HBM, ICI
  bandwidth of a chip. No page has a peak of float32 products. By ``jax.lax.Precision`` such a product is one pass of
  bfloat16 by default and six at ``highest``.

Its source is sent to hosts as that of :mod:`midstream_core.records` is: standard library alone, Python 3.8.
"""

from __future__ import annotations

import re
from typing import NamedTuple

GIB = 1 << 30
# Of a product of float32 numbers on a TPU. For one of [4096, 4096] the compiler estimates 5.8 times the cycles of one
# pass on v5e, 5.9 on v6e.
FLOAT32_PASSES = 6


class AcceleratorSpec(NamedTuple):
    """One jax device. On TPU v2, v3 and 7x it is one core, which is half a chip."""

    # FLOP/s of matrix products, dense: of 16-bit numbers; of float32 numbers at jax's precision ``highest``, which is
    # float32 outside of the tensor cores of a GPU, and at ``default``, which is TF32, or bfloat16 on TPUs.
    peak_flops: float
    float32_flops: float
    default_flops: float
    memory: int | None = None  # bytes; None where products of one name differ: such hosts report it
    bandwidth: float | None = None  # bytes/s of its memory
    # Bytes/s that it sends to the others of its slice or host: of a TPU all of its links together, one direction each.
    interconnect: float | None = None
    clock: float | None = None  # Hz, of TPUs: the peak by the products that its matrix units begin in a cycle


def _tpu(
    peak: float,
    memory: int,
    bandwidth: float | None = None,
    interconnect: float | None = None,
    clock: float | None = None,
) -> AcceleratorSpec:
    return AcceleratorSpec(peak, peak / FLOAT32_PASSES, peak, memory, bandwidth, interconnect, clock)


# By a part of jax's ``device_kind``.
ACCELERATORS = {
    "A100": AcceleratorSpec(312e12, 19.5e12, 156e12, None, 1555e9, 300e9),
    "A100-SXM4-80GB": AcceleratorSpec(312e12, 19.5e12, 156e12, None, 2039e9, 300e9),
    "H100": AcceleratorSpec(989.5e12, 67e12, 494.7e12, None, 3350e9, 450e9),
    "H100 PCIe": AcceleratorSpec(756.5e12, 51e12, 378e12, None, 2000e9, 64e9),
    "H200": AcceleratorSpec(989.5e12, 67e12, 494.7e12, None, 4800e9, 450e9),
    "L4": AcceleratorSpec(121e12, 30.3e12, 60e12, None, 300e9, 32e9),
    "V100-SXM2": AcceleratorSpec(125e12, 15.7e12, 15.7e12, None, 900e9, 150e9),  # it has no TF32
    "TPU v2": _tpu(22.5e12, 8 * GIB),
    "TPU v3": _tpu(61.5e12, 16 * GIB),
    "TPU v4": _tpu(275e12, 32 * GIB, 1228e9, 300e9, 1.05e9),
    "TPU v5 lite": _tpu(197e12, 16 * GIB, 819e9, 200e9, 1.5e9),
    "TPU v5e": _tpu(197e12, 16 * GIB, 819e9, 200e9, 1.5e9),
    "TPU v5": _tpu(459e12, 95 * GIB, 2765e9, 600e9, 1.75e9),
    "TPU v5p": _tpu(459e12, 95 * GIB, 2765e9, 600e9, 1.75e9),
    "TPU v6 lite": _tpu(918e12, 32 * GIB, 1600e9, 400e9, 1.75e9),
    "TPU v6e": _tpu(918e12, 32 * GIB, 1600e9, 400e9, 1.75e9),
    "TPU7x": _tpu(1153.5e12, 96 * GIB, 3690e9, 300e9, 2.2e9),
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


# Words that make another product of a known name.
_OTHER = re.compile(r"\b(MIG|NVL)\b")


def find_accelerator(device_kind: str) -> AcceleratorSpec | None:
    """Return the accelerator whose name is in ``device_kind``; None if there is none.

    The longest name wins. None also for a part of a GPU (MIG), and for H100 NVL and H200 NVL, which are slower than the
    products that share their name.
    """
    if _OTHER.search(device_kind):
        return None
    # As complete words: an L40 is no L4, and a GH200 no H200.
    pattern = r"(?<![A-Za-z0-9]){}(?![A-Za-z0-9])"
    names = [name for name in ACCELERATORS if re.search(pattern.format(re.escape(name)), device_kind)]
    return ACCELERATORS[max(names, key=len)] if names else None
