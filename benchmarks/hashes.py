"""Processor time of the hashes that a copy could use, beside that of the bytes' other steps.

    python benchmarks/hashes.py [--mib 256] [--rounds 5] [--block 4194304]

Each works on the same random bytes, in blocks as a copy reads them, on one core; the best of the rounds counts. Above 1
takes less processor time than SHA-256, which a manifest has for each object. *copied* moves the bytes once within
memory. The ciphers are those of the streams; they need the package ``cryptography``, and BLAKE3 the package ``blake3``
(``pip install blake3``): without it its row is left out.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version

import google_crc32c
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

MIB = 1 << 20


def ways(block: int) -> Iterator[tuple[str, Callable[[bytes], object]]]:
    """Yield the name of each way, and what it does with a block."""
    into, nonce = memoryview(bytearray(block)), os.urandom(12)

    def copied(data: bytes) -> None:
        into[: len(data)] = data

    yield "SHA-256", lambda data: hashlib.sha256(data).digest()
    yield "BLAKE2b", lambda data: hashlib.blake2b(data).digest()
    if importlib.util.find_spec("blake3") is not None:
        from blake3 import blake3  # pyright: ignore[reportMissingImports]

        yield f"BLAKE3 {version('blake3')}", lambda data: blake3(data).digest()
    yield "crc32c", google_crc32c.value
    yield "AES-128-GCM", lambda data: AESGCM(b"0" * 16).encrypt(nonce, data, None)
    yield "ChaCha20-Poly1305", lambda data: ChaCha20Poly1305(b"0" * 32).encrypt(nonce, data, None)
    yield "copied", copied


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--block", type=int, default=4 * MIB, help="bytes")
    options = parser.parse_args()
    blocks = [os.urandom(options.block) for _ in range(options.mib * MIB // options.block)]
    todo = dict(ways(options.block))
    seconds = dict.fromkeys(todo, float("inf"))
    for _ in range(options.rounds):
        for name, work in todo.items():
            began = time.process_time()
            for block in blocks:
                work(block)
            seconds[name] = min(seconds[name], time.process_time() - began)
    print(json.dumps({"mib": options.mib, "block": options.block, "rounds": options.rounds}))
    for name, took in seconds.items():
        row = {"way": name, "seconds_a_GiB": round(took * 1024 / options.mib, 2)}
        print(json.dumps(row | {"SHA-256 / it": round(seconds["SHA-256"] / took, 2)}))


if __name__ == "__main__":
    main()
