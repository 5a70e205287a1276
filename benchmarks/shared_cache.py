"""A second host's start with a shared compile cache, beside the same start without one, in one run.

    python benchmarks/shared_cache.py [--shape gpt2-10m] [--rounds 3]

The first host trains one attempt from nothing with its compile cache in a directory that others see, and one with its
cache in a bucket (this project's simulator, on loopback). In each round a second host, which has another and empty
root, starts the same configuration with the directory, with the bucket, and alone, in an order that turns. Seconds are
from the start of the process until the first update begins, and until it is finished; `compiled` counts the programs
that jax compiled, by its log. A ratio is the time beside that of the host alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "engine"), str(ROOT / "tests")]

from steps.shape import SHAPES, Shape  # noqa: E402

from simulators.object_stores.bucket import BucketServer  # noqa: E402

Run: Any = import_module("engine").Run  # of benchmarks/engine.py
CACHE = "JAX_COMPILATION_CACHE_DIR"
LOGGED = {"JAX_DEBUG_LOG_MODULES": "jax._src.compiler"}  # jax names there what it compiles


class Host(Run):
    """A host with a root of its own."""

    def __init__(self, shape: Shape, root: Path, settings: Mapping[str, str]) -> None:
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        super().__init__(shape, root)
        self.settings = {**LOGGED, **settings}

    def start(self) -> dict[str, float]:
        """Train one update; return seconds and the number of programs that were compiled."""
        began, rows = self.train(1)
        done = rows[0]["time"] - began
        log = (self.directory.parents[1] / "engine.log").read_text()
        compiled = set(re.findall(r"CACHE MISS for '\S+' with key '(\S+)'", log, re.IGNORECASE))
        return {"begins": done - rows[0]["throughput/duration"], "done": done, "compiled": len(compiled)}

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), **self.settings}


def contest(shape: Shape, directory: Path, rounds: int, bucket: Mapping[str, str]) -> None:
    """Print the medians of each kind of second host."""
    kinds = {
        "alone": {},
        "directory": {CACHE: str(directory / "shared")},
        "bucket": {**bucket, CACHE: "gs://compiled/programs"},
    }
    first = {kind: Host(shape, directory / "first" / kind, kinds[kind]).start() for kind in ("directory", "bucket")}
    say(first_host=first)
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind in list(kinds)[:: 1 if number % 2 else -1]:
            found[kind].append(Host(shape, directory / "second" / kind, kinds[kind]).start())
    medians = {
        kind: {name: round(statistics.median(each[name] for each in starts), 2) for name in starts[0]}
        for kind, starts in found.items()
    }
    for kind, name in itertools.product(("directory", "bucket"), ("begins", "done")):
        say(second_host=kind, first_update=name, ratio=round(medians[kind][name] / medians["alone"][name], 3))
    say(medians=medians, all=found)


def say(**row: object) -> None:
    print(json.dumps(row), flush=True)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    flags.add_argument("--shape", choices=sorted(SHAPES), default="gpt2-10m")
    flags.add_argument("--rounds", type=int, default=3)
    options = flags.parse_args()
    say(
        python=platform.python_version(), jax=metadata.version("jax"), cpus=os.cpu_count(), load=os.getloadavg()[0],
        shape=options.shape, rounds=options.rounds,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="midstream-bench-") as name, BucketServer() as server:
        server.create("compiled")
        contest(SHAPES[options.shape], Path(name), options.rounds, server.environment)


if __name__ == "__main__":
    main()
