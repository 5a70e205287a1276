"""Speed of a NeoX import, beside plain reading of the same bytes, and DeepSpeed's ds_to_universal.

    python benchmarks/import.py [--hidden 1024] [--layers 8] [--ranks 4] [--rounds 3] [--work DIR] [--base CHECKOUT]
        [--deepspeed PYTHON]

Makes a checkpoint of a Pythia-shaped model (bfloat16, ZeRO 1, no pipeline) with numpy alone, and measures in turn, each
in a process of its own:

- plain reading of all files;
- copying them: blocks are read and written past the page cache, several at a time, and waited for; nothing else is
  done with them. It is what the disk can do at best for who reads so much and writes as much, and so the bound of the
  import, where plain reading writes nothing;
- the import, which reads, checks every CRC-32, turns, hashes twice, writes, and waits for the disk;
- with ``--base`` the import of another checkout of midstream, which has its own environment (``make setup``);
- with ``--deepspeed`` (a Python that has torch and deepspeed) ds_to_universal, with a process for each core. It writes
  all twice, and neither checks nor hashes nor waits for the disk.

The source is dropped from the page cache before each of them, and what was written is removed after it. Times are
medians of the rounds, processor seconds are those of all threads.
Memory is the peak of what is the processes' own (anonymous pages, all of them together), less
what the process had before it began: pages of mapped files are the system's to take back.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import yaml

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
from support.imports import torch_files  # noqa: E402

VOCAB = 50304
COPIED = 4 << 20  # bytes of a block that is copied
COPIERS = 6  # blocks that are on their way at a time


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
        "iteration": 10, "global_steps": 10, "skipped_steps": 0, "dp_world_size": ranks, "mp_world_size": 1,
        "lr_scheduler": None, "ds_version": "0.19.8",
        "param_shapes": groups,
    }  # fmt: skip
    ordered = {name: weights[name] for name in shapes}
    torch_files.save(step / "mp_rank_00_model_states.pt", {"module": ordered, **common})
    hyper = [
        {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": decay, "params": [group]}
        for group, decay in enumerate((0.1, 0.0))
    ]
    for rank in range(ranks):
        parts = [{kind: np.split(array, ranks)[rank] for kind, array in row.items()} for row in rows]
        state: dict[str, Any] = {
            "ds_version": "0.19.8",
            "single_partition_of_fp32_groups": [part["fp32"] for part in parts],
            "base_optimizer_state": {
                "state": {
                    group: {"exp_avg": part["exp_avg"], "exp_avg_sq": part["exp_avg_sq"], "step": 10}
                    for group, part in enumerate(parts)
                },
                "param_groups": hyper,
            },
        }
        mappings = [fragments(group, rank, len(rows[number]["fp32"]) // ranks) for number, group in enumerate(groups)]
        state |= {"param_slice_mappings": mappings, "partition_count": [ranks] * 2, "group_paddings": [0, 0]}
        if rank == ranks - 1:
            state["group_paddings"] = [
                len(row["fp32"]) - sum(int(np.prod(shape)) for shape in named.values())
                for row, named in zip(rows, groups, strict=True)
            ]
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


def fragments(named: dict[str, tuple[int, ...]], rank: int, size: int) -> dict[str, torch_files.Made]:
    """Which part of a rank's ``size`` numbers of a group is whose, as DeepSpeed says it."""
    found, place = {}, 0
    for name, shape in named.items():
        end = place + int(np.prod(shape))
        start, stop = max(place, rank * size), min(end, (rank + 1) * size)
        if start < stop:
            kind = "deepspeed.utils.tensor_fragment fragment_address"
            found[name] = torch_files.Made(kind, stop - start, start - rank * size)
        place = end
    return found


class Peak:
    """The own memory of a process and its children at its highest, in bytes above where it began."""

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
        found, waiting = 0, [os.getpid()]
        while waiting:
            folder = Path(f"/proc/{waiting.pop()}")
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
                found += int(fields.get("RssAnon", "0 kB").split()[0]) * 1024
                for task in (folder / "task").iterdir():
                    waiting += map(int, (task / "children").read_text().split())
        return found


def files_of(source: str) -> list[Path]:
    return sorted(Path(source).rglob("*.pt"))


def drop(source: str) -> None:
    """Have the system forget the files' contents, so that they come from the disk."""
    for path in files_of(source):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_plainly(source: str) -> dict[str, float]:
    buffer = bytearray(16 << 20)
    with Peak() as peak:
        began = time.monotonic()
        for path in files_of(source):
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
        seconds = time.monotonic() - began
    return {"seconds": seconds, "memory": peak.highest}


