"""Bytes that the kernels of a compiled program read and write.

A kernel is an instruction of the scheduled text that is not within a fusion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from midstream_engine.compiled_program.hlo_text import Computation, Instruction

_SLICES = frozenset(("dynamic-slice", "slice", "gather"))
_NAMES = re.compile(r"%([\w.\-]+)")


class MemoryTraffic:
    """The computations of a program, and what its kernels move."""

    def __init__(self, program: Mapping[str, Computation]) -> None:
        self._computations = program
        self._named = {
            name: {instruction.name: instruction for instruction in computation.instructions}
            for name, computation in program.items()
        }

    def moved(self, home: Computation, kernel: Instruction) -> float:
        """Return the bytes that a kernel reads and writes.

        Of an operand that is only sliced, the slices count.
        """
        operands, inner = self.operands(home, kernel), self.inner(kernel)
        if inner is None:
            read = 0 if kernel.operation in _SLICES else sum(sum(operand.nbytes) for operand in operands)
            return float(read + sum(kernel.nbytes))
        read = sum(self._read(inner, index, sum(operand.nbytes)) for index, operand in enumerate(operands))
        return float(read + self._written(inner, kernel))

    def inner(self, kernel: Instruction) -> Computation | None:
        """Return the computation of a fusion; None of other kernels."""
        return self._computations.get(kernel.called.get("calls", "")) if kernel.operation == "fusion" else None

    def _read(self, inner: Computation, index: int, size: int) -> int:
        """Return the bytes of operand ``index``, of ``size`` bytes, that a fusion reads."""
        parameter = next(
            (instruction for instruction in inner.instructions
             if instruction.operation == "parameter" and f"parameter({index})" in instruction.text), None
        )  # fmt: skip
        if parameter is None:
            return size
        total = 0
        for user in inner.instructions:
            used = self.operands(inner, user)
            if not any(instruction is parameter for instruction in used):
                continue
            if user.operation in _SLICES:
                total += sum(user.nbytes)
            elif not (user.operation == "dynamic-update-slice" and used[0] is parameter):
                return size
        return min(total, size)

    def _written(self, inner: Computation, kernel: Instruction) -> int:
        """Return the bytes that a fusion writes.

        Of an array that is updated in place, the update counts.
        """
        updates = [instruction for instruction in inner.instructions if instruction.operation == "dynamic-update-slice"]
        saved = sum(sum(update.nbytes) - sum(self.operands(inner, update)[1].nbytes) for update in updates)
        return max(0, sum(kernel.nbytes) - saved)

    def operands(self, home: Computation, instruction: Instruction) -> list[Instruction]:
        """Return the operands of an instruction of ``home``."""
        named = self._named[home.name]
        start = instruction.text.find("(") + 1
        depth, end = 1, start
        while end < len(instruction.text) and depth:
            depth += (instruction.text[end] == "(") - (instruction.text[end] == ")")
            end += 1
        return [named[name] for name in _NAMES.findall(instruction.text[start:end]) if name in named]
