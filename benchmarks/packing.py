"""Bytes that a packed copy leaves of a trained state, beside other ways, and beside differences to older checkpoints.

    python benchmarks/packing.py [--steps 600] [--every 50] [--ages 50 100 200 400] [--zstandard]

Trains a GPT-2 with 3.3 million parameters (Adam, float32, learning rate to 0.1 of its peak) and reads its last
checkpoint in chunks, as a sender does. *planes* is what `midstream_host.copy.byte_planes` leaves, *difference*
the same after an exclusive or with the checkpoint that is so many steps older, *better of both* the shorter form of
each chunk. ``cores_to_gain`` is the number of cores that pack as many bytes of objects as a link of 1 Gbit/s sends
plain, ``cores_to_fill`` the number that keep it busy with packed bytes; reading and encryption need theirs besides.
deflate and zstd (with ``--zstandard``: the package of that name) compress the chunks as they are. Rates are per
processor second of one core; ``link`` is the fastest link on which packing saves time, if the receiver and encryption
cost nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from midstream_host.copy.byte_planes import CHUNK, layout_of, pack, unpack

CONFIG = """
data:
  tokenizer: bytes
  train_urls: ["stdlib:json/*.py", "stdlib:email/*.py", "stdlib:asyncio/*.py", "stdlib:http/*.py"]
model: {{type: gpt2, seq_len: 64, hidden_dim: 256, num_layers: 4, num_heads: 4, pad_vocab_to_multiple: 64}}
trainer:
  id: packing
  seed: 0
  num_train_steps: {steps}
  train_batch_size: 8
  mp: f32
  checkpointer: {{save_interval: 60m, keep: [{{every: {every}}}]}}
optimizer: {{learning_rate: 1e-3, weight_decay: 0.1, warmup: 10}}
"""
GIGABIT = 125e6  # bytes per second
MIN_OBJECT = 128 << 10  # bytes; smaller objects are sent as they are


def train(root: Path, steps: int, every: int) -> Path:
    """Train the model and return the directory of its checkpoints."""
    config = root / "packing.yaml"
    config.write_text(CONFIG.format(steps=steps, every=every))
    environment = {**os.environ, "MIDSTREAM_ROOT": str(root), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "midstream_engine.train", "--config_path", str(config)]
    with (root / "log").open("wb") as log:
        subprocess.run(command, env=environment, stdout=log, stderr=log, cwd=root, check=True)
    return root / "runs/packing/checkpoints"


def chunks(checkpoint: Path) -> dict[tuple[str, int], bytes]:
    """Return the chunks of a checkpoint's large objects by path and offset."""
    found = {}
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and path.stat().st_size > MIN_OBJECT:
            data = path.read_bytes()
            for offset in range(0, len(data), CHUNK):
                found[str(path.relative_to(checkpoint)), offset] = data[offset : offset + CHUNK]
    return found


def packed(data: bytes) -> bytes:
    layout = layout_of(data)
    return data if layout is None else pack(data, layout)


def difference(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "little") ^ int.from_bytes(other, "little")).to_bytes(len(one), "little")


def timed(work: Callable[[bytes], bytes], pieces: list[bytes]) -> tuple[list[bytes], float]:
    """Return the results, and bytes of the pieces per processor second."""
    began = time.process_time()
    results = [work(piece) for piece in pieces]
    return results, sum(map(len, pieces)) / (time.process_time() - began)


def share(pieces: list[bytes], total: int) -> float:
    return round(sum(map(len, pieces)) / total, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--ages", type=int, nargs="*", default=[50, 100, 200, 400])
    parser.add_argument("--zstandard", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        checkpoints = train(Path(name), options.steps, options.every)
        newest = chunks(checkpoints / f"step-{options.steps}-a001")
        pieces = list(newest.values())
        total = sum(map(len, pieces))
        ours, rate = timed(packed, pieces)
        _, unpack_rate = timed(
            lambda piece: bytes(unpack(memoryview(piece))),
            [each for each, data in zip(ours, pieces, strict=True) if each != data],
        )
        left = share(ours, total)
        row = {"way": "planes", "bytes": total, "left": left, "MB_per_second": round(rate / 1e6)}
        row |= {
            "unpacked_MB_per_second": round(unpack_rate / 1e6),
            "link_Gbit_per_second": round(8 * rate * left / 1e9, 1),
            "cores_to_gain": round(GIGABIT / rate, 2),
            "cores_to_fill": round(GIGABIT / left / rate, 2),
        }
        print(json.dumps(row), flush=True)
        for age in options.ages:
            older = chunks(checkpoints / f"step-{options.steps - age}-a001")
            changed = [packed(difference(data, older[place])) for place, data in newest.items()]
            better = [min(one, other, key=len) for one, other in zip(changed, ours, strict=True)]
            row = {
                "way": "difference",
                "age": age,
                "left": share(changed, total),
                "better_of_both": share(better, total),
            }
            print(json.dumps(row), flush=True)
        ways: dict[str, Callable[[bytes], bytes]] = {"deflate, level 1": lambda data: zlib.compress(data, 1)}
        if options.zstandard:
            import zstandard

            ways["zstd, level 1"] = zstandard.ZstdCompressor(level=1).compress
        for way, work in ways.items():
            results, rate = timed(work, pieces)
            print(
                json.dumps({"way": way, "left": share(results, total), "MB_per_second": round(rate / 1e6)}), flush=True
            )


if __name__ == "__main__":
    main()
