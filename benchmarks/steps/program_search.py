"""Search of the configuration whose program is fastest by the estimate of ``--compare``.

One kind of option after the other: what the backward pass computes again, sequences in a micro-batch, the compiler's
options, blocks of splash attention, positions with logits at a time; first those that can save most. Each kind keeps
the fastest of its values that fits into the devices' memory, and the next kind is tried on top of it. So a dozen
compilations, not hundreds, have an answer; it is not always that of the complete grid.

Each compilation is one JSON line in a file at once; a search that is started again does not repeat those in the file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Values = Mapping[str, Any]  # keys of the configuration, as model.seq_len
COMPILER = "trainer.compiler_options."
MICRO_BATCH = "trainer.per_device_parallelism"
USABLE = 0.95  # share of a device's memory that a program may take

_WINDOWS = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}  # none: no product is so large
_ASYNCHRONOUS = {
    "xla_enable_async_all_gather": "True",
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "True",
}
_GATHER_WINDOWS = {"xla_tpu_enable_windowed_einsum_for_all_gather": "False"}
_REMATERIALISATION = (True, "attention", "qkv+attention", "qkv+attention+mlp", "dots_with_no_batch_dims_saveable")
_ATTENTION_BLOCKS = (256, 512, 1024)
_LOSS_BLOCKS = (128, 256, 512, 1024)


@dataclass(frozen=True)
class Found:
    """The fastest configuration of a search."""

    values: Values  # beside the configuration that the search began with
    row: Mapping[str, Any]
    tried: int  # programs of this search, in the file or compiled now
    left: int  # of the last kind and the kinds after it, because the budget was over


def kinds(plan: Any, own: Mapping[str, str]) -> Iterator[list[Values]]:
    """Yield the values of each kind.

    Args:
        plan: Of the configuration that the search begins with.
        own: The engine's options of the compiler for the plan's devices.
    """
    now = plan.config.model.gradient_checkpointing
    yield [{"model.gradient_checkpointing": each} for each in _REMATERIALISATION if each != now]
    examples, share = plan.cut.size // plan.layout.batch_shards, plan.cut.examples // plan.layout.batch_shards
    yield [{MICRO_BATCH: n} for n in (examples // 2, 2 * examples, 4 * examples) if n and share % n == 0]
    yield [{f"{COMPILER}{name}": value for name, value in each.items()} for each in _compiler(plan, own)]
    positions = plan.config.model.seq_len
    if plan.layout.platform == "tpu":
        yield [{"model.flash_attention_block_size": n} for n in _ATTENTION_BLOCKS if positions % n == 0]
        yield [{"model.flash_attention_fused_backward": True}]
    yield [{"model.cross_entropy_block_size": n} for n in _LOSS_BLOCKS if positions % n == 0]


def _compiler(plan: Any, own: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    if own:
        yield dict.fromkeys(own)  # the compiler's defaults
    if len(own) > 1:
        yield from ({name: None} for name in own)
    if plan.layout.platform == "tpu":
        for more in (_ASYNCHRONOUS, _GATHER_WINDOWS, _WINDOWS, _WINDOWS | _ASYNCHRONOUS):
            if not more.items() <= own.items():
                yield more


def search(
    path: Path,
    name: Mapping[str, str],
    grid: Sequence[Sequence[Values]],
    measure: Callable[[Values], Mapping[str, Any]],
    *,
    memory: float | None,
    budget: float,
    say: Callable[[Mapping[str, Any]], None],
) -> Found | None:
    """Return the fastest configuration; None if no program fits, or none was compiled within the budget.

    Args:
        path: The file, to which lines are appended.
        name: Model and topology, by which lines are found again.
        grid: The values of each kind.
        measure: Compiles with values and returns what the program says of itself, or its ``error``.
        memory: Bytes of a device; None: any program fits.
        budget: Seconds. A program that is being compiled when they are over is finished.
        say: Shows each row as it is known.
    """
    began, known, tried, left = time.monotonic(), rows_of(path), 0, 0
    best: tuple[Values, Mapping[str, Any]] | None = None
    for values in [[{}], *grid]:
        base = dict(best[0]) if best else {}
        for each in values:
            wanted = base | dict(each)
            row = known.get(key(name, wanted))
            if row is None:
                if time.monotonic() - began >= budget:
                    left += 1
                    continue
                row = {**name, "values": wanted, **measure(wanted)}
                append(path, row)
                known[key(name, wanted)] = row
                say(row)
            tried += 1
            if fits(row, memory) and (best is None or rank(row) < rank(best[1])):
                best = (wanted, row)
    return None if best is None else Found(*best, tried, left)


def key(name: Mapping[str, str], values: Values) -> str:
    """Return by what a line is found again."""
    return json.dumps([dict(name), dict(values)], sort_keys=True)


def rows_of(path: Path) -> dict[str, Mapping[str, Any]]:
    """Return the lines of the file by their keys. A partial last line, of a search that was killed, does not count."""
    found: dict[str, Mapping[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
            found[key({"model": row["model"], "topology": row["topology"]}, row["values"])] = row
        except (ValueError, KeyError, TypeError):
            continue
    return found


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Write a line at once, on a line of its own even after a partial one."""
    partial = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    with path.open("a") as file:
        file.write("\n" * partial + json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def fits(row: Mapping[str, Any], memory: float | None) -> bool:
    """Return whether a program was made, and its arrays fit into the memory of a device."""
    if "error" in row:
        return False
    return memory is None or row["arguments"] + row["temporary"] <= USABLE * memory


def rank(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return what orders rows: the estimated seconds, and cycles where they are not known or equal."""
    seconds = row["step_seconds"]
    return (float("inf") if seconds is None else seconds, row["cycles"])


def pasted(values: Values) -> str:
    """Return values as YAML to paste into a configuration."""
    import yaml

    tree: dict[str, Any] = {}
    for name, value in values.items():
        room, *rest = name.split(".")
        inner = tree.setdefault(room, {})
        for part in rest[:-1]:
            inner = inner.setdefault(part, {})
        inner[rest[-1]] = value
    return yaml.safe_dump(tree, sort_keys=False) if tree else ""
