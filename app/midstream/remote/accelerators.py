"""The accelerators of this host, found without any library: nvidia-smi, the PCI bus, or the fleet file's word.

Sources: ``nvidia-smi --help-query-gpu`` for the fields; for TPUs the PCI vendor and device ids of Google's chips.
Sizes in bytes, utilization as a share of time (it is busy time, not the share of peak that is used).
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

NVIDIA_TIMEOUT = 20.0  # seconds; without persistence mode every call starts the driver anew
FIELDS = ("index", "uuid", "name", "memory.total", "memory.used", "utilization.gpu")
NEEDED = ("index", "name")
MIB = 1 << 20

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

Accelerator = Dict[str, Any]  # the fields of watch.model.Accelerator


class Accelerators:
    """Looks in the background, because nvidia-smi can take seconds, or hang with a driver that does."""

    def __init__(self, devices: Optional[int], every: float = 5.0, nvidia: "Optional[Nvidia]" = None):
        self._virtual = devices
        self._every = every
        self._nvidia = nvidia or Nvidia()
        self._found: List[Accelerator] = []
        self._looked = threading.Event()
        if devices is None:
            threading.Thread(target=self._look, daemon=True).start()

    def latest(self, wait: float = 0.0) -> List[Accelerator]:
        """What the newest look found; waits up to ``wait`` seconds for a first one."""
        if self._virtual is not None:
            return [{"index": index, "kind": "cpu"} for index in range(self._virtual)]
        self._looked.wait(wait)
        return self._found

    def _look(self) -> None:
        while True:
            self._found = self._nvidia.look() or tpus()
            self._looked.set()
            if not self._found and not self._nvidia.present:
                return  # accelerators do not appear while a machine runs
            time.sleep(self._every)


# ---------------------------------------------------------------------------------------------------- nvidia-smi


class Nvidia:
    """One unknown field fails a whole query: older drivers are asked for each field once, then for those they know."""

    def __init__(self, command: str = "nvidia-smi", timeout: float = NVIDIA_TIMEOUT):
        self.present = True
        self._command = command
        self._timeout = timeout
        self._fields: Sequence[str] = ()

    def look(self) -> List[Accelerator]:
        """One entry a GPU, in nvidia-smi's order; empty where there are none."""
        if not self.present:
            return []
        self._fields = self._fields or self._known_fields()
        rows = self._query("gpu", self._fields) if self._fields else None
        if not rows:
            return []
        holders = self._holders() if "uuid" in self._fields else {}
        # What has another shape is no GPU: a warning between the rows, or a row that was cut off.
        whole = [row for row in rows if len(row) == len(self._fields) and row[0].isdigit()]
        return [parse_gpu(dict(zip(self._fields, row)), holders) for row in whole]

    def _known_fields(self) -> Sequence[str]:
        if self._query("gpu", FIELDS) is not None:
            return FIELDS
        known = [field for field in FIELDS if self.present and self._query("gpu", (field,)) is not None]
        return known if all(field in known for field in NEEDED) else ()

    def _holders(self) -> Dict[str, List[int]]:
        found: Dict[str, List[int]] = {}
        for row in self._query("compute-apps", ("gpu_uuid", "pid")) or []:
            if len(row) == 2 and row[1].isdigit():
                found.setdefault(row[0], []).append(int(row[1]))
        return found

    def _query(self, what: str, fields: Sequence[str]) -> Optional[List[List[str]]]:
        """Rows of the answer, None where it refuses."""
        argv = [self._command, "--query-{}={}".format(what, ",".join(fields)), "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=self._timeout,
                                  stderr=subprocess.DEVNULL, check=False)  # fmt: skip
        except (FileNotFoundError, PermissionError):
            self.present = False
            return None
        except subprocess.TimeoutExpired:
            return None
        if done.returncode:
            return None
        lines = done.stdout.decode(errors="replace").splitlines()
        return [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]


def parse_gpu(row: Dict[str, str], holders: Dict[str, List[int]]) -> Accelerator:
    """nvidia-smi spells what it does not know ``[N/A]``, ``[Not Supported]`` or ``[Unknown Error]``."""
    total, used, busy = (_number(row.get(name)) for name in ("memory.total", "memory.used", "utilization.gpu"))
    return {
        "index": int(row["index"]),
        "kind": row["name"],
        "memory_total": None if total is None else int(total * MIB),
        "memory_used": None if used is None else int(used * MIB),
        "utilization": None if busy is None else busy / 100,
        "holders": sorted(holders.get(row.get("uuid", ""), [])),
    }


def _number(text: Optional[str]) -> Optional[float]:
    """``"37"``; where ``nounits`` is not heeded, ``"37 %"`` and ``"16160 MiB"``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?: (?:MiB|%))?", text or "")
    return float(match.group(1)) if match else None


# ---------------------------------------------------------------------------------------------------------- TPUs


def tpus(bus: str = "/sys/bus/pci/devices", proc: str = "/proc") -> List[Accelerator]:
    """One entry a JAX device, from the PCI bus. Holders are pids that have a chip's device file open; chips share
    them, because a VM's chips are taken together."""
    chips = []
    for device in sorted(_listdir(bus)):
        if _word(os.path.join(bus, device, "vendor")) == GOOGLE:
            chip = TPUS.get(_word(os.path.join(bus, device, "device")))
            if chip is not None:
                chips.append(chip)
    if not chips:
        return []
    holders = sorted(_tpu_holders(proc))
    devices = [(kind, size) for kind, count, size in chips for _ in range(count)]
    return [
        {"index": index, "kind": kind, "memory_total": size, "holders": holders}
        for index, (kind, size) in enumerate(devices)
    ]


def _tpu_holders(proc: str) -> List[int]:
    found = []
    for pid in _listdir(proc):
        descriptors = os.path.join(proc, pid, "fd")
        if pid.isdigit() and any(_is_tpu(os.path.join(descriptors, name)) for name in _listdir(descriptors)):
            found.append(int(pid))
    return found


def _is_tpu(descriptor: str) -> bool:
    try:
        return re.fullmatch(r"/dev/(accel\d+|vfio/\d+)", os.readlink(descriptor)) is not None
    except OSError:  # closed meanwhile
        return False


def _listdir(path: str) -> List[str]:
    try:
        return os.listdir(path)
    except OSError:  # not there, gone meanwhile, or another user's
        return []


def _word(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
