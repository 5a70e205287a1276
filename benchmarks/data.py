"""Batches from a token cache, and tokenizing: what a processor does of it in a second.

    python benchmarks/data.py [--mib 32] [--seq-len 1024] [--batch 256] [--rounds 20]

Batches: random token stretches of a shuffled cache become a batch with its digest, as training's prefetch thread makes
it; beside it the least that any loader does, which is to copy the same stretches with numpy, in the same order and
process. Tokenizing: the same text with one and with two processes, by the byte tokenizer and, where the package
tokenizers is installed, by a byte-level BPE trained on the text. Ratios are between rows of one run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from importlib import metadata

import numpy as np

from midstream_engine.config import DataConfig
from midstream_engine.data.batches import TrainingBatches
from midstream_engine.data.prepared_data import open_cache
from midstream_engine.data.sources.list_sources import documents, list_sources
from midstream_engine.data.token_cache import TokenCache
from midstream_engine.data.tokenize.tokenizer import load_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=32, help="of text, made of Python's standard library")
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=20, help="batches; the median counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = os.path.join(folder, "text.jsonl")
        write_text(text, options.mib << 20)
        print(f"Python {platform.python_version()}, numpy {np.__version__}, {os.cpu_count()} CPUs, {options.mib} MiB")
        print("\n| tokenizing | 1 process, MB/s | 2 processes / 1 process |\n| --- | ---: | ---: |")
        caches = [tokenizing(folder, name, tokenizer, text) for name, tokenizer in tokenizers(folder, text)]
        assembling(caches[0], options.seq_len, options.batch, options.rounds)


def write_text(path: str, size: int) -> None:
    """``size`` bytes of text in lines, the standard library's sources over and over."""
    found = [text.decode("utf-8", "replace") for text in documents(
        list_sources(["stdlib:**/*.py"]), text_key="text", max_bytes=None
    )]  # fmt: skip
    with open(path, "w") as file:
        written = number = 0
        while written < size:
            written += file.write(json.dumps({"text": found[number % len(found)]}) + "\n")
            number += 1


def tokenizers(folder: str, text: str) -> list[tuple[str, str]]:
    """(what it is called, ``data.tokenizer``)."""
    found = [("bytes", "bytes")]
    try:
        from tokenizers import ByteLevelBPETokenizer
    except ImportError:
        print("(the package tokenizers is not installed: bytes alone)")
        return found
    model = ByteLevelBPETokenizer()
    with open(text) as file:
        sample = [json.loads(line)["text"] for _, line in zip(range(300), file, strict=False)]
    model.train_from_iterator(sample, vocab_size=8000, special_tokens=["<|endoftext|>"], show_progress=False)
    path = os.path.join(folder, "tokenizer.json")
    model.save(path)
    version = metadata.version("tokenizers")
    return [*found, (f"byte-level BPE, 8000 tokens (tokenizers {version})", path)]


def tokenizing(folder: str, name: str, tokenizer: str, text: str) -> TokenCache:
    seconds = {}
    caches = []
    for processes in (1, 2):
        settings = DataConfig(train_urls=[text], tokenizer=tokenizer, num_tokenize_workers=processes)
        root = os.path.join(folder, f"{len(name)}-{processes}")
        began = time.monotonic()
        caches.append(
            open_cache(root, [text], settings, load_tokenizer(tokenizer, settings.eos_token), unit_bytes=4 << 20)
        )
        seconds[processes] = time.monotonic() - began
    assert caches[0].digest == caches[1].digest
    rate = os.path.getsize(text) / seconds[1] / 1e6
    print(f"| {name} | {rate:.1f} | {seconds[1] / seconds[2]:.2f} |", flush=True)
    return caches[0]


def assembling(cache: TokenCache, seq_len: int, size: int, rounds: int) -> None:
    batches = TrainingBatches(cache, seq_len=seq_len, batch_size=size, seed=0)
    row = cache.read(0, cache.tokens)

    def ours(index: int) -> None:
        batches.batch(index)

    def least(index: int) -> None:
        starts = batches.locate(np.arange(index * size, (index + 1) * size))[1] * seq_len
        np.stack([row[start : start + seq_len] for start in starts])

    took = {
        "a batch with its digest": median(ours, rounds),
        "numpy copies of the same stretches": median(least, rounds),
    }
    print(f"\n| a batch of {size} x {seq_len} | ms | M tokens/s | of a 1 s step |\n| --- | ---: | ---: | ---: |")
    for name, seconds in took.items():
        print(f"| {name} | {1e3 * seconds:.1f} | {size * seq_len / seconds / 1e6:.0f} | {seconds:.2%} |")


def median(function: Callable[[int], None], rounds: int) -> float:
    """Seconds of one call."""
    seconds = []
    for index in range(rounds):
        began = time.perf_counter()
        function(index)
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


if __name__ == "__main__":
    main()
