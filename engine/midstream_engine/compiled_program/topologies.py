"""Devices of accelerators not on this host, for which programs can be compiled.

The compiler for TPUs is in the package ``libtpu``, which needs no TPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from midstream_core.accelerator_types import TPU, AcceleratorType
from midstream_core.json_types import JsonValue
from midstream_engine.array_types import Device
from midstream_engine.compiled_program.gpu_topologies import gpu_devices
from midstream_engine.config.errors import ConfigError

# Where `make compilers` installs them: apart, because jax itself would look for TPUs where libtpu is installed.
COMPILERS = Path(sys.prefix, "compilers")


def tpu_library() -> Path | None:
    """Return the compiler for TPUs: of an installed ``libtpu``, or in ``COMPILERS``."""
    spec = find_spec("libtpu")
    places = [*((spec.submodule_search_locations or ()) if spec else ()), COMPILERS / "libtpu"]
    return next((path for place in places if (path := Path(place, "libtpu.so")).is_file()), None)


def devices_of(accelerators: AcceleratorType) -> Sequence[Device]:
    """Return the devices of accelerators, to compile for.

    Raises:
        ConfigError: Their compiler is not installed, or has no such topology.
    """
    if accelerators.platform == TPU:
        return tpu_devices(accelerators.topology)
    return gpu_devices(accelerators.topology)


def tpu_devices(topology: str) -> Sequence[JsonValue]:
    """Return the devices of a TPU slice, to compile for.

    Args:
        topology: Generation and chips, as "v5e:4x4", "v6e:4x4", "v5p:2x2x2".

    Raises:
        ConfigError: The compiler is not installed, or has no such topology.
    """
    library = tpu_library()
    if library is None:
        raise ConfigError("the compiler for TPUs is not installed: make compilers, or pip install libtpu")
    # Read when the library is loaded: no TPU is looked for at the metadata service of the cloud.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_LIBRARY_PATH", str(library))
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # compiling does not use the chips
    from jax.experimental import topologies

    try:
        return topologies.get_topology_desc(platform="tpu", topology_name=topology, **_details(topology)).devices
    except (RuntimeError, ValueError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"{topology}: no such TPU topology ({reason}); write one as v5e:4x4 or v5p:2x2x2") from None


def _details(topology: str) -> dict[str, JsonValue]:
    """Return what a topology needs beside its name.

    A host has four chips unless the slice is smaller. A TPU v4 has two cores, which jax uses as one device (megacore).
    """
    generation, _, sides = topology.partition(":")
    details: dict[str, JsonValue] = {"chip_config_name": "megacore"} if generation == "v4" else {}
    chips = [int(side) for side in sides.split("x") if side.isdecimal()]
    if len(chips) in (2, 3) and min(chips[:2]) < 2:
        details["chips_per_host_bounds"] = (min(chips[0], 2), min(chips[1], 2), 1)
    return details
