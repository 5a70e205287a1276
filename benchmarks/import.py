"""How quickly a NeoX checkpoint is imported: against plain reading of the same bytes, and DeepSpeed's ds_to_universal.

    python benchmarks/import.py [--hidden 1024] [--layers 8] [--ranks 4] [--work DIR] [--deepspeed PYTHON]

Makes a checkpoint of a Pythia-shaped model (bfloat16, ZeRO 1, no pipeline) with numpy alone, and measures, each in a
process of its own, in this order: plain reading of all files; the import; with ``--deepspeed`` (a Python that has torch
and deepspeed) ds_to_universal. Files are in the page cache for all of them. Memory is the peak of what is the process's
own (anonymous pages), less what it had before it began: pages of mapped files are the system's to take back.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import yaml

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
import torch_files  # noqa: E402

VOCAB = 50304


def shapes_of(hidden: int, layers: int) -> dict[str, tuple[int, ...]]:
    """Parameters in NeoX's names, in the module's order."""
    found: dict[str, tuple[int, ...]] = {"sequential.0.word_embeddings.weight": (VOCAB, hidden)}
    for layer in range(2, layers + 2):
        for name, shape in (
            ("input_layernorm", (hidden,)), ("attention.query_key_value", (3 * hidden, hidden)),
            ("attention.dense", (hidden, hidden)), ("post_attention_layernorm", (hidden,)),
            ("mlp.dense_h_to_4h", (4 * hidden, hidden)), ("mlp.dense_4h_to_h", (hidden, 4 * hidden)),
        ):  # fmt: skip
            found[f"sequential.{layer}.{name}.weight"] = shape
            found[f"sequential.{layer}.{name}.bias"] = shape[:1]
    found[f"sequential.{layers + 3}.norm.weight"] = found[f"sequential.{layers + 3}.norm.bias"] = (hidden,)
    found[f"sequential.{layers + 4}.final_linear.weight"] = (VOCAB, hidden)
    return found


def make(folder: Path, hidden: int, layers: int, ranks: int) -> None:
    """The checkpoint, as BF16_Optimizer would have left it."""
    random = np.random.default_rng(0)
    step = folder / "global_step10"
    (step / "configs").mkdir(parents=True)
    (folder / "latest").write_text("global_step10")
    shapes = shapes_of(hidden, layers)
    plain = {name: shape for name, shape in shapes.items() if name.endswith("bias") or "norm." in name}
    groups = [{name: shape for name, shape in shapes.items() if name not in plain}, plain]
    weights: dict[str, Any] = {}
    rows: list[dict[str, np.ndarray]] = []
    for named in groups:
        size = sum(int(np.prod(shape)) for shape in named.values())
        padded = -(-size // (2 * ranks)) * 2 * ranks
        row = {kind: np.zeros(padded, np.float32) for kind in ("fp32", "exp_avg", "exp_avg_sq")}
        for array in row.values():
            array[:size] = random.random(size, np.float32)
        place = 0
        for name, shape in named.items():
            count = int(np.prod(shape))
            weights[name] = row["fp32"][place : place + count].reshape(shape).astype(ml_dtypes.bfloat16)
            place += count
        rows.append(row)
    common = {
        "iteration": 10, "global_steps": 10, "skipped_steps": 0, "dp_world_size": ranks, "lr_scheduler": None,
        "param_shapes": groups,
    }  # fmt: skip
    ordered = {name: weights[name] for name in shapes}
    torch_files.save(step / "mp_rank_00_model_states.pt", {"module": ordered, **common})
    hyper = [{"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": decay} for decay in (0.1, 0.0)]
    for rank in range(ranks):
        parts = [{kind: np.split(array, ranks)[rank] for kind, array in row.items()} for row in rows]
        state = {
            "single_partition_of_fp32_groups": [part["fp32"] for part in parts],
            "base_optimizer_state": {
                "state": {
                    group: {"exp_avg": part["exp_avg"], "exp_avg_sq": part["exp_avg_sq"], "step": 10}
                    for group, part in enumerate(parts)
                },
                "param_groups": hyper,
            },
        }
        path = step / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch_files.save(path, {"optimizer_state_dict": state})
    config = {
        "num_layers": layers, "hidden_size": hidden, "num_attention_heads": hidden // 64, "seq_length": 2048,
        "pos_emb": "rotary", "rotary_pct": 0.25, "no_weight_tying": True, "gpt_j_residual": True, "norm": "layernorm",
        "activation": "gelu", "precision": "bfloat16", "train_iters": 100, "lr_decay_iters": 100, "warmup": 0.1,
        "lr_decay_style": "cosine", "min_lr": 1e-4, "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
        "weight_decay": 0.1, "train_batch_size": 8, "data_path": "/none",
    }  # fmt: skip
    (step / "configs" / "pythia.yml").write_text(yaml.safe_dump(config))


class Peak:
    """The process's own memory at its highest, in bytes above where it began."""

    def __enter__(self) -> Peak:
        self._before, self._over = self._now(), threading.Event()
        self.highest = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            self.highest = max(self.highest, self._now() - self._before)

    @staticmethod
    def _now() -> int:
        with open("/proc/self/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["RssAnon"].split()[0]) * 1024


def read_plainly(source: str) -> dict[str, float]:
    paths = sorted(Path(source).rglob("*.pt"))
    buffer = bytearray(16 << 20)
    with Peak() as peak:
        began = time.monotonic()
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
        seconds = time.monotonic() - began
    return {"seconds": seconds, "memory": peak.highest}


def import_once(source: str, target: str) -> dict[str, float]:
    import warnings

    warnings.filterwarnings("ignore", "jax.experimental.shard_map is deprecated", DeprecationWarning)
    from midstream_engine.interop import adopt
    from midstream_engine.interop.neox.importer import open_neox

    open_neox(source)  # jax is imported, and what depends on the shapes alone is traced, outside of what is measured
    with Peak() as peak:
        began = time.monotonic()
        adopted = open_neox(source)
        adopt.import_run(adopted, target, adopt.Wishes(without_data=True))
        seconds = time.monotonic() - began
    largest = max(array.size for array in adopted.arrays)
    return {"seconds": seconds, "memory": peak.highest, "largest": largest}


def universal(python: str, source: Path, target: Path) -> dict[str, float]:
    """ds_to_universal as its own program; its memory is that of all its processes' largest one."""
    import resource

    command = [python, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", str(source / "global_step10")]
    command += ["--output_folder", str(target), "--inject_missing_state"]
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "DS_ACCELERATOR": "cpu"})
    seconds = time.monotonic() - began
    return {"seconds": seconds, "memory": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024}


