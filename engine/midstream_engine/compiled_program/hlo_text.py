"""Text of a compiled program: its computations and how often each runs.

The text is that of XLA's HLO after all of the compiler's passes (``compiled.as_text()``), which is scheduled: the order
of the lines is the order in which a device runs them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "s32": 4, "u32": 4, "s64": 8, "u64": 8,
          "bf16": 2, "f16": 2, "f32": 4, "f64": 8, "c64": 8, "f8e4m3fn": 1, "f8e5m2": 1}  # fmt: skip
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_SHAPE = re.compile(r"\b([a-z]+[0-9]*(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
_OPERATION = re.compile(r"(?:^|[\s)}])([a-z][\w\-]*)\(")
_CALLED = re.compile(r"\b(body|condition|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_ELEMENT = re.compile(r"^get-tuple-element\(.*\), index=(\d+)")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NO_ESTIMATE = (1 << 63) - 1  # of some fusions for TPU7x
_CALLS = ("call", "call-start", "async-start")
_CONSTANT = re.compile(r"[su]32\[\]\S* constant\((\d+)\)")


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    operation: str  # of HLO: "fusion", "all-gather", "while"
    result: str  # its type, with layouts: "(bf16[8,64]{1,0}, s32[])"
    text: str  # the line after the type
    is_root: bool

    @property
    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """The arrays of the result: dtype and shape."""
        return [(kind, _sizes(sizes)) for kind, sizes in _SHAPE.findall(self.result) if kind in _BYTES]

    @property
    def nbytes(self) -> list[int]:
        """Bytes of each array of the result, without padding."""
        return [_nbytes(kind, shape) for kind, shape in self.shapes]

    @property
    def called(self) -> dict[str, str]:
        """Computations that the instruction runs, by their part in it.

        Branches are "branch 0", "branch 1".
        """
        callees = dict(_CALLED.findall(self.text))
        for branches in _BRANCHES.findall(self.text):
            names = [name.strip().lstrip("%") for name in branches.split(",")]
            callees.update((f"branch {number}", name) for number, name in enumerate(names))
        return callees


@dataclass
class Computation:
    """A function of the program."""

    name: str
    is_entry: bool
    instructions: list[Instruction] = field(default_factory=list)

    @property
    def root(self) -> Instruction | None:
        """The instruction of the result."""
        return next((instruction for instruction in self.instructions if instruction.is_root), None)


def computations(text: str) -> dict[str, Computation]:
    """Return the computations of a program by name."""
    program: dict[str, Computation] = {}
    current: Computation | None = None
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            current = program[head[2]] = Computation(head[2], head[1] is not None)
        elif line == "}":
            current = None
        elif current is not None and (match := _INSTRUCTION.match(line)):
            result, rest = _split_type(match[3])
            operation = _OPERATION.search(" " + rest)
            if operation:
                current.instructions.append(Instruction(match[2], operation[1], result, rest, match[1] is not None))
        elif current is not None and current.instructions:  # an attribute of several lines
            last = current.instructions[-1]
            current.instructions[-1] = replace(last, text=f"{last.text}\n{line}")
    return program


def run_counts(program: Mapping[str, Computation], *, unknown: float | None = None) -> dict[str, float]:
    """Return how often each computation runs in one run of the program.

    Of a conditional each branch counts once.

    Args:
        program: Its computations.
        unknown: Turns of a loop whose number is not in the program's text; None: such a loop is an error.

    Raises:
        ValueError: The program has no entry, or the number of a loop's turns is not in its text.
    """
    entry = next((computation for computation in program.values() if computation.is_entry), None)
    if entry is None:
        raise ValueError("the text of the program has no entry computation")
    counts = dict.fromkeys(program, 0.0)
    for computation, times in _runs(program, entry, 1.0, unknown):
        counts[computation.name] += times
    return counts


def estimated_cycles(program: Mapping[str, Computation]) -> float:
    """Return the cycles of one run of a program for TPUs, by its compiler's estimate.

    Returns 0 for other programs.

    Without the time of collectives and of kernels, for which it has no estimates: compare programs, not times.
    """
    counts = run_counts(program, unknown=math.nan)
    cycles = sum(
        counts[name] * int(match[1])
        for name, computation in program.items()
        for instruction in computation.instructions
        if (match := _CYCLES.search(instruction.text)) and int(match[1]) != _NO_ESTIMATE
    )
    if math.isnan(cycles):
        raise ValueError("the turns of a loop, whose cycles count, are not in the program's text")
    return cycles


def _runs(
    program: Mapping[str, Computation], start: Computation, times: float, unknown: float | None
) -> Iterator[tuple[Computation, float]]:
    yield start, times
    for instruction in start.instructions:
        for role, name in instruction.called.items():
            if name not in program or (role == "to_apply" and instruction.operation not in _CALLS):
                continue  # the sum of a reduction, of which no collective is a part
            turns = _turns(program, instruction, unknown) if instruction.operation == "while" else 1
            yield from _runs(program, program[name], times * (turns + 1 if role == "condition" else turns), unknown)


def _turns(program: Mapping[str, Computation], loop: Instruction, unknown: float | None) -> float:
    """Return the turns of a loop; ``unknown`` where the program's text has no number.

    The compiler's own count comes before the condition's only number divided by the counter's step.
    """
    said = _TRIPS.search(loop.text)
    if said:
        return int(said[1])
    condition = program[loop.called["condition"]]
    limits = [
        int(match[1]) for instruction in _with_callees(program, condition) if (match := _CONSTANT.search(instruction))
    ]
    if len(limits) != 1:
        if unknown is not None:
            return unknown
        raise ValueError(f"the turns of the loop {loop.name} are not in the program's text")
    return -(-limits[0] // _counter_step(condition, program[loop.called["body"]]))


def _counter_step(condition: Computation, body: Computation) -> int:
    """Return the number that a turn adds to the loop's counter.

    The number is 2 in the loops of windowed einsums, else 1.
    """
    index = next(
        (match[1] for instruction in condition.instructions if (match := _ELEMENT.search(instruction.text))), None
    )
    root, named = body.root, {instruction.name: instruction for instruction in body.instructions}
    if index is None or root is None:
        return 1
    results = _OPERAND.findall(root.text.partition("(")[2])
    counter = named.get(results[int(index)]) if int(index) < len(results) else None
    if counter is None or counter.operation != "add":
        return 1
    parts = [named[name] for name in _OPERAND.findall(counter.text.partition(", metadata")[0]) if name in named]
    steps = [int(match[1]) for constant in parts if (match := _CONSTANT.search(f"{constant.result} {constant.text}"))]
    return steps[0] if steps else 1


def _with_callees(program: Mapping[str, Computation], start: Computation) -> Iterator[str]:
    for instruction in start.instructions:
        yield f"{instruction.result} {instruction.text}"
        for name in instruction.called.values():
            if name in program:
                yield from _with_callees(program, program[name])


def _split_type(text: str) -> tuple[str, str]:
    """Split "TYPE operation(...)" into the type and the rest.

    A tuple's type is in parentheses, and has some of its own.
    """
    if not text.startswith("("):
        result, _, rest = text.partition(" ")
        return result, rest
    depth = 0
    for index, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[: index + 1], text[index + 2 :]
    return text, ""


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split(",") if size)


def _nbytes(kind: str, shape: tuple[int, ...]) -> int:
    return int(math.prod(shape) * _BYTES[kind])
