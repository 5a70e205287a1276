"""Bytes that a program's collectives send, and those that no computation hides.

Bytes are those that a device sends in a ring of n devices: of an all-gather or a reduce-scatter of B bytes (of the
complete array) B(n-1)/n, of an all-reduce twice as many, of an all-to-all B(n-1)/n, of a permutation B (Thakur,
Rabenseifner & Gropp, "Optimization of collective communication operations in MPICH", 2005).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from midstream_engine.compiled_program.hlo_text import Computation, Instruction, computations, run_counts
from midstream_engine.compiled_program.memory_traffic import MemoryTraffic

ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER = "all-gather", "all-reduce", "reduce-scatter"
ALL_TO_ALL, PERMUTE = "all-to-all", "collective-permute"
_KINDS = (ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, ALL_TO_ALL, PERMUTE)

_MESH_GROUPS = re.compile(r"replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}")
_IOTA_GROUPS = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=")
_LISTED_GROUPS = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_STEP_OF = re.compile(r'channel_id=(\d+).*?chain_id="(\d+)"')
_STARTS = ("call-start", "async-start")
# Bytes of a collective's arrays over those of the work beside it. A device's memory is 4 to 16 times as fast as its
# links, so that even this part of the bytes hides little of a collective.
_WORK = 0.1
# A fusion that computes is none that only moves its collective's parts.
_COMPUTES = frozenset(("dot", "convolution", "reduce", "exponential", "divide", "scatter", "custom-call", "fusion"))


@dataclass(frozen=True)
class Collective:
    """One collective of the program."""

    kind: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]  # of the complete arrays
    devices: int  # in a group
    times: float  # that it runs in one run of the program
    nbytes: float  # that a device sends in one run of the program
    exposed: bool  # whether the device computes nothing during this time
    source: str  # the operation of the traced function


def collectives(text: str) -> list[Collective]:
    """Return the collectives in a program's text that involve more than one device.

    Raises:
        ValueError: The turns of a loop that has some are not in the text, or it has no entry.
    """
    program = computations(text)
    counts, traffic = run_counts(program, unknown=math.nan), MemoryTraffic(program)
    callers = {name: (instruction, caller) for caller in program.values() for instruction in caller.instructions
               for name in instruction.called.values()}  # fmt: skip
    collected: list[Collective] = []
    steps: dict[tuple[str, str], tuple[Collective, bool]] = {}
    for computation in program.values():
        for index, instruction in enumerate(computation.instructions):
            kind = instruction.operation.removesuffix("-start")
            if kind not in _KINDS or not counts[computation.name]:
                continue
            if math.isnan(counts[computation.name]):
                raise ValueError(f"the turns of the loop of {instruction.name} are not in the program's text")
            exposed = not instruction.operation.endswith("-start") or not _computes_before_done(
                traffic, computation, index
            )
            caller = callers.get(computation.name)
            if caller and caller[0].operation in _STARTS:  # on a core of its own
                exposed = not _computes_before_done(traffic, caller[1], caller[1].instructions.index(caller[0]))
            is_scatter = kind == ALL_REDUCE and computation.name.startswith("all-reduce-scatter")
            collective = _collective(
                instruction, REDUCE_SCATTER if is_scatter else kind, counts[computation.name], exposed=exposed
            )
            if collective.devices < 2:
                continue
            step = _STEP_OF.search(instruction.text)
            if step and caller and caller[0].operation == "fusion":
                # The steps of one collective, each in a fusion: it is hidden where one of them computes too.
                hides = _computes(computation, instruction)
                before = steps.get((step[1], step[2]))
                steps[step[1], step[2]] = (collective, hides or (before is not None and before[1]))
            else:
                collected.append(collective)
    for collective, hides in steps.values():
        collected.append(Collective(**{**vars(collective), "exposed": not hides}))
    return collected


def _collective(instruction: Instruction, kind: str, times: float, *, exposed: bool) -> Collective:
    devices = _group_size(instruction.text)
    arrays, sizes = instruction.shapes, instruction.nbytes
    if instruction.operation.endswith("-start") and kind != ALL_REDUCE:  # (operands, results, numbers of its own)
        half = sum(dtype != "u32" or shape != () for dtype, shape in arrays) // 2
        arrays, sizes = arrays[half : 2 * half], sizes[half : 2 * half]
    total = float(sum(sizes))
    if kind == REDUCE_SCATTER and instruction.operation.startswith(REDUCE_SCATTER):
        total *= devices  # the result is a device's share
    share = 1.0 if kind == PERMUTE else (devices - 1) / devices
    source = re.search(r'op_name="([^"]*)"', instruction.text)
    return Collective(
        kind,
        tuple(dtype for dtype, _ in arrays),
        tuple(shape for _, shape in arrays),
        devices,
        times,
        times * total * share * (2 if kind == ALL_REDUCE else 1),
        exposed,
        source[1] if source else "",
    )


def _group_size(text: str) -> int:
    """Return the devices of a group; 2 for a permutation, which names pairs."""
    mesh = _MESH_GROUPS.search(text)
    if mesh:
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", mesh[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'([^']+)'", mesh[2]))
    iota = _IOTA_GROUPS.search(text)
    if iota:
        return int(iota[2])
    listed = _LISTED_GROUPS.search(text)
    if listed:
        return len(listed[1].split(","))
    return 2


def _computes_before_done(traffic: MemoryTraffic, computation: Computation, start: int) -> bool:
    """Return whether the device computes between a ``-start`` and its ``-done``.

    Work that reads and writes little beside the collective's bytes, as a counter or the sum of a vector, is none.
    """
    collective = computation.instructions[start]
    done = re.compile(rf"%?{re.escape(collective.name)}\b")
    moved = 0.0
    for instruction in computation.instructions[start + 1 :]:
        if instruction.operation.endswith("-done") and done.search(instruction.text):
            return False
        if instruction.operation in ("fusion", "dot", "convolution", "custom-call", "while", "call"):
            moved += traffic.moved(computation, instruction)
            if moved >= _WORK * sum(collective.nbytes):
                return True
    return False


def _computes(computation: Computation, collective: Instruction) -> bool:
    return any(
        instruction.operation in _COMPUTES for instruction in computation.instructions if instruction is not collective
    )


def total_bytes(collective_list: list[Collective], *, exposed: bool = False) -> float:
    """Return the bytes that a device sends in one run of the program.

    ``exposed``: only those that nothing hides.
    """
    return sum(collective.nbytes for collective in collective_list if collective.exposed or not exposed)


def by_kind(collective_list: list[Collective]) -> Mapping[str, float]:
    """Return the bytes that a device sends in one run of the program, by kind."""
    return {
        kind: sum(collective.nbytes for collective in collective_list if collective.kind == kind) for kind in _KINDS
    }
