"""Plain files: the least that the same promises cost."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from checkpoints.state import MIB, Case

BLOCK = 4 * MIB


class Plain:
    """Shards as files: SHA-256 and crc32c while they pass, fsync, threads. No names, no manifest, no other mesh."""

    name = "plain"

    def __init__(self, case: Case, threads: int) -> None:
        self._case, self._threads = case, threads

    def save(self, directory: Path) -> None:
        import google_crc32c
        import numpy as np

        directory.mkdir()

        def write(path: Path, data: Any) -> None:
            raw, digest, crc = np.ascontiguousarray(data).reshape(-1).view(np.uint8), hashlib.sha256(), 0
            with open(path, "wb", buffering=0) as file:
                for start in range(0, len(raw), BLOCK):
                    block = raw[start : start + BLOCK]
                    digest.update(block.data)
                    crc = google_crc32c.extend(crc, block)
                    file.write(block.data)
                os.fsync(file.fileno())

        with ThreadPoolExecutor(self._threads) as pool:
            tasks = [
                pool.submit(write, directory / f"{name}.{number}", np.asarray(shard.data))
                for name, value in self._case.state.items()
                for number, shard in enumerate(value.addressable_shards)
            ]
            for task in tasks:
                task.result()

    def restore(self, directory: Path, mesh: Any) -> dict[str, Any]:
        import google_crc32c
        import jax
        import numpy as np

        def read(path: Path, shape: tuple[int, ...], device: Any) -> Any:
            data, digest, crc = np.empty(shape, np.float32), hashlib.sha256(), 0
            raw = data.reshape(-1).view(np.uint8)
            with open(path, "rb", buffering=0) as file:
                done = 0
                while count := file.readinto(raw[done : done + BLOCK].data):
                    digest.update(raw[done : done + count].data)
                    crc = google_crc32c.extend(crc, raw[done : done + count])
                    done += count
            return jax.device_put(data, device)

        result = {}
        with ThreadPoolExecutor(self._threads) as pool:
            for name, leaf in self._case.template(mesh).items():
                shape = leaf.sharding.shard_shape(leaf.shape)
                path = str(directory / name)
                result[name] = (
                    leaf,
                    [
                        pool.submit(read, Path(f"{path}.{number}"), shape, device)
                        for number, device in enumerate(mesh.devices.flat)
                    ],
                )
            return {
                name: jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, [t.result() for t in tasks])
                for name, (leaf, tasks) in result.items()
            }