def apart(*arguments: str) -> dict[str, float]:
    """One measurement in a process of its own."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(HERE / "import.py"), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def line(name: str, size: int, found: dict[str, float], read: dict[str, float]) -> str:
    """Rate, and its ratio to plain reading."""
    return f"{name:16} {size / found['seconds'] / 1e9:6.2f} GB/s {read['seconds'] / found['seconds']:6.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Import against plain reading and ds_to_universal.")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--work", help="a directory for some gigabytes; default: a temporary one")
    parser.add_argument("--deepspeed", metavar="PYTHON", help="measure ds_to_universal with this interpreter")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, *rest = options.one
        print(json.dumps({"read": read_plainly, "import": import_once}[name](*rest)))
        return
    work = Path(tempfile.mkdtemp(prefix="midstream-import-", dir=options.work))
    try:
        make(work / "source", options.hidden, options.layers, options.ranks)
        size = sum(path.stat().st_size for path in (work / "source").rglob("*.pt"))
        read = apart("--one", "read", str(work / "source"))
        found = apart("--one", "import", str(work / "source"), str(work / "target"))
        now = f"{datetime.now(UTC):%Y-%m-%d}, Python {sys.version.split()[0]}, numpy {np.__version__}"
        print(f"{now}, {os.cpu_count()} cores: {size / 1e9:.2f} GB in {options.ranks + 1} files")
        print(line("plain reading", size, read, read))
        part = found["memory"] / found["largest"]
        print(
            line("import", size, found, read),
            f"  memory {found['memory'] / 1e6:.0f} MB, {part:.2f} x the largest array",
        )
        if options.deepspeed:
            other = universal(options.deepspeed, work / "source", work / "universal")
            print(line("ds_to_universal", size, other, read), f"  memory {other['memory'] / 1e6:.0f} MB")
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
