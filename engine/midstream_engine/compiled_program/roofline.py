"""Estimate of the time of a compiled step from its text.

The time is that of computation, attention kernels and exposed collectives. For TPUs the computation is what the
compiler itself estimates, in cycles. Two things it does not estimate are added:
kernels, by their own arithmetic, and the bytes of collectives during which the device computes nothing.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from midstream_core.accelerator_types import AcceleratorType
from midstream_core.accelerators import FLOAT32_PASSES, AcceleratorSpec, find_accelerator
from midstream_engine.compiled_program.collectives import Collective, collectives
from midstream_engine.compiled_program.hlo_text import (
    Computation,
    Instruction,
    computations,
    estimated_cycles,
    run_counts,
)

# Products of [positions, positions] by [positions, head_size] in a kernel of splash attention: forward; of the
# derivatives, dkv computes the scores again, and the gradients of weights, values and keys; dq the first two, and one.
# Without a kernel for dq, that of dkv computes all gradients (``model.flash_attention_fused_backward``).
SPLASH_PRODUCTS = {"splash_mha_fwd": 2, "splash_mha_dkv": 4, "splash_mha_dq": 3}
_FUSED_PRODUCTS = {"splash_mha_fwd": 2, "splash_mha_dkv": 5}
# Share of the peak that attention kernels reach: lowest, expected, highest.
KERNEL_SHARE = (0.35, 0.55, 0.8)
# Share of the links' bandwidth that a collective reaches: lowest, expected, highest.
LINK_SHARE = (0.5, 0.8, 1.0)
# The compiler's cycles over those that the devices take: lowest, expected, highest time.
CYCLES_SHARE = (0.85, 1.0, 1.15)
_WIDTH = 128  # of a product in the matrix units of TPU v4 and v5
_WIDTHS = {"TPU v6 lite": 256, "TPU7x": 256}
_FLOAT32 = b"#tpu.contract_precision<fp32>"  # in a kernel's bytecode

_OPERANDS = re.compile(r"operand_layout_constraints=\{(.*?\})\}", re.DOTALL)
_ARRAY = re.compile(r"\b(bf16|f16|f32)\[([\d,]+)\]")
_BODY = re.compile(r'"body":"([A-Za-z0-9+/=]+)"')
_BLOCK = re.compile(r'block_kv\\?": (\d+)')


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step, by what a device does.

    ``low`` and ``high`` bound the sum by the shares of this module.
    """

    compute: float
    kernels: float
    exposed: float  # of collectives during which a device computes nothing
    low: float
    high: float

    @property
    def seconds(self) -> float:
        """The estimate."""
        return self.compute + self.kernels + self.exposed


def step_time(text: str, accelerators: AcceleratorType) -> StepTime:
    """Estimate the time of a program for TPUs.

    Args:
        text: ``compiled.as_text()``.
        accelerators: What it is compiled for.

    Raises:
        ValueError: The table of accelerators has no clock of these, or the turns of a loop are not in the text.
    """
    device = find_accelerator(accelerators.kind)
    if device is None or device.clock is None:
        raise ValueError(f"the clock of {accelerators.kind} is not in the table of accelerators")
    program = computations(text)
    compute = estimated_cycles(program) / device.clock
    kernels = kernel_flops(program, _WIDTHS.get(accelerators.kind, _WIDTH)) / device.peak_flops
    exposed = exposed_seconds(collectives(text), accelerators, device)
    ends = [
        compute * cycles + kernels / kernel + exposed / link
        for cycles, kernel, link in zip(CYCLES_SHARE, KERNEL_SHARE[::-1], LINK_SHARE[::-1], strict=True)
    ]
    return StepTime(compute, kernels / KERNEL_SHARE[1], exposed / LINK_SHARE[1], ends[0], ends[2])


def kernel_flops(program: Mapping[str, Computation], width: int) -> float:
    """Return the FLOPs of splash attention kernels on a device in a run of a program.

    FLOPs are counted in passes of 16 bits: a product in float32 counts six times.

    Of causal attention the blocks above the diagonal are not computed. A head narrower than the matrix unit counts as
    wide as ``width``, the time that it takes.
    """
    counts = run_counts(program)
    kernels = [
        (counts[name], instruction)
        for name, computation in program.items()
        for instruction in computation.instructions
        if instruction.operation == "custom-call" and counts[name]
    ]
    apart = any(kernel.name.startswith("splash_mha_dq") for _, kernel in kernels)
    products = SPLASH_PRODUCTS if apart else _FUSED_PRODUCTS
    return sum(count * _splash_flops(kernel, width, products) for count, kernel in kernels)


def _splash_flops(kernel: Instruction, width: int, counts: Mapping[str, int]) -> float:
    products = next((count for name, count in counts.items() if kernel.name.startswith(name)), 0)
    operands = _OPERANDS.search(kernel.text)
    arrays = [tuple(map(int, sizes.split(","))) for _, sizes in _ARRAY.findall(operands[1])] if operands else []
    arrays = [sizes for sizes in arrays if len(sizes) >= 3]
    if not products or len(arrays) < 2:
        return 0.0
    *batch_and_heads, positions, head = arrays[0]
    keys = arrays[1][-2]
    block = _BLOCK.search(kernel.text)
    computed = (1 + min(1.0, int(block[1]) / keys if block else 0.0)) / 2
    padded = math.ceil(head / width) * width
    body = _BODY.search(kernel.text)
    passes = FLOAT32_PASSES if body and _FLOAT32 in base64.b64decode(body[1]) else 1
    return passes * products * 2.0 * math.prod(batch_and_heads) * positions * keys * padded * computed


def exposed_seconds(
    collective_list: Sequence[Collective], accelerators: AcceleratorType, device: AcceleratorSpec
) -> float:
    """Return the seconds of the collectives that nothing hides.

    The links run at their full bandwidth.
    """
    if device.interconnect is None:
        return 0.0
    return sum(
        collective.nbytes / (device.interconnect * usable_links(accelerators, collective.devices))
        for collective in collective_list
        if collective.exposed
    )


def usable_links(accelerators: AcceleratorType, devices: int) -> float:
    """Return the share of a TPU device's links in a collective of ``devices``.

    Each side of the slice has two links of a chip. A side of one chip has none; one whose ends are not connected lets
    a ring use half. A group smaller than the slice is taken as a ring along one side.
    """
    if not accelerators.sides:
        return 1.0
    shares = sorted(
        (
            (1.0 if wraps else 0.5)
            for side, wraps in zip(accelerators.sides, accelerators.wrapped, strict=True)
            if side > 1
        ),
        reverse=True,
    )
    used = shares if devices >= accelerators.devices else shares[:1]
    return sum(used) / len(accelerators.sides) if used else 1.0
