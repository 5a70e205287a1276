"""Compile a run's step for absent accelerators: its fit and its estimated time.

    python -m midstream_engine.estimate --config_path FILE --accelerators v5e-16 [--as_configured]
        [--SECTION.KEY VALUE ...]

Needs the accelerators' compiler (libtpu, or jax's CUDA plugin) and none of them. stdout gets one JSON line for each
program that is compiled (event "compiling", then "compiled" or "refused"), and a last one (event "estimate"). With
--as_configured only the division of the batch that the configuration has is compiled. Exit codes: 0 compiled (also if
nothing fits), 1 failed, 2 invalid configuration.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from midstream_core import records
from midstream_core.accelerator_types import EXAMPLES, GPU, TPU, AcceleratorType, parse
from midstream_core.accelerators import find_accelerator
from midstream_core.attempt.errors import EngineError
from midstream_core.json_types import JsonValue
from midstream_core.mesh_division import divisors
from midstream_engine.array_types import Compiled
from midstream_engine.config import ConfigError, TrainLmConfig, load_config
from midstream_engine.interruption import interruptible

PREALLOCATED = 0.75  # share of a GPU's memory, by XLA_PYTHON_CLIENT_MEM_FRACTION's default
AS_CONFIGURED = "--as_configured"
Emit = Callable[[dict[str, Any]], None]

_SIZE = r"(\d+(?:\.\d+)?)([KMGT]?)"
_REFUSALS = (
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
    re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the lines and return the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or "--help" in arguments or "-h" in arguments:
        print(__doc__)
        return records.EXIT_DONE if arguments else records.EXIT_CONFIG
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname).1s %(message)s")
    logging.captureWarnings(True)
    try:
        accelerators, rest = own_flag(word for word in arguments if word != AS_CONFIGURED)
        if accelerators.platform == GPU:
            os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")  # trying kernels out needs a GPU
        config = load_config(rest).config
        estimate(config, accelerators, _print, search=AS_CONFIGURED not in arguments)
    except ConfigError as error:
        print(f"midstream: {' '.join(str(error).split())}", file=sys.stderr)
        return records.EXIT_CONFIG
    except EngineError as error:
        print(f"midstream: {' '.join(str(error).split())}", file=sys.stderr)
        return error.code
    return records.EXIT_DONE


def _print(value: dict[str, JsonValue]) -> None:
    print(json.dumps(value), flush=True)


def own_flag(arguments: Iterable[str]) -> tuple[AcceleratorType, list[str]]:
    """Return the value of ``--accelerators``, and the configuration's flags.

    Raises:
        ConfigError: The flag is missing, or names no accelerator.
    """
    rest, name = list(arguments), ""
    if "--accelerators" in rest[:-1]:
        place = rest.index("--accelerators")
        name = rest[place + 1]
        del rest[place : place + 2]
    try:
        value = parse(name)
    except ValueError as error:
        raise ConfigError(f"--accelerators: {error}") from None
    if value is None:
        raise ConfigError(f"--accelerators: {name!r} names no accelerators (hint: {EXAMPLES})")
    return value, rest


def estimate(config: TrainLmConfig, accelerators: AcceleratorType, emit: Emit, *, search: bool = True) -> None:
    """Compile the step as the config divides it; with ``search`` other divisions too.

    The last event has the division that a run would have, which is the configuration's or, where that does not fit,
    the largest that does (``fits`` is false where none does); and ``largest``, the most examples at a time that fit.

    Raises:
        ConfigError: The configuration cannot be laid out on the devices.
    """
    compiler = _Compiler(config, accelerators, emit)
    sizes = compiler.sizes()
    requested = config.trainer.per_device_parallelism
    own = max(
        (size for size in sizes if requested > 0 and size <= requested),
        default=sizes[-1] if requested < 1 else sizes[0],
    )
    # From the division of the configuration on, to the first that fits; then from the largest down to that one.
    chosen = compiler.first_that_fits([size for size in reversed(sizes) if size <= own] if search else [own])
    largest = chosen
    if search and chosen is not None and chosen["per_device_parallelism"] == own:
        larger = [size for size in reversed(sizes) if size > own]
        largest = compiler.first_that_fits(larger) or chosen
    shown = chosen or {"per_device_parallelism": None, "accumulation": None}
    emit(
        {
            "event": "estimate",
            "accelerators": accelerators.name,
            "fits": chosen is not None,
            "fits_as_configured": chosen is not None and chosen["per_device_parallelism"] == own,
            "configured": own,
            "largest": largest and largest["per_device_parallelism"],
            "needed": compiler.needed,
            "compile_seconds": round(compiler.seconds, 1),
            **compiler.facts,
            **{name: value for name, value in shown.items() if name != "event"},
        }
    )


class _Compiler:
    """Compiles one step for several divisions of the batch."""

    def __init__(self, config: TrainLmConfig, accelerators: AcceleratorType, emit: Emit) -> None:
        from midstream_engine.compiled_program.topologies import devices_of
        from midstream_engine.computation.setup import make_plan

        self._config, self._accelerators, self._emit = config, accelerators, emit
        self._make_plan, self._devices = make_plan, devices_of(accelerators)
        self._first = self._plan(-1)
        self.needed: int | None = None  # bytes of the last division that was refused
        self.seconds = 0.0
        accelerator = find_accelerator(accelerators.kind)
        self.facts: dict[str, Any] = {
            "devices": self._first.layout.mesh.size,
            "device_kind": accelerators.kind,
            "device_memory": accelerators.memory or (accelerator.memory if accelerator else None),
            "mesh": dict(self._first.layout.mesh.shape),
            "parameters": self._first.parameters,
            "state_bytes": self._first.state_bytes,
            "batch": self._cut(self._first).examples,
            "tokens": self._cut(self._first).examples * config.model.seq_len,
            "steps": config.trainer.num_train_steps,
        }

    def sizes(self) -> list[int]:
        """Return the divisors of each device's share of every batch, ascending."""
        shares = [cut.examples // self._first.layout.batch_shards for cut in self._first.cuts.values()]
        return [size for size in divisors(min(shares)) if not any(share % size for share in shares)]

    def first_that_fits(self, sizes: Sequence[int]) -> dict[str, Any] | None:
        """Return the program of the first of descending ``sizes`` that fits, or None."""
        limit = float("inf")
        for size in sizes:
            if size > limit:
                continue
            result = self._compile(size)
            if "memory" in result:
                return result
            if result["needed"] and result["available"]:
                # A part of the memory does not depend on the division: what is well above this share needs too much.
                limit = 1.1 * size * result["available"] / result["needed"]
        return None

    def _plan(self, size: int) -> Any:
        trainer = replace(self._config.trainer, per_device_parallelism=size, per_device_eval_parallelism=-1)
        return self._make_plan(replace(self._config, trainer=trainer), self._devices)

    @staticmethod
    def _cut(plan: Any) -> Any:
        """Return the division of the largest batch."""
        return max(plan.cuts.values(), key=lambda cut: cut.examples)

    def _compile(self, size: int) -> dict[str, Any]:
        """Compile one division, and emit what was found."""
        import jax

        from midstream_engine.computation.programs import compile_step

        plan = self._plan(size)
        cut = self._cut(plan)
        facts = {"per_device_parallelism": size, "accumulation": cut.micro}
        self._emit({"event": "compiling", **facts})
        began = time.monotonic()
        try:
            compiled = compile_step(plan, cut)
        except jax.errors.JaxRuntimeError as error:
            self.seconds += time.monotonic() - began
            refusal = refused(str(error))
            if refusal is None:
                first = str(error).strip().splitlines()[0]
                raise EngineError(f"the compiler for {self._accelerators.name} failed: {first}") from None
            self.needed = refusal[0]
            result = {"event": "refused", **facts, "needed": refusal[0], "available": refusal[1]}
            self._emit(result)
            return result
        result = {"event": "compiled", **facts, **self._read(plan, compiled)}
        self.seconds += time.monotonic() - began
        available = self._available()
        if available is not None and result["memory"]["peak"] > available:
            self.needed = result["memory"]["peak"]
            result = {"event": "refused", **facts, "needed": self.needed, "available": available}
        self._emit(result)
        return result

    def _available(self) -> int | None:
        """Return the bytes that a program may use; None where the compiler limits it.

        On GPUs jax allocates a share of the memory at its start, and does not exceed it.
        """
        memory = self.facts["device_memory"]
        return None if self._accelerators.platform == TPU or memory is None else int(PREALLOCATED * memory)

    def _read(self, plan: Any, compiled: Compiled) -> dict[str, JsonValue]:
        """Return memory, time and FLOPs of a compiled step."""
        from midstream_engine.compiled_program.collectives import collectives, total_bytes
        from midstream_engine.compiled_program.gpu_roofline import gpu_step_time
        from midstream_engine.compiled_program.roofline import step_time
        from midstream_engine.loop.flops import flops_per_token, peak

        analysis, text = compiled.memory_analysis(), compiled.as_text()
        collective_list = collectives(text)
        per_token = flops_per_token(plan.config.model, plan.tokenizer.vocab_size)
        flops = per_token * self._cut(plan).examples * plan.config.model.seq_len / self.facts["devices"]
        trainer = plan.config.trainer
        device_peak = peak(self._accelerators.kind, trainer.precision().compute, trainer.precision_of_products())
        times = (step_time if self._accelerators.platform == TPU else gpu_step_time)(text, self._accelerators)
        fastest = flops / device_peak if device_peak else 0.0
        return {
            "memory": {
                "peak": int(analysis.peak_memory_in_bytes),
                "arguments": int(analysis.argument_size_in_bytes),
                "temporary": int(analysis.temp_size_in_bytes),
            },
            "step_seconds": max(times.seconds, fastest),
            "step_seconds_low": max(times.low, fastest),
            "step_seconds_high": max(times.high, fastest),
            "parts": {"compute": times.compute, "kernels": times.kernels, "exposed": times.exposed},
            "collective_bytes": total_bytes(collective_list),
            "exposed_bytes": total_bytes(collective_list, exposed=True),
            "model_flops": flops,
            "mfu": fastest / max(times.seconds, fastest) if fastest else None,
        }


def refused(message: str) -> tuple[int | None, int | None] | None:
    """Return the needed and available bytes of a compiler's error; None for others.

    A number that the message does not have is None.
    """
    if "RESOURCE_EXHAUSTED" not in message:
        return None
    for pattern in _REFUSALS:
        if match := pattern.search(message):
            return _bytes(match[1], match[2]), _bytes(match[3], match[4])
    return None, None


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * 1024 ** (" KMGT".index(unit) if unit else 0))


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"  # the devices are those of the topology
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.exit(interruptible(main))
