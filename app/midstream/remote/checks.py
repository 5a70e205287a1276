"""What a preflight wants to know of a host. Looks, and changes nothing. Runs on the host; standard library only."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from typing import Any, Dict

from midstream.remote import nvidia, tpu


def facts(root: str) -> Dict[str, Any]:
    """Python, C library, disk and memory in bytes, and whether ``root`` could be written."""
    existing = root
    while not os.path.isdir(existing) and existing != os.path.dirname(existing):
        existing = os.path.dirname(existing)
    disk = shutil.disk_usage(existing)
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "libc": " ".join(platform.libc_ver()),
        "machine": platform.machine(),
        "root": root,
        "root_exists": os.path.isdir(root),
        "root_writable": os.access(existing, os.W_OK | os.X_OK),
        "disk_free": disk.free,
        "memory_available": _memory_available(),
    }


def accelerators() -> Dict[str, Any]:
    """``{gpus, driver, compute, tpus, holders, machine}``: kinds of GPUs with their driver and compute capabilities,
    kinds of TPUs (one entry a JAX device), and the pids that hold them."""
    smi = nvidia.Nvidia()
    gpus = smi.look()
    chips = [] if gpus else tpu.devices(tpu.chips(), tpu.holders())
    held = {pid for each in [*gpus, *chips] for pid in each.get("holders", ())}
    return {
        "gpus": [each["kind"] for each in gpus],
        "driver": smi.driver,
        "compute": sorted({each["capability"] for each in gpus if each.get("capability")}),
        "tpus": [each["kind"] for each in chips],
        "holders": sorted(held),
        "machine": platform.machine(),
    }


def _memory_available() -> int:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except FileNotFoundError:
        pass
    return 0