def copy(source: str, target: str) -> dict[str, float]:
    """The disk's best: blocks past the page cache, several at a time, and nothing done with them."""
    buffers = threading.local()

    def one(given: int, made: int, place: int) -> None:
        if not hasattr(buffers, "block"):
            buffers.block = mmap.mmap(-1, COPIED)
        count = os.preadv(given, [buffers.block], place)
        aligned = -(-count // mmap.PAGESIZE) * mmap.PAGESIZE
        assert os.pwrite(made, memoryview(buffers.block)[:aligned], place) == aligned

    os.makedirs(target)
    with Peak() as peak, ThreadPoolExecutor(COPIERS) as pool, contextlib.ExitStack() as opened:
        began = time.monotonic()
        waiting, written = [], []
        for path in files_of(source):
            given = os.open(path, os.O_RDONLY | os.O_DIRECT)
            made = os.open(Path(target, path.name), os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o644)
            opened.callback(os.close, given)
            opened.callback(os.close, made)
            size = os.fstat(given).st_size
            waiting += [pool.submit(one, given, made, place) for place in range(0, size, COPIED)]
            written.append((made, size))
        for done in waiting:
            done.result()
        for made, size in written:
            os.truncate(made, size)
            os.fsync(made)
        seconds = time.monotonic() - began
    return {"seconds": seconds, "memory": peak.highest}


def import_once(source: str, target: str) -> dict[str, float]:
    import warnings

    warnings.filterwarnings("ignore", "jax.experimental.shard_map is deprecated", DeprecationWarning)
    from midstream_engine.interop import import_run
    from midstream_engine.interop.neox.importer import open_neox

    open_neox(source)  # jax is imported, and what depends on the shapes alone is traced, outside of what is measured
    drop(source)
    with Peak() as peak:
        began, processor = time.monotonic(), time.process_time()
        adopted = open_neox(source)
        import_run.import_run(adopted, target, import_run.ImportOptions(without_data=True))
        seconds, processor = time.monotonic() - began, time.process_time() - processor
    largest = max(array.size for array in adopted.arrays)
    return {"seconds": seconds, "memory": peak.highest, "largest": largest, "processor": processor}


def universal(source: str, target: str, python: str) -> dict[str, float]:
    """ds_to_universal as its own program; starting Python and importing torch are taken off."""
    command = [python, "-m", "deepspeed.checkpoint.ds_to_universal"]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    began = time.monotonic()
    subprocess.run([*command, "--help"], check=True, stdout=subprocess.DEVNULL, env=environment)
    starting = time.monotonic() - began
    command += ["--input_folder", f"{source}/global_step10", "--output_folder", target, "--inject_missing_state"]
    workers = str(os.cpu_count())
    command += ["--num_extract_workers", workers, "--num_merge_workers", workers]
    with Peak() as peak:
        began = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        seconds = time.monotonic() - began - starting
    return {"seconds": seconds, "memory": peak.highest}


MEASURED = {"read": read_plainly, "copy": copy, "import": import_once, "universal": universal}


def apart(name: str, source: Path, *arguments: str, base: Path | None = None) -> dict[str, float]:
    """One measurement in a process of its own, from the disk; what it wrote is removed.

    ``base``: of that checkout's midstream.
    """
    target = source.parent / "target"
    drop(str(source))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    given = [str(source), *([] if name == "read" else [str(target)]), *arguments]
    python, engine = sys.executable, HERE.parent / "engine"
    if base is not None:
        python, engine = str(base / ".venv/bin/python"), base / "engine"
    environment["PYTHONPATH"] = str(engine)
    command = [python, str(HERE / "import.py"), "--one", name, *given]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    shutil.rmtree(target, ignore_errors=True)
    return json.loads(done.stdout.splitlines()[-1])


def middle(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The median time, the highest memory."""
    return {
        "seconds": statistics.median(one["seconds"] for one in rounds),
        "memory": max(one["memory"] for one in rounds),
        "largest": rounds[0].get("largest", 0.0),
        "processor": statistics.median(one.get("processor", 0.0) for one in rounds),
    }


def report(size: int, found: dict[str, dict[str, float]]) -> None:
    print(f"{'':16} {'GB/s':>6} {'of reading':>11} {'of copying':>11} {'memory MB':>10}")
    for name, one in found.items():
        of = [found[other]["seconds"] / one["seconds"] for other in ("read", "copy")]
        print(f"{name:16} {size / one['seconds'] / 1e9:6.2f} {of[0]:11.2f} {of[1]:11.2f} {one['memory'] / 1e6:10.0f}")
    imported = found["import"]
    print(f"the import's memory is {imported['memory'] / imported['largest']:.2f} x the largest array")
    if "base" in found:
        ratios = {kind: imported[kind] / found["base"][kind] for kind in ("seconds", "processor")}
        print(
            f"the import takes {ratios['seconds']:.2f} of base's time, {ratios['processor']:.2f} of its processor time"
        )
    if "universal" in found:
        print(f"the import is {found['universal']['seconds'] / imported['seconds']:.1f} x as fast as ds_to_universal")


def main() -> None:
    parser = argparse.ArgumentParser(description="Import against plain reading, copying and ds_to_universal.")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", help="a directory for some gigabytes; default: a temporary one")
    parser.add_argument("--base", type=Path, metavar="CHECKOUT", help="measure its import, too")
    parser.add_argument("--deepspeed", metavar="PYTHON", help="measure ds_to_universal with this interpreter")
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, *rest = options.one
        print(json.dumps(MEASURED[name](*rest)))
        return
    work = Path(tempfile.mkdtemp(prefix="midstream-import-", dir=options.work))
    try:
        source = work / "source"
        make(source, options.hidden, options.layers, options.ranks)
        os.sync()
        size = sum(path.stat().st_size for path in files_of(str(source)))
        found: dict[str, list[dict[str, float]]] = {}
        for _ in range(options.rounds):
            for name in ("read", "copy", "import"):
                found.setdefault(name, []).append(apart(name, source))
            if options.base:
                found.setdefault("base", []).append(apart("import", source, base=options.base.resolve()))
            if options.deepspeed:
                found.setdefault("universal", []).append(apart("universal", source, options.deepspeed))
        now = f"{datetime.now(UTC):%Y-%m-%d}, Python {sys.version.split()[0]}, numpy {np.__version__}"
        print(f"{now}, {os.cpu_count()} cores: {size / 1e9:.2f} GB in {options.ranks + 1} files")
        report(size, {name: middle(rounds) for name, rounds in found.items()})
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
