"""Checkpoints of Levanter in the format of another version."""

from __future__ import annotations

import shutil
from pathlib import Path

import tensorstore as ts

from midstream_engine.interop.levanter.arrays import open_arrays


def as_format_a(source: Path, target: Path) -> None:
    """Write the checkpoint as Levanter 1.2 does: zarr 2, zstd, a directory per array."""
    _, found = open_arrays(str(source / "step-3"))
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("d", "manifest.ocdbt"))
    for name, stored in found.items():
        data = stored.read()
        path = str(target / "step-3" / name) + "/"
        spec = {
            "driver": "zarr", "kvstore": {"driver": "file", "path": path}, "create": True,
            "metadata": {
                "shape": data.shape, "dtype": data.dtype.str, "chunks": [max(size // 2, 1) for size in data.shape],
                "compressor": {"id": "zstd", "level": 1},
            },
        }  # fmt: skip
        ts.open(spec).result().write(data).result()
