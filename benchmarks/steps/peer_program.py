"""Request, devices and answer of a program that compiles the step of another trainer."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# With `megacore` jax has one device for each chip of a TPU v4, as it has there.
DETAILS = {"v4": {"chip_config_name": "megacore"}}


def request() -> dict[str, Any]:
    """Return the request: shape, topology, examples at a time, micro-batches, compiler, and where to write.

    The environment has to be set before jax is imported.
    """
    found = json.loads(sys.argv[1])
    os.environ["JAX_PLATFORMS"] = "cpu"  # the devices are those of the topology
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    os.environ["TPU_LIBRARY_PATH"] = found["library"]
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    return found


def devices_of(topology: str) -> Sequence[Any]:
    """Return the devices of a TPU slice."""
    from jax.experimental import topologies

    details: dict[str, Any] = DETAILS.get(topology.partition(":")[0], {})
    return topologies.get_topology_desc(platform="tpu", topology_name=topology, **details).devices


def answer(found: dict[str, Any], compile_program: Callable[[], Any], packages: Sequence[str]) -> None:
    """Compile, write the program's text to the file of the request, and print the rest as JSON."""
    began = time.monotonic()
    compiled = compile_program()
    seconds = time.monotonic() - began
    Path(found["text"]).write_text(compiled.as_text())
    analysis = compiled.memory_analysis()
    versions = {name: importlib.metadata.version(name) for name in ("jax", *packages)}
    print(
        json.dumps({
            "arguments": analysis.argument_size_in_bytes, "temporary": analysis.temp_size_in_bytes,
            "peak": analysis.peak_memory_in_bytes, "compile_seconds": round(seconds), "versions": versions,
        })
    )  # fmt: skip
