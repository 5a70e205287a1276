"""Estimates of steps beside published ones and our own: how far off those of `midstream --compare` are.

    make compilers compilers-cuda
    python benchmarks/estimates.py [--case NAME ...] [--json]

Nothing is measured here: the step is compiled for accelerators that are not here, and its estimated time divided by the
time that the authors of another trainer have published for the same model, batch and slice. The programs differ
(kernels, what the backward pass computes again), so that the ratio has their difference, too. Needs 3 GiB of memory and
some minutes a case on two cores. Each case is one process; `compile` is its wall time, `memory` the most that it used.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
GIB = 1 << 30
# A Llama with its dimensions, batch and slice; ``seconds`` of a step as published.
SCALED = {"type": "llama", "seq_len": 2048, "num_layers": 32, "num_heads": 64, "num_kv_heads": 64, "head_dim": 128,
          "intermediate_dim": 28672}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    # MaxText, MaxText/configs/v5e/16b.sh and v5p/32b.sh with the step times and MFU of its README.
    "16b-v5e-256": {
        "accelerators": "v5e-256", "seconds": 10.31, "vocabulary": 32000, "batch": 6 * 256,
        "model": {**SCALED, "hidden_dim": 4096}, "trainer": {"per_device_parallelism": 6},
    },
    "32b-v5p-128": {
        "accelerators": "v5p-128", "seconds": 7.30, "vocabulary": 32000, "batch": 7 * 64,
        "model": {**SCALED, "hidden_dim": 8192}, "trainer": {"per_device_parallelism": 7},
    },
    # MaxText, commit 76bd53b0f (2023-12-15), MaxText/configs/v4/22b.sh: 156 TFLOP/s on each of 64 chips, at its count
    # of 6 x parameters x tokens and half of the attention's square; tied head, MLP without a gate, as in GPT-2.
    "22b-v4-128": {
        "accelerators": "v4-128", "vocabulary": 32768, "batch": 16 * 64,
        "seconds": (6 * (48 * 12 * 6144**2 + 32768 * 6144) * 2048 + 6 * 48 * 6144 * 2048**2) * 16 / 156e12,
        "model": {"type": "gpt2", "seq_len": 2048, "hidden_dim": 6144, "num_layers": 48, "num_heads": 24},
        "trainer": {"per_device_parallelism": 16},
    },
    # maxtext.readthedocs.io/en/latest/reference/models/tiering.html: 7,207 tokens a second and device; 3 examples.
    "8b-v6e-256": {
        "accelerators": "v6e-256", "seconds": 3 * 8192 / 7207, "vocabulary": 128256, "batch": 3 * 256,
        "model": {"type": "llama", "seq_len": 8192, "hidden_dim": 4096, "num_layers": 32, "num_heads": 32,
                  "num_kv_heads": 8, "intermediate_dim": 14336, "rope": {"type": "llama3"}},
        "trainer": {"per_device_parallelism": 3},
    },
    # TorchTitan's llama3_h100_202412_torchtitan.md, table 1 (torch.compile): 6,667 tokens a second and GPU.
    "8b-h100x8": {
        "accelerators": "h100x8", "seconds": 2 * 8192 / 6667, "vocabulary": 128256, "batch": 2 * 8,
        "model": {"type": "llama", "seq_len": 8192, "hidden_dim": 4096, "num_layers": 32, "num_heads": 32,
                  "num_kv_heads": 8, "intermediate_dim": 14336, "rope": {"type": "llama3"}},
        "trainer": {"per_device_parallelism": 2},
    },
    # nanotron, docs/benchmark_summary.svg (v0.5, one node): 46.68 and 45.22 % of 989 TFLOP/s at its count, which has
    # all of the attention's square; shapes from scripts/scaling_benchmarks.py, 4,096 tokens, a batch of 256.
    "4b-h100x8": {
        "accelerators": "h100x8", "vocabulary": 131072, "batch": 256,
        "seconds": 256 * 3 * (28 * (8 * 3072**2 + 6 * 3072 * 8192 + 4 * 4096 * 3072) + 2 * 3072 * 131072) * 4096
        / (8 * 989e12 * 0.4668),
        "model": {"type": "llama", "seq_len": 4096, "hidden_dim": 3072, "num_layers": 28, "num_heads": 32,
                  "num_kv_heads": 32, "intermediate_dim": 8192, "tie_word_embeddings": True},
        "trainer": {"per_device_parallelism": 2},
    },
    "9b-h100x8": {
        "accelerators": "h100x8", "vocabulary": 131072, "batch": 256,
        "seconds": 256 * 3 * (32 * (8 * 4096**2 + 6 * 4096 * 14336 + 4 * 4096 * 4096) + 2 * 4096 * 131072) * 4096
        / (8 * 989e12 * 0.4522),
        "model": {"type": "llama", "seq_len": 4096, "hidden_dim": 4096, "num_layers": 32, "num_heads": 32,
                  "num_kv_heads": 32, "intermediate_dim": 14336},
        "trainer": {"per_device_parallelism": 1},
    },
    # Our own steps on one H200, docs/benchmarks/training.md ("On an H200"): everything within a layer computed again.
    "124m-h200x1": {
        "accelerators": "h200x1", "seconds": 0.0793, "vocabulary": 50304, "batch": 32,
        "model": {"type": "gpt2", "seq_len": 1024, "hidden_dim": 768, "num_layers": 12, "num_heads": 12},
        "trainer": {},
    },
    "1b-h200x1": {
        "accelerators": "h200x1", "seconds": 0.5872, "vocabulary": 128256, "batch": 8,
        "model": {"type": "llama", "seq_len": 4096, "hidden_dim": 2048, "num_layers": 16, "num_heads": 32,
                  "num_kv_heads": 8, "intermediate_dim": 8192, "tie_word_embeddings": True},
        "trainer": {},
    },
}  # fmt: skip
HEAD = "| case | published s | estimate s (range) | estimate / published | peak GiB | compile s | memory GiB |"


def configuration(case: dict[str, Any]) -> dict[str, Any]:
    """Return a case as the content of a configuration."""
    return {
        "data": {"tokenizer": f"ids:{case['vocabulary']}", "train_urls": ["stdlib:json/*.py"]},
        "model": case["model"],
        "trainer": {"mp": "p=f32,c=bfloat16", "train_batch_size": case["batch"], "num_train_steps": 1000}
        | case["trainer"],
    }


def measure(name: str) -> dict[str, Any]:
    """Return a case's estimate beside what is published."""
    import yaml

    case = CASES[name]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(configuration(case), file)
        file.flush()
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "midstream_engine.estimate", "--config_path", file.name,
             "--accelerators", case["accelerators"], "--as_configured"],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(REPOSITORY / "engine")},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"estimates.py: {name}: {done.stderr.strip().splitlines()[-1]}")
    estimate = json.loads(done.stdout.splitlines()[-1])
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return {
        "case": name, "published": case["seconds"], "wall_seconds": time.monotonic() - began, "compiler_memory": used,
        **estimate,
    }  # fmt: skip


def row(found: dict[str, Any]) -> str:
    """Return a row of the table."""
    tail = f"{found['wall_seconds']:.0f} | {found['compiler_memory'] / GIB:.1f} |"
    if not found["fits_as_configured"]:
        needed = "" if found["needed"] is None else f" ({found['needed'] / GIB:.1f} GiB)"
        return f"| {found['case']} | {found['published']:.2f} | does not fit{needed} | | | {tail}"
    step, low, high = (found[f"step_seconds{end}"] for end in ("", "_low", "_high"))
    return (
        f"| {found['case']} | {found['published']:.2f} | {step:.2f} ({low:.2f} to {high:.2f}) | "
        f"{step / found['published']:.2f} | {found['memory']['peak'] / GIB:.1f} | {tail}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=sorted(CASES))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not given.json:
        print(HEAD)
        print("|---" + "|---:" * 6 + "|")
    for name in given.case or CASES:
        found = measure(name)
        print(json.dumps(found) if given.json else row(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
