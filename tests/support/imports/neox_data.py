"""Write a NeoX dataset with index maps, such that a run reads given batches."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np


def write(prefix: Path, rows: np.ndarray, samples: int, seed: int = 1234) -> str:
    """Write ``rows`` [n, length + 1] as samples ``samples - n`` and following; earlier samples are the first row."""
    length = rows.shape[1] - 1
    documents = np.concatenate([rows, rows[:1]]).astype("<u2")
    count = len(documents)
    sizes = np.full(count, length + 1, "<i4")
    offsets = (np.arange(count) * (length + 1) * 2).astype("<i8")
    header = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, count, count + 1)
    index = header + sizes.tobytes() + offsets.tobytes() + np.arange(count + 1, dtype="<i8").tobytes()
    prefix.with_suffix(".idx").write_bytes(index)
    prefix.with_suffix(".bin").write_bytes(documents.tobytes())
    order = np.zeros(samples + 1, np.uint32)
    order[samples - len(rows) : samples] = np.arange(len(rows))
    starts = np.stack([np.arange(count), np.zeros(count, np.int64)], 1).astype(np.int32)
    sample_idx = np.concatenate([starts, np.repeat(starts[-1:], max(samples + 2 - count, 1), 0)])
    name = f"{prefix}_train_indexmap_{samples}ns_{length}sl_{seed}s"
    np.save(f"{name}_doc_idx.npy", np.arange(count, dtype=np.int32))
    np.save(f"{name}_sample_idx.npy", sample_idx)
    np.save(f"{name}_shuffle_idx.npy", order)
    return str(prefix)
