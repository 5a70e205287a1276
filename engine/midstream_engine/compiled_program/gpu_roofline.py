"""Estimate of the time of a step compiled for GPUs, kernel by kernel.

The time follows from the kernel's products and the bytes that it moves.

Programs for GPUs have no cycles. Each instruction of the scheduled text that is not within a fusion is one kernel; it
takes the longer of its products at the peak and its operands and results at the memory's bandwidth. The peak of a
product follows from its operands: 16 bits, float32 rounded to TF32, or float32 at the highest precision.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from midstream_core.accelerator_types import AcceleratorType
from midstream_core.accelerators import AcceleratorSpec, find_accelerator
from midstream_engine.compiled_program.collectives import collectives
from midstream_engine.compiled_program.hlo_text import Computation, Instruction, computations, run_counts
from midstream_engine.compiled_program.memory_traffic import MemoryTraffic
from midstream_engine.compiled_program.roofline import KERNEL_SHARE, LINK_SHARE, StepTime, exposed_seconds

# Share of the peak that products reach, and of the bandwidth that other kernels reach: lowest, expected, highest.
PRODUCT_SHARE = (0.5, 0.7, 0.85)
BANDWIDTH_SHARE = (0.6, 0.8, 0.95)
# Seconds that a kernel takes at least, one after the other: most, expected, least. Small models have only these.
LAUNCH_SECONDS = (4e-6, 2e-6, 1e-6)
# FLOPs of cuDNN's attention forward, and of its derivatives, which compute the scores again: products of
# [positions, keys] by [keys, head_size].
FORWARD, BACKWARD = 2, 5
# The same of our kernels of attention within documents: each derivative computes scores and gradients of weights again.
DOCUMENT_KERNELS = {"forward": 2, "query_gradient": 3, "key_gradients": 4}
_DOCUMENT = re.compile(r"/document_attention_(\w+)/pallas_call")
_NO_KERNEL = frozenset(
    ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "call", "conditional", "after-all",
     "partition-id", "replica-id", "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute",
     "opt-barrier")
)  # fmt: skip
_SHAPES = re.compile(r"\b(?:bf16|f16|f32)\[([\d,]+)\]")
_LAYOUTS = re.compile(r"operand_layout_constraints=\{(.*?\})\}", re.DOTALL)
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_HIGHEST = re.compile(r"operand_precision\W+highest", re.IGNORECASE)
_CUBLAS = re.compile(r'"lhs_contracting_dimensions":\[([^\]]*)\]')


def gpu_step_time(text: str, accelerators: AcceleratorType) -> StepTime:
    """Estimate the time of a program for GPUs.

    Args:
        text: ``compiled.as_text()``.
        accelerators: What it is compiled for.

    Raises:
        ValueError: The table of accelerators has no bandwidth of these, or the turns of a loop are not in the text.
    """
    device = find_accelerator(accelerators.kind)
    if device is None or device.bandwidth is None:
        raise ValueError(f"the bandwidth of {accelerators.kind} is not in the table of accelerators")
    program = _GpuProgram(text, device)
    kernels = [(times, kernel, program.product_seconds(home, kernel), program.traffic.moved(home, kernel))
               for times, home, kernel in program.kernels()]  # fmt: skip
    attention = sum(times * _attention_flops(kernel) for times, kernel, _, _ in kernels) / device.peak_flops
    exposed = exposed_seconds(collectives(text), accelerators, device)
    bandwidth = device.bandwidth

    def computed(product: float, move: float, launch: float) -> float:
        return sum(
            times * max(products / product, moved / bandwidth / move, launch)
            for times, kernel, products, moved in kernels
            if not _attention_flops(kernel)
        )

    shares = zip(PRODUCT_SHARE, BANDWIDTH_SHARE, LAUNCH_SECONDS, KERNEL_SHARE, LINK_SHARE, strict=True)
    sums = [
        computed(product, move, launch) + attention / kernel + exposed / link
        for product, move, launch, kernel, link in shares
    ]
    compute = computed(PRODUCT_SHARE[1], BANDWIDTH_SHARE[1], LAUNCH_SECONDS[1])
    return StepTime(compute, attention / KERNEL_SHARE[1], exposed / LINK_SHARE[1], sums[2], sums[0])


class _GpuProgram:
    """The computations of a program, and what its kernels compute."""

    def __init__(self, text: str, device: AcceleratorSpec) -> None:
        self._device = device
        self._computations = computations(text)
        self.traffic = MemoryTraffic(self._computations)

    def kernels(self) -> Iterator[tuple[float, Computation, Instruction]]:
        """Yield how often each kernel runs, its computation, and the kernel."""
        within = {
            name for computation in self._computations.values() for instruction in computation.instructions
            for role, name in instruction.called.items()
            if instruction.operation == "fusion" or (role == "to_apply" and instruction.operation != "call")
        }  # fmt: skip
        for name, times in run_counts(self._computations).items():
            if not times or name in within:
                continue
            for instruction in self._computations[name].instructions:
                if instruction.operation not in _NO_KERNEL and not instruction.operation.endswith(("-start", "-done")):
                    yield times, self._computations[name], instruction

    def product_seconds(self, home: Computation, kernel: Instruction) -> float:
        """Return the seconds of the products of a kernel at their peaks."""
        inner = self.traffic.inner(kernel)
        return (
            self._product(home, kernel) if inner is None else sum(self._product(inner, e) for e in inner.instructions)
        )

    def _product(self, home: Computation, instruction: Instruction) -> float:
        contracted = _CONTRACTED.search(instruction.text) if instruction.operation == "dot" else None
        if instruction.operation == "custom-call" and "__cublas" in instruction.text:
            contracted = _CUBLAS.search(instruction.text)
        operands = self.traffic.operands(home, instruction) if contracted is not None else []
        if contracted is None or not instruction.shapes or not operands or not operands[0].shapes:
            return 0.0
        rows = operands[0].shapes[0][1]
        axes = [int(axis) for axis in re.findall(r"\d+", contracted[1])]
        flops = 2.0 * math.prod(instruction.shapes[0][1]) * math.prod(rows[axis] for axis in axes)
        return flops / product_peak(self._device, operands[0].shapes[0][0], instruction.text)


def product_peak(device: AcceleratorSpec, dtype: str, text: str) -> float:
    """Return the peak FLOP/s of a matrix product.

    Args:
        device: What computes it.
        dtype: Of its operands: ``f32``, ``bf16``.
        text: The instruction, with its precision.
    """
    if dtype != "f32":
        return device.peak_flops
    return device.float32_flops if _HIGHEST.search(text) else device.default_flops


def _attention_flops(kernel: Instruction) -> float:
    """Return the FLOPs of an attention kernel, cuDNN's or our own; 0 for others.

    Causal attention counts half.
    """
    ours = _DOCUMENT.search(kernel.text)
    if kernel.operation != "custom-call" or not (ours or "fmha" in kernel.text):
        return 0.0
    layouts = _LAYOUTS.search(kernel.text)
    arrays = [tuple(map(int, sizes.split(","))) for sizes in _SHAPES.findall(layouts[1])] if layouts else []
    if len(arrays) < 2 or len(arrays[0]) != 4:
        return 0.0
    batch, positions, heads, head = arrays[0]
    if ours is not None:
        products, causal = DOCUMENT_KERNELS.get(ours[1], FORWARD), True
    else:
        products = BACKWARD if "Backward" in kernel.text else FORWARD
        causal = '"mask_type": "CAUSAL"' in kernel.text or '"mask_type":"CAUSAL"' in kernel.text
    half = 0.5 if causal else 1.0
    return half * products * 2.0 * batch * heads * positions * arrays[1][1] * head
