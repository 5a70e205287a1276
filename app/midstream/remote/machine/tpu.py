"""TPUs without libtpu: Google's chips on the PCI bus, who has them open, and what their runtime tells."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

GOOGLE = "0x1ae0"
# PCI device id -> (kind, JAX devices a chip, bytes a JAX device).
TPUS: Dict[str, Tuple[str, int, Optional[int]]] = {
    "0x0027": ("TPU v2/v3", 2, None),  # one id for both
    "0x005e": ("TPU v4", 1, 32 << 30),
    "0x0063": ("TPU v5e", 1, 16 << 30),
    "0x0062": ("TPU v5p", 1, 95 << 30),
    "0x006f": ("TPU v6e", 1, 32 << 30),
    "0x0076": ("TPU 7x", 2, 96 << 30),
}
DEVICE_FILES = re.compile(r"/dev/(accel\d+|vfio/\d+)", re.ASCII)
HBM_TOTAL = "tpu.runtime.hbm.memory.total.bytes"
HBM_USED = "tpu.runtime.hbm.memory.usage.bytes"
DUTY = "tpu.runtime.tensorcore.dutycycle.percent"

Metrics = Mapping[str, Mapping[int, float]]


def chips(bus: str = "/sys/bus/pci/devices") -> List[str]:
    """PCI device ids of Google's chips, in the bus' order."""
    found = []
    for device in sorted(_listdir(bus)):
        if _word(os.path.join(bus, device, "vendor")) == GOOGLE:
            found.append(_word(os.path.join(bus, device, "device")))
    return found


def devices(ids: Iterable[str], holders: Iterable[int] = (), metrics: Optional[Metrics] = None) -> List[Dict[str, Any]]:
    """One entry a JAX device; ids that are no TPU are none. Chips share their holders, because a VM's chips are taken
    together. The runtime counts memory by device, and duty by device or by chip."""
    known = [TPUS[each] for each in ids if each in TPUS]
    pids = sorted(set(holders))
    found: List[Dict[str, Any]] = []
    for chip, (kind, count, size) in enumerate(known):
        for _ in range(count):
            index = len(found)
            entry: Dict[str, Any] = {"index": index, "kind": kind, "memory_total": size, "holders": pids}
            if metrics:
                total, used = metrics.get(HBM_TOTAL, {}).get(index), metrics.get(HBM_USED, {}).get(index)
                duty = metrics.get(DUTY, {})
                busy = duty.get(index if len(duty) > len(known) else chip)
                entry["memory_total"] = int(total) if total else size
                entry["memory_used"] = None if used is None else int(used)
                entry["utilization"] = None if busy is None else min(1.0, max(0.0, busy / 100))
            found.append(entry)
    return found


def holders(proc: str = "/proc") -> List[int]:
    """Pids that have a chip's device file open. Of other users' processes only root sees that."""
    found = []
    for pid in _listdir(proc):
        descriptors = os.path.join(proc, pid, "fd")
        if pid.isdigit() and any(_is_tpu(os.path.join(descriptors, name)) for name in _listdir(descriptors)):
            found.append(int(pid))
    return sorted(found)


def _is_tpu(descriptor: str) -> bool:
    try:
        return DEVICE_FILES.fullmatch(os.readlink(descriptor)) is not None
    except OSError:  # closed meanwhile
        return False


def _listdir(path: str) -> List[str]:
    try:
        return os.listdir(path)
    except OSError:  # not there, gone meanwhile, or another user's
        return []


def _word(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
