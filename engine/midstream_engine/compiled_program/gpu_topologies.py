"""NVIDIA GPUs that are not on this host, for which XLA can still make programs.

The compiler is in jax's CUDA plugin (``jax-cuda12-pjrt`` and ``jax-cuda12-plugin``), which needs neither a GPU nor
NVIDIA's libraries for it. Kernels are not tuned by trying them out, as they are on a GPU, and what cuDNN needs beside
its operands and results is not counted.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from midstream_core.json_types import JsonValue
from midstream_engine.config.errors import ConfigError

# Where `make compilers-cuda` installs them: apart, because jax itself would look for GPUs where the plugin is.
COMPILERS = Path(sys.prefix, "compilers-cuda")
_PLUGIN = "jax_plugins.xla_cuda12"
_OF_HOST = 8  # GPUs
_CUDNN = (9, 28, 0)  # of the lock file


@dataclass(frozen=True)
class _Gpu:
    """A GPU as XLA describes it."""

    name: str
    capability: str
    cores: int
    units_per_core: int  # for float32
    shared_memory: int  # bytes a core
    memory: int  # bytes
    bandwidth: int  # bytes/s
    cache: int  # bytes, of level 2
    clock: float  # GHz


# From https://github.com/openxla/xla/tree/main/xla/backends/gpu/target_config/specs (a100_sxm_40, a100_sxm_80,
# h100_sxm, h200): descriptions of such GPUs as XLA reports them there.
_A100, _H100 = "major: 8", "major: 9 feature_extension: ACCELERATED_FEATURES"
_GPUS = {
    "a100-40": _Gpu("NVIDIA A100-SXM4-40GB", _A100, 108, 64, 167936, 42331013120, 1555200000000, 41943040, 1.41),
    "a100-80": _Gpu("NVIDIA A100-SXM4-80GB", _A100, 108, 64, 167936, 85100068864, 2039040000000, 41943040, 1.41),
    "h100": _Gpu("NVIDIA H100 80GB HBM3", _H100, 132, 128, 233472, 84942979072, 3352320000000, 52428800, 1.98),
    "h200": _Gpu("NVIDIA H200 141GB HBM3e", _H100, 132, 128, 233472, 151397597184, 4800000000000, 52428800, 1.98),
}
# A GpuTargetConfigProto. The limits of CUDA's blocks and threads are those of every generation since Volta (CUDA C
# programming guide, table of compute capabilities). Versions: of the lock file's packages.
_TARGET = """
gpu_device_info {{
  cuda_compute_capability {{ {capability} }}
  core_count: {cores} fpus_per_core: {units_per_core} clock_rate_ghz: {clock}
  device_memory_size: {memory} memory_bandwidth: {bandwidth} l2_cache_size: {cache}
  shared_memory_per_block: 49152 shared_memory_per_core: {shared_memory} shared_memory_per_block_optin: {block_memory}
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
}}
platform_name: "CUDA"
runtime_version {{ major: 12 minor: 9 patch: 0 }}
dnn_version_info {{ major: {cudnn[0]} minor: {cudnn[1]} patch: {cudnn[2]} }}
device_description_str: "{name}"
"""


def gpu_compiler() -> Path | None:
    """Return the directory of packages that has the compiler for GPUs, or None.

    The environment's own directories come before ``COMPILERS``.
    """
    plugin = Path(*_PLUGIN.split("."), "xla_cuda_plugin.so")
    spec = find_spec("jax_plugins")
    places = [Path(location).parent for location in (spec.submodule_search_locations or ())] if spec else []
    return next((place for place in [*places, COMPILERS] if (place / plugin).is_file()), None)


def names_gpus(topology: str) -> bool:
    """Return whether ``topology`` begins with the name of a GPU."""
    return topology.startswith(tuple(_GPUS))


@dataclass(frozen=True)
class GpuDescription:
    """GPUs and their hosts, as jax's ``get_topology_desc`` takes them."""

    target_config: str  # a GpuTargetConfigProto as text
    topology: str  # slices x hosts x GPUs of a host


def describe_gpus(topology: str) -> GpuDescription:
    """Return the description of hosts with GPUs.

    Args:
        topology: GPU and number, as "h100x8", "a100-80x4"; more than 8 are hosts of 8.

    Raises:
        ConfigError: There are no such GPUs.
    """
    match = re.fullmatch(r"([a-z0-9-]+?)[x:](\d+)", topology)
    gpu, number = (_GPUS.get(match[1]), int(match[2])) if match else (None, 0)
    if gpu is None or not number or (number > _OF_HOST and number % _OF_HOST):
        raise ConfigError(
            f"{topology}: no such GPUs; write one of {', '.join(_GPUS)} and their number, as h100x8 "
            f"(1 to {_OF_HOST}, or hosts of {_OF_HOST})"
        )
    hosts, of_host = (1, number) if number <= _OF_HOST else (number // _OF_HOST, _OF_HOST)
    return GpuDescription(target_config(gpu), f"1x{hosts}x{of_host}")


def gpu_devices(topology: str) -> Sequence[JsonValue]:
    """Return the devices of hosts with GPUs, to compile for.

    The process needs ``JAX_PLATFORMS=cpu``: else jax looks for GPUs on this host.

    Args:
        topology: GPU and number, as "h100x8", "a100-80x4"; more than 8 are hosts of 8.

    Raises:
        ConfigError: The compiler is not installed, or there are no such GPUs.
    """
    described = describe_gpus(topology)
    place = gpu_compiler()
    if place is None:
        raise ConfigError(
            "the compiler for GPUs is not installed: make compilers-cuda, or pip install jax-cuda12-pjrt "
            "jax-cuda12-plugin"
        )
    if str(place) not in sys.path:
        sys.path.append(str(place))  # jax looks for plugins there when it first needs one
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # compiling does not use those of this host
    from jax.experimental import topologies

    _assume_cudnn()
    describe = partial(
        topologies.get_topology_desc,
        platform="cuda", target_config=described.target_config, topology=described.topology,
    )  # fmt: skip
    try:
        return describe().devices
    except NotImplementedError:  # jax has looked for plugins before
        import_module(_PLUGIN).initialize()
        return describe().devices


def target_config(gpu: _Gpu) -> str:
    """Return XLA's description of a GPU, a GpuTargetConfigProto as text."""
    # Of a core's shared memory each block reserves 1 KiB (CUDA C programming guide, compute capability 8.x and 9.0).
    return _TARGET.format(**vars(gpu), block_memory=gpu.shared_memory - 1024, cudnn=_CUDNN)


def cudnn_number() -> int:
    """Return the assumed version of cuDNN as a number, like cuDNN's own function."""
    major, minor, patch = _CUDNN
    return 10_000 * major + 100 * minor + patch


def _assume_cudnn() -> None:
    """Have jax's cuDNN attention take the version of the lock file.

    By itself jax reads the version of this host's cuDNN, which may be missing.
    """
    attention: Any = import_module("jax._src.cudnn.fused_attention_stablehlo")  # no public interface has it
    if attention.cuda_versions is None:
        attention.cuda_versions = SimpleNamespace(cudnn_get_version=cudnn_number)
