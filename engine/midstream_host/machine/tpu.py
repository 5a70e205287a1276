"""TPUs without libtpu: chips on the PCI bus, their processes, runtime metrics."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterable, List, Mapping, Optional

from midstream_core.accelerators import ACCELERATORS, TPU_CHIPS
from midstream_core.json_types import JsonValue
from midstream_host.machine.kernel_files import list_names

GOOGLE = "0x1ae0"
DEVICE_FILES = re.compile(r"/dev/(accel\d+|vfio/\d+)", re.ASCII)
HBM_TOTAL = "tpu.runtime.hbm.memory.total.bytes"
HBM_USED = "tpu.runtime.hbm.memory.usage.bytes"
DUTY = "tpu.runtime.tensorcore.dutycycle.percent"

Metrics = Mapping[str, Mapping[int, float]]


def chips(bus: str = "/sys/bus/pci/devices") -> List[str]:
    """PCI device ids of Google's chips, in the order of the bus."""
    ids: List[str] = []
    for device in sorted(list_names(bus)):
        if _word(os.path.join(bus, device, "vendor")) == GOOGLE:
            ids.append(_word(os.path.join(bus, device, "device")))
    return ids


def devices(ids: Iterable[str], users: Iterable[int] = (), metrics: Optional[Metrics] = None) -> List[Dict[str, Any]]:
    """Return one entry per JAX device; ids of other devices are left out.

    The chips of a VM share their processes. The runtime reports memory by device, and duty by device or by chip.
    """
    kinds = [TPU_CHIPS[chip_id] for chip_id in ids if chip_id in TPU_CHIPS]
    pids = sorted(set(users))
    device_list: List[Dict[str, Any]] = []
    for chip, (kind, count) in enumerate(kinds):
        size = ACCELERATORS[kind].memory if kind in ACCELERATORS else None
        for _ in range(count):
            index = len(device_list)
            entry: Dict[str, JsonValue] = {"index": index, "kind": kind, "memory_total": size, "pids": pids}
            if metrics:
                total, used = metrics.get(HBM_TOTAL, {}).get(index), metrics.get(HBM_USED, {}).get(index)
                duty = metrics.get(DUTY, {})
                busy = duty.get(index if len(duty) > len(kinds) else chip)
                entry["memory_total"] = int(total) if total else size
                entry["memory_used"] = None if used is None else int(used)
                entry["utilization"] = None if busy is None else min(1.0, max(0.0, busy / 100))
            device_list.append(entry)
    return device_list


def users(proc: str = "/proc") -> List[int]:
    """Return the pids that have a chip's device file open.

    Only root sees processes of other users.
    """
    pids: List[int] = []
    for pid in list_names(proc):
        descriptors = os.path.join(proc, pid, "fd")
        if pid.isdecimal() and any(_is_tpu(os.path.join(descriptors, name)) for name in list_names(descriptors)):
            pids.append(int(pid))
    return sorted(pids)


def _is_tpu(descriptor: str) -> bool:
    try:
        return DEVICE_FILES.fullmatch(os.readlink(descriptor)) is not None
    except OSError:  # closed since it was listed
        return False


def _word(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
