"""The accelerators of this host, found without any library: nvidia-smi, the PCI bus, or the fleet file's word."""

from __future__ import annotations

import threading
import time
from typing import Any, Dict, List, Optional

from midstream.remote.machine import inventory, nvidia, tpu, tpu_metrics

EVERY = 5.0  # seconds between two looks
Accelerator = Dict[str, Any]  # the fields of watch.model.Accelerator


class Accelerators:
    """Looks in the background, because nvidia-smi can take seconds, or hang with a driver that does."""

    def __init__(self, devices: Optional[int], every: float = EVERY, smi: Optional[nvidia.Nvidia] = None):
        self._virtual = devices
        self._every = every
        self._nvidia = smi or nvidia.Nvidia()
        self._found: List[Accelerator] = []
        self._facts: Dict[str, Any] = {"driver": "", "cuda": "", "users": []}
        self._looked = threading.Event()
        if devices is None:
            threading.Thread(target=self._look, daemon=True).start()

    def latest(self, wait: float = 0.0) -> List[Accelerator]:
        """What the newest look found; waits up to ``wait`` seconds for a first one."""
        if self._virtual is not None:
            return [{"index": index, "kind": "cpu"} for index in range(self._virtual)]
        self._looked.wait(wait)
        return self._found

    def facts(self) -> Dict[str, Any]:
        """The driver, the newest CUDA that it runs, and who uses the accelerators."""
        return self._facts

    def _look(self) -> None:
        while True:
            found, names = self._nvidia.look(), self._nvidia.apps
            if not found:
                found, names = tpus(), {}
            users = inventory.processes({pid for each in found for pid in each["holders"]}, names)
            self._facts = {"driver": self._nvidia.driver, "cuda": self._nvidia.cuda, "users": users}
            self._found = found
            self._looked.set()
            if not self._found and not self._nvidia.present:
                return  # accelerators do not appear while a machine runs
            time.sleep(self._every)


def tpus(bus: str = "/sys/bus/pci/devices", proc: str = "/proc") -> List[Accelerator]:
    """One entry a JAX device. The runtime is asked only where somebody holds the chips: otherwise there is none."""
    ids = tpu.chips(bus)
    if not ids:
        return []
    holders = tpu.holders(proc)
    metrics = tpu_metrics.read([tpu.HBM_TOTAL, tpu.HBM_USED, tpu.DUTY]) if holders else None
    return tpu.devices(ids, holders, metrics)
