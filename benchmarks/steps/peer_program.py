"""Request, devices and answer of a program that compiles the step of another trainer."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# With `megacore` jax has one device for each chip of a TPU v4, as it has there.
DETAILS = {"v4": {"chip_config_name": "megacore"}}


def request() -> dict[str, Any]:
    """Return the request: shape, topology, examples at a time, micro-batches, compiler, and where to write.

    The environment has to be set before jax is imported.
    """
    found = json.loads(sys.argv[1])
    os.environ["JAX_PLATFORMS"] = "cpu"  # the devices are those of the topology
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    os.environ["TPU_LIBRARY_PATH"] = found["library"]
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    # Levanter otherwise chooses the blocks of its loss by running them, here on the CPU.
    os.environ["LEVANTER_PALLAS_CE_AUTOTUNE_ON_MISS"] = "0"
    return found


def is_gpu(found: dict[str, Any]) -> bool:
    """Return whether the request is for GPUs."""
    return found["gpus"] is not None


def devices_of(found: dict[str, Any]) -> Sequence[Any]:
    """Return the devices of a request's topology: those of a TPU slice, or of hosts with GPUs."""
    from jax.experimental import topologies

    if not is_gpu(found):
        name = found["topology"]
        details: dict[str, Any] = DETAILS.get(name.partition(":")[0], {})
        return topologies.get_topology_desc(platform="tpu", topology_name=name, **details).devices
    gpus = found["gpus"]
    try:
        plugin: Any = import_module("jax_plugins.xla_cuda12")
    except ImportError:
        raise SystemExit(
            "the compiler for GPUs is not installed (hint: pip install --no-deps jax-cuda12-plugin jax-cuda12-pjrt of "
            "the version of jax)"
        ) from None
    plugin.initialize()  # jax itself initializes only what JAX_PLATFORMS names
    attention: Any = import_module("jax._src.cudnn.fused_attention_stablehlo")
    attention.cuda_versions = SimpleNamespace(cudnn_get_version=lambda: gpus["cudnn"])  # this host has no cuDNN
    return topologies.get_topology_desc(
        platform="cuda", target_config=gpus["target_config"], topology=gpus["topology"]
    ).devices


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
