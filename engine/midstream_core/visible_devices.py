"""The GPUs that a process sees: ``CUDA_VISIBLE_DEVICES``, as CUDA reads it.

An entry is an index, the beginning of a UUID (``GPU-...``), or a MIG device (``MIG-...``). The entries after one that
is no device do not count. https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html
Standard library alone, Python 3.8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Dict

from midstream_core.json_types import JsonObject, list_or_empty, object_or_empty

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
BY_BUS = "PCI_BUS_ID"  # the order of nvidia-smi; CUDA's own has the fastest GPU first
ENTRY = re.compile(r"\d{1,4}|GPU-[0-9a-fA-F-]{1,40}|MIG-[\w/-]{1,80}")
_VIRTUAL = re.compile(r"--xla_force_host_platform_device_count=\d+")


Gpu = Dict[str, Any]  # as nvidia-smi reports it, with its ``uuid``, or a MIG device of it


def visible_devices(environment: Mapping[str, str]) -> list[str] | None:
    """Return the entries of ``CUDA_VISIBLE_DEVICES``; None where it is not set."""
    text = environment.get(VISIBLE)
    if text is None:
        return None
    entries: list[str] = []
    for entry in text.split(","):
        if not ENTRY.fullmatch(entry.strip()):  # -1, NoDevFiles, none: it hides what follows
            break
        entries.append(entry.strip())
    return entries


def select_visible(gpus: Sequence[JsonObject], entries: Sequence[str] | None) -> list[Gpu]:
    """Return the GPUs that a process sees, in its order.

    Args:
        gpus: Of the machine, in the order of nvidia-smi: each has ``index`` and ``uuid``, and may have ``parts``: its
            MIG devices, in the same form.
        entries: Of `visible_devices`; None: it sees all.
    """
    if entries is None:
        return [dict(gpu) for gpu in gpus]
    slices = [object_or_empty(device) for gpu in gpus for device in list_or_empty(gpu.get("parts"))]
    visible: list[Gpu] = []
    for entry in entries:
        if entry.startswith("MIG-"):
            named = [device for device in slices if str(device["uuid"]).lower() == entry.lower()]
        elif entry.startswith("GPU-"):
            named = [dict(gpu) for gpu in gpus if str(gpu.get("uuid", "")).lower().startswith(entry.lower())]
        else:
            named = [dict(gpu) for gpu in gpus if gpu["index"] == int(entry)]
        if len(named) != 1 or named[0] in visible:
            break
        visible += named
    return visible


def limit_devices(environment: MutableMapping[str, str], count: int) -> None:
    """Let a process see only the first ``count`` of its devices.

    Devices are GPUs, or jax's virtual devices on a CPU.
    """
    entries = visible_devices(environment)
    if entries is None:
        entries = [str(index) for index in range(count)]
        environment.setdefault(ORDER, BY_BUS)
    environment[VISIBLE] = ",".join(entries[:count])
    flags = environment.get("XLA_FLAGS", "")
    if _VIRTUAL.search(flags):
        environment["XLA_FLAGS"] = _VIRTUAL.sub(f"--xla_force_host_platform_device_count={count}", flags)
