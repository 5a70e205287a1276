"""Compile a run's programs on this host and report their memory.

    python -m midstream_engine.rehearse --config_path FILE [--SECTION.KEY VALUE ...] [--memory_limit SIZE] [--search]

Compiles for this host's devices, without data, without arrays on a device and without changes to the run's directory.
The compile cache is filled under the keys that the real run looks up. stdout gets one JSON line: the bytes that each
program needs on each device, as the compiler reports them. With --search it also finds the largest
trainer.per_device_parallelism that fits into --memory_limit (16GiB; default: the memory that the devices report).
Exit codes: 0 compiled (and it fits), 1 failed or does not fit, 2 invalid configuration.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from midstream_core import records
from midstream_core.attempt.errors import EngineError
from midstream_engine.array_types import Compiled
from midstream_engine.config import ConfigError, TrainLmConfig, load_config
from midstream_engine.interruption import interruptible

log = logging.getLogger("midstream_engine.rehearse")
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report and return the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or "--help" in arguments or "-h" in arguments:
        print(__doc__)
        return records.EXIT_DONE if arguments else records.EXIT_CONFIG
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname).1s %(message)s")
    logging.getLogger("jax").setLevel(logging.WARNING)
    logging.captureWarnings(True)
    try:
        rest, limit, search = own_flags(arguments)
        config = load_config(rest).config
        report = rehearse(config, limit, search)
    except ConfigError as error:
        print(f"midstream: {' '.join(str(error).split())}", file=sys.stderr)
        return records.EXIT_CONFIG
    except EngineError as error:
        print(f"midstream: {' '.join(str(error).split())}", file=sys.stderr)
        return error.code
    print(json.dumps(report), flush=True)
    return records.EXIT_FAILED if report["fits"] is False else records.EXIT_DONE


def own_flags(arguments: Sequence[str]) -> tuple[list[str], int | None, bool]:
    """Return the config's flags, ``--memory_limit`` in bytes, and ``--search``.

    Raises:
        ConfigError: ``--memory_limit`` has no size or an invalid one.
    """
    rest: list[str] = []
    limit: int | None = None
    pending = list(arguments)
    search = False
    while pending:
        flag = pending.pop(0)
        name, equals, value = flag.partition("=")
        if name == "--search":
            search = True
        elif name == "--memory_limit":
            if not equals and not pending:
                raise ConfigError("--memory_limit needs a size: 16GiB")
            limit = size_in_bytes(value if equals else pending.pop(0))
        else:
            rest.append(flag)
    return rest, limit, search


def size_in_bytes(text: str) -> int:
    """Return the bytes of ``"16GiB"``, ``"500MB"`` or a plain number of bytes.

    Raises:
        ConfigError: The text is not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in _UNITS:
        raise ConfigError(f"--memory_limit: {text!r} is not a size (hint: write 16GiB, 500MB or bytes)")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def rehearse(config: TrainLmConfig, limit: int | None, search: bool) -> dict[str, Any]:
    """Compile the programs and return the report.

    The report is ``{"event": "rehearsal", devices, mesh, parameters, memory_limit, fits, programs: [{name, batch,
    per_device_parallelism, accumulation, seconds, memory}], ...}``; with ``search`` also ``per_device_parallelism``,
    the largest that fits, None if none does.

    Raises:
        ConfigError: The configuration cannot be laid out on the devices, or ``search`` has no limit.
    """
    # jax is imported only here, so that an invalid flag is reported without its start-up time.
    from midstream_engine.computation.setup import make_plan
    from midstream_engine.runtime.environment import describe_devices
    from midstream_engine.runtime.jax_settings import configure_jax

    cache = configure_jax(config, config.trainer.resolved_root())
    devices = describe_devices()
    if limit is None:
        sizes = [device["memory_bytes"] for device in devices if device["memory_bytes"]]
        limit = min(sizes) if sizes else None
    fitting: int | None = None
    if search:
        if limit is None:
            raise ConfigError("--search: these devices do not report their memory (hint: give --memory_limit)")
        fitting = largest_that_fits(config, limit)
        if fitting is not None:
            config = replace(config, trainer=replace(config.trainer, per_device_parallelism=fitting))
    plan = make_plan(config)
    programs = [_compiled(*entry) for entry in _programs(plan)]
    steps = [entry for entry in programs if entry["name"] == "step"]
    fits = None if limit is None else all(entry["memory"]["total"] <= limit for entry in steps)
    report = {
        "event": "rehearsal",
        "devices": len(devices),
        "device_kind": devices[0]["kind"],
        "mesh": dict(plan.layout.mesh.shape),
        "parameters": plan.parameters,
        "compile_cache": cache,
        "memory_limit": limit,
        "fits": fits,
        "programs": programs,
    }
    return {**report, "per_device_parallelism": fitting} if search else report


