"""Compile the step for accelerators that are not here, and read the compiled program: memory, collectives, cycles.

    make compilers compilers-cuda
    python benchmarks/aot.py [--model llama-1b] [--topology v5e:4x4] [--option NAME=VALUE ...] [--json]

It needs neither a TPU nor a GPU: their compilers make the program that a slice, or hosts with GPUs (``--topology
h100x8``), would run. A program with a billion parameters takes 1 to 2 minutes on two cores and 2 GiB of memory, that
for GPUs 20 seconds; GPUs have no cycles, and what cuDNN needs beside operands and results is not in temporaries.
``--model`` is ``llama-1b`` (configs/llama_1b.yaml: batch 256 x 4096 tokens, micro-batches of 4 sequences a device,
everything computed again in the backward pass) or ``gpt2-124m`` (configs/gpt2_small.yaml). ``--option`` is one of the
compiler.

Bytes are those that one device sends in one step (see midstream_engine.compiled_program.collectives); *exposed* are
those during which it computes nothing. *Ideal* is what fully sharded training has to send: for each micro-batch two
gathers of the parameters, forward and backward, and one reduce-scatter of the gradients, in the compute precision.
Cycles are the compiler's estimate of everything but collectives and kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY / "engine")]
os.environ["JAX_PLATFORMS"] = "cpu"  # the devices are those of the topology
GIB, GB = 1 << 30, 1e9

# The bytes tokenizer with a padded vocabulary has the shape of the model without its tokenizer's file.
MODELS = {
    "llama-1b": ("llama_1b.yaml", ("--model.pad_vocab_to_multiple", "128256")),
    "gpt2-124m": ("gpt2_small.yaml", ("--model.pad_vocab_to_multiple", "50304")),
}
HEAD = "| model | topology | options | arguments / temporary GiB | sent GB | exposed | ideal | sent / ideal | cycles |"
DROPPED = ("tokenizer", "eos_token", "train_urls", "validation_urls", "cache_dir")


def measure(model: str, topology: str, options: dict[str, str]) -> dict[str, Any]:
    """Return what the program of one step on ``topology`` says of itself. Bytes are those of one device."""
    from midstream_engine.compiled_program.collectives import by_kind, collectives, total_bytes
    from midstream_engine.compiled_program.gpu_topologies import gpu_devices, names_gpus
    from midstream_engine.compiled_program.hlo_text import computations, estimated_cycles
    from midstream_engine.compiled_program.topologies import tpu_devices
    from midstream_engine.trainer.computation.programs import compile_step
    from midstream_engine.trainer.computation.setup import make_plan

    devices = gpu_devices(topology) if names_gpus(topology) else tpu_devices(topology)
    plan = make_plan(configuration(model), devices)
    began = time.monotonic()
    compiled = compile_step(plan, options=options)
    seconds = time.monotonic() - began
    text, analysis = compiled.as_text(), compiled.memory_analysis()
    found = collectives(text)
    devices, width = plan.layout.batch_shards, plan.policy.compute_dtype.itemsize
    return {
        "model": model, "topology": topology, "options": options, "devices": plan.layout.mesh.size,
        "micro_batches": plan.cut.micro, "parameters": plan.parameters, "compile_seconds": round(seconds),
        "arguments": analysis.argument_size_in_bytes, "temporary": analysis.temp_size_in_bytes,
        "collective_bytes": total_bytes(found), "exposed_bytes": total_bytes(found, exposed=True),
        "ideal_bytes": 3 * plan.cut.micro * plan.parameters * width * (devices - 1) / devices,
        "by_kind": {kind: sent for kind, sent in by_kind(found).items() if sent},
        "cycles": estimated_cycles(computations(text)),
    }  # fmt: skip


def configuration(model: str) -> Any:
    """Return the configuration of a model, on the bytes tokenizer."""
    import tempfile

    import yaml

    from midstream_engine.config import load_config

    name, flags = MODELS[model]
    content = yaml.safe_load((REPOSITORY / "configs" / name).read_text())
    content["data"] = {key: value for key, value in content["data"].items() if key not in DROPPED}
    content["data"] |= {"tokenizer": "bytes", "train_urls": ["stdlib:json/*.py"]}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(content, file)
        file.flush()
        return load_config(["--config_path", file.name, *flags]).config


def row(found: dict[str, Any]) -> str:
    """Return a row of the table."""
    memory = " / ".join(f"{found[part] / GIB:.2f}" for part in ("arguments", "temporary"))
    sent, exposed, ideal = (found[f"{part}_bytes"] / GB for part in ("collective", "exposed", "ideal"))
    options = " ".join(f"{name}={value}" for name, value in found["options"].items()) or "-"
    return (
        f"| {found['model']} | {found['topology']} | {options} | {memory} | {sent:.1f} | {exposed:.1f} | {ideal:.1f} | "
        f"{sent / ideal:.2f} | {found['cycles'] / 1e9:.1f} G |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), default="llama-1b")
    parser.add_argument("--topology", default="v5e:4x4")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    wrong = [option for option in given.option if "=" not in option]
    if wrong:
        parser.error(f"--option {wrong[0]}: write NAME=VALUE")
    from midstream_engine.config import ConfigError

    try:
        found = measure(given.model, given.topology, dict(option.split("=", 1) for option in given.option))
    except ConfigError as error:
        print(f"aot.py: {error}", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps(found))
    else:
        print(HEAD)
        print("|---" * 3 + "|---:" * 6 + "|")
        print(row(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
