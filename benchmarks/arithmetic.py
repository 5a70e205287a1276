"""Losses of one training on this machine's accelerator beside those on its CPU, for each precision.

    python benchmarks/arithmetic.py [--steps 40]

The same GPT-2 with 9 M parameters is trained from the same state on the same batches, by the engine as a process each.
A number is the relative difference of a step's losses; the largest of all steps says how far two devices may be apart
without a fault, which the tolerances of certificates allow. Where there is no accelerator, the CPU is compared with
itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "engine")]

from midstream_core import records  # noqa: E402

MODEL = (
    "--model.hidden_dim", "320", "--model.num_layers", "7", "--model.num_heads", "10", "--model.seq_len", "256",
)  # fmt: skip
PRECISIONS = {
    "float32": ("--trainer.mp", "f32"),
    "float32, the device's default": ("--trainer.mp", "f32", "--trainer.matmul_precision", "default"),
    "bfloat16": ("--trainer.mp", "p=f32,c=bfloat16"),
}


def train(root: Path, flags: tuple[str, ...], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a training in a base directory of its own."""
    config = ROOT / "configs/gpt2_tiny.yaml"
    argv = [sys.executable, "-m", "midstream_engine.train", "--config_path", str(config), "--trainer.id", "r"]
    path = os.pathsep.join([str(ROOT / "engine"), os.environ.get("PYTHONPATH", "")])
    own = {"MIDSTREAM_ROOT": str(root), "PYTHONPATH": path, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return subprocess.Popen(
        [*argv, *MODEL, *flags], env={**os.environ, **own, **environment}, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def losses(root: Path) -> tuple[str, dict[int, float]]:
    """Return the kind of the devices, and the loss of each step."""
    paths = records.RunPaths(str(root), "r")
    rows = records.parse_metrics(Path(paths.attempt(1).metrics).read_text().splitlines())
    kind = records.Lineage.read(paths.lineage).entries[-1].device_kind
    return kind, {row["global_step"]: row["train/loss"] for row in rows if "train/loss" in row}


def compare(name: str, directory: Path, steps: int) -> dict[str, object]:
    """Train on both, one after the other, and return the differences of the losses."""
    found = []
    for where, environment in (("accelerator", {}), ("cpu", {"JAX_PLATFORMS": "cpu"})):
        root = directory / f"{name}-{where}".replace(" ", "-")
        process = train(root, (*PRECISIONS[name], "--trainer.num_train_steps", str(steps)), environment)
        _, errors = process.communicate()
        if process.returncode:
            raise SystemExit(f"{name}, {where}: {errors.strip().splitlines()[-1:]}")
        found.append(losses(root))
    (kind, there), (other, here) = found
    differences = [records.relative_difference(there[step], here[step]) for step in range(steps)]
    worst = max(differences)
    return {
        "precision": name, "devices": [kind, other], "first steps": [f"{each:.1e}" for each in differences[:3]],
        "largest": f"{worst:.1e}", "at step": differences.index(worst), "last step": f"{differences[-1]:.1e}",
    }  # fmt: skip


def main() -> None:
    """Print a JSON line for each precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    print(json.dumps({"jax": version("jax"), "steps": options.steps}))
    with tempfile.TemporaryDirectory(prefix="midstream-bench-") as directory:
        for name in PRECISIONS:
            print(json.dumps(compare(name, Path(directory), options.steps)), flush=True)


if __name__ == "__main__":
    main()