def largest_that_fits(config: TrainLmConfig, limit: int) -> int | None:
    """Return the largest per-device batch that fits ``limit`` bytes a device, or None.

    Candidates divide each device's share of every batch. A binary search: more examples at a time never need less.
    """
    from midstream_engine.computation.programs import compile_step
    from midstream_engine.computation.setup import make_plan

    plan = make_plan(replace(config, trainer=replace(config.trainer, per_device_parallelism=1)))
    shares = [cut.micro for cut in plan.cuts.values()]
    sizes = range(1, max(shares) + 1)
    candidates = [size for size in sizes if all(share % min(size, share) == 0 for share in shares)]
    low, high = 0, len(candidates)  # candidates[:low] fit, candidates[high:] do not
    while low < high:
        middle = (low + high) // 2
        trainer = replace(config.trainer, per_device_parallelism=candidates[middle])
        trial = make_plan(replace(config, trainer=trainer))
        needed = max(memory(compile_step(trial, cut))["total"] for cut in trial.cuts.values())
        log.info("per_device_parallelism %d needs %.1f MiB a device", candidates[middle], needed / 2**20)
        low, high = (middle + 1, high) if needed <= limit else (low, middle)
    return candidates[low - 1] if low else None


def _programs(plan: Any) -> list[tuple[str, dict[str, int], Callable[[], Compiled]]]:
    """Return the run's programs: name, properties, and the function that compiles."""
    from midstream_engine.computation.programs import (
        compile_evaluation_step,
        compile_reference_losses,
        compile_step,
    )
    from midstream_engine.computation.train_state import compile_fresh_state, run_key

    def initialisation() -> object:
        run_key(plan.config.trainer.seed)
        return compile_fresh_state(plan.initializer(), plan.layout)

    def step(cut: Any) -> tuple[str, dict[str, int], Callable[[], Compiled]]:
        facts = {
            "batch": cut.examples,
            "per_device_parallelism": cut.size // plan.layout.batch_shards,
            "accumulation": cut.micro,
        }
        return "step", facts, lambda: compile_step(plan, cut)

    programs = [step(cut) for cut in plan.cuts.values()]
    programs.append(("reference_losses", {}, lambda: compile_reference_losses(plan).compiled))
    if plan.evaluates:
        programs.append(("evaluation", {}, lambda: compile_evaluation_step(plan)))
    programs.append(("initialisation", {}, initialisation))
    return programs


def _compiled(name: str, facts: dict[str, int], make: Callable[[], Compiled]) -> dict[str, Any]:
    began = time.monotonic()
    compiled = make()
    return {"name": name, **facts, "seconds": round(time.monotonic() - began, 3), "memory": memory(compiled)}


def memory(compiled: Compiled) -> dict[str, int]:
    """Return the bytes on each device, as the compiler reports them.

    The parts are arguments, results that are not arguments, temporary buffers and code; ``total`` is their sum.
    """
    analysis = compiled.memory_analysis()
    parts = {
        "arguments": int(analysis.argument_size_in_bytes),
        "results": max(0, int(analysis.output_size_in_bytes) - int(analysis.alias_size_in_bytes)),
        "temporary": int(analysis.temp_size_in_bytes),
        "code": int(analysis.generated_code_size_in_bytes),
    }
    return {**parts, "total": sum(parts.values())}


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.exit(interruptible(main))
