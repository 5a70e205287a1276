"""Names of accelerators that can be rented, and what the compilers call them.

Names are, for example, ``v5e-16``, ``tpu7x-8`` and ``h100x8``.

The only table of these names; the app and the engine read it. Standard library alone.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

TPU, GPU = "tpu", "cuda"
DEVICES_OF_HOST = 8  # GPUs in one host

# Sides of the slices that can be rented, by chips. https://cloud.google.com/tpu/docs/v6e (and v5e), v5p (and v4)
_FLAT = {1: (1, 1), 4: (2, 2), 8: (2, 4), 16: (4, 4), 32: (4, 8), 64: (8, 8), 128: (8, 16), 256: (16, 16)}
_CUBES = {4: (2, 2, 1), 8: (2, 2, 2), 16: (2, 2, 4), 32: (2, 4, 4), 64: (4, 4, 4), 128: (4, 4, 8), 256: (4, 8, 8),
          512: (8, 8, 8), 1024: (8, 8, 16), 2048: (8, 16, 16), 4096: (16, 16, 16)}  # fmt: skip


class _Generation(NamedTuple):
    compiler: str  # name of the generation in a topology: "v5e" of "v5e:4x4"
    kind: str  # jax's device_kind
    sides: dict[int, tuple[int, ...]]  # by chips
    units_per_chip: int  # of the number in a name: v5p-8 has 4 chips
    devices_per_chip: int
    wraps_at: int  # chips of a side from which on its ends are connected too


# By the name before the number. https://cloud.google.com/tpu/docs/v4, v5e, v5p, v6e, tpu7x
_GENERATIONS = {
    "v4": _Generation("v4", "TPU v4", _CUBES, 2, 1, 4),
    "v5e": _Generation("v5e", "TPU v5 lite", _FLAT, 1, 1, 16),
    "v5litepod": _Generation("v5e", "TPU v5 lite", _FLAT, 1, 1, 16),
    "v5p": _Generation("v5p", "TPU v5", _CUBES, 2, 1, 4),
    "v6e": _Generation("v6e", "TPU v6 lite", _FLAT, 1, 1, 16),
    "tpu7x": _Generation("tpu7x", "TPU7x", {1: (1, 1, 1), 2: (2, 1, 1), **_CUBES}, 2, 2, 4),
}
# GPUs: part of jax's device_kind, and GiB of memory.
_GPUS = {
    "a100-40": ("A100", 40), "a100-80": ("A100-SXM4-80GB", 80), "a100": ("A100-SXM4-80GB", 80),
    "h100": ("H100", 80), "h200": ("H200", 141),
}  # fmt: skip
EXAMPLES = "v5e-16, v5p-8, v6e-16, tpu7x-8, h100x8, a100-80x8"


class AcceleratorType(NamedTuple):
    """Accelerators by one of their names."""

    name: str
    platform: str  # TPU or GPU
    topology: str  # "v5e:4x4", "h100x8"
    kind: str  # a part of jax's device_kind, for the table of accelerators
    devices: int  # as jax counts them
    memory: int | None  # bytes of a device; None: in the table of accelerators
    sides: tuple[int, ...]  # of a TPU slice, in chips
    wrapped: tuple[bool, ...]  # whether the ends of a side are connected


def parse(name: str) -> AcceleratorType | None:
    """Return the accelerators of a name; None where it is none (it may be a target).

    Raises:
        ValueError: The name is that of accelerators, which do not exist in this number; the message has those that do.
    """
    text = name.strip().lower()
    if match := re.fullmatch(r"([a-z0-9]+)-(\d{1,5})", text):
        generation = _GENERATIONS.get(match[1])
        if generation is not None:
            return _slice_of(text, match[1], generation, int(match[2]))
    if match := re.fullmatch(r"([a-z0-9]+):(\d{1,3}(?:x\d{1,3}){1,2})", text):
        generation = _GENERATIONS.get(match[1])
        if generation is not None:
            return _tpu(text, generation, tuple(int(side) for side in match[2].split("x")))
    if (match := re.fullmatch(r"([a-z0-9]+(?:-\d+)?)x(\d{1,5})", text)) and match[1] in _GPUS:
        kind, memory = _GPUS[match[1]]
        count = int(match[2])
        if not count or (count > DEVICES_OF_HOST and count % DEVICES_OF_HOST):
            raise ValueError(f"{name}: write 1 to {DEVICES_OF_HOST} GPUs, or complete hosts of {DEVICES_OF_HOST}")
        model = "a100-80" if match[1] == "a100" else match[1]
        return AcceleratorType(text, GPU, f"{model}x{count}", kind, count, memory << 30, (), ())
    return None


def lookup(name: str) -> AcceleratorType | None:
    """Return accelerators by their name; None where the table lacks it, or it is none."""
    try:
        return parse(name)
    except ValueError:
        return None


def _slice_of(text: str, prefix: str, generation: _Generation, number: int) -> AcceleratorType:
    sides = generation.sides.get(number // generation.units_per_chip)
    if sides is None or number % generation.units_per_chip:
        sizes = ", ".join(f"{prefix}-{chips * generation.units_per_chip}" for chips in generation.sides)
        raise ValueError(f"{text}: there is no such slice; there are {sizes}")
    return _tpu(text, generation, sides)


def _tpu(text: str, generation: _Generation, sides: tuple[int, ...]) -> AcceleratorType:
    example = "x".join(map(str, generation.sides[4]))
    if len(sides) != len(generation.sides[4]) or not all(sides):
        raise ValueError(f"{text}: no such topology; write one as {generation.compiler}:{example}")
    devices = math.prod(sides) * generation.devices_per_chip
    topology = f"{generation.compiler}:{'x'.join(map(str, sides))}"
    wrapped = tuple(side >= generation.wraps_at for side in sides)
    return AcceleratorType(text, TPU, topology, generation.kind, devices, None, sides, wrapped)
