"""Steps of the tiny model, compiled in a process of their own for accelerators that are not here."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from typing import Any

from support.paths import CONFIGS

STEP = """
import json, re, sys
from midstream_engine.compiled_program.collectives import collectives
from midstream_engine.compiled_program.gpu_topologies import gpu_devices, names_gpus
from midstream_engine.compiled_program.hlo_text import computations, estimated_cycles, run_counts
from midstream_engine.compiled_program.topologies import tpu_devices
from midstream_engine.config import load_config
from midstream_engine.computation.programs import compile_evaluation_step, compile_step
from midstream_engine.computation.setup import make_plan

MADE = {"step": compile_step, "evaluation": compile_evaluation_step}
for topology, made in [(one, made) for one in sys.argv[1].split(",") for made in sys.argv[2].split(",")]:
    devices = gpu_devices(topology) if names_gpus(topology) else tpu_devices(topology)
    plan = make_plan(load_config(sys.argv[3:]).config, devices)
    compiled = MADE[made](plan)
    text = compiled.as_text()
    program = computations(text)
    runs = run_counts(program)
    fused = {name for each in program.values() for one in each.instructions if one.operation == "fusion"
             for name in one.called.values()}
    written = [one for name, each in program.items() if runs[name] and name not in fused for one in each.instructions]
    print(json.dumps({
        "devices": plan.layout.mesh.size,
        "parameters": plan.parameters,
        "collectives": [{**vars(one)} for one in collectives(text)],
        "arrays": [[dtype, shape] for one in written for dtype, shape in one.shapes],
        "kernels": [one.text.partition('custom_call_target="')[2].partition('"')[0] for one in written
                    if one.operation == "custom-call"],
        "order": [[one.operation for one in each.instructions if one.operation in ("while", "reduce-scatter")]
                  for name, each in program.items() if runs[name]],
        "products": [one.text for each in program.values() for one in each.instructions
                     if one.operation in ("dot", "convolution") or "__cublas" in one.text],
        "bodies": [match[1] for each in program.values() for one in each.instructions
                   if one.operation == "custom-call" for match in [re.search('"body":"([^"]+)"', one.text)] if match],
        "narrow": sorted({dtype for dtype in ("bf16", "f16") if f" {dtype}[" in text}),
        "temporary": compiled.memory_analysis().temp_size_in_bytes,
    }))
"""


FLAGS = (
    "--model.num_layers", "1", "--model.cross_entropy_block_size", "8",
    "--trainer.per_device_parallelism", "1", "--trainer.mp", "p=f32,c=bfloat16",
)  # fmt: skip


def compiled_steps(topologies: str, *flags: str, made: str = "step") -> list[dict[str, Any]]:
    """Contents of the programs of the tiny model for ``topologies``: of each, the step or what ``made`` names."""
    done = subprocess.run(
        [sys.executable, "-c", STEP, topologies, made, "--config_path", str(CONFIGS / "llama_tiny.yaml"), *FLAGS,
         *flags],
        env={**os.environ, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def moved_head(found: dict[str, Any], vocab: int, width: int, *kinds: str) -> list[dict[str, Any]]:
    """The collectives of the tied head, or of a device's share of it."""
    shapes = [sorted(shape) for shape in ((vocab, width), (vocab, width // found["devices"]))]
    return [one for one in found["collectives"]
            if one["kind"] in kinds and any(sorted(shape) in shapes for shape in one["shapes"])]  # fmt: skip


def logits(found: dict[str, Any], vocab: int, positions: int) -> list[Any]:
    """The float32 arrays with the logits of a block of so many positions."""
    arrays = [shape for dtype, shape in found["arrays"] if dtype == "f32" and shape[-1:] == [vocab]]
    return [shape for shape in arrays if math.prod(shape[:-1]) == positions]
