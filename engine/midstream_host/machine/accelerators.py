"""The accelerators of this host, from nvidia-smi, the PCI bus, or the fleet file."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Dict, List, Optional, Sequence

from midstream_core.json_types import JsonValue, RecordFields, int_of, optional_list
from midstream_host.machine import inventory, nvidia, tpu, tpu_metrics

POLL_INTERVAL = 5.0  # seconds
Accelerator = Dict[str, Any]  # the fields of watch.model.Accelerator


class Accelerators:
    """Poller of the accelerators in a thread.

    nvidia-smi takes seconds, or hangs with its driver.
    """

    def __init__(
        self,
        devices: Optional[int],
        every: float = POLL_INTERVAL,
        smi: Optional[nvidia.Nvidia] = None,
        root: str = "",
        visible: Optional[Sequence[str]] = None,
    ) -> None:
        """Begin to poll.

        Args:
            devices: Number of virtual devices of the fleet file, instead of real ones.
            every: Seconds between two polls.
            smi: Queries of nvidia-smi.
            root: midstream's directory.
            visible: Entries of ``CUDA_VISIBLE_DEVICES`` of the fleet file; None: all GPUs count.
        """
        self._virtual = devices
        self._root = root  # midstream's directory: a process that names a run in it trains the run
        self._every = every
        self._nvidia = smi or nvidia.Nvidia(visible=visible)
        self._accelerators: List[Accelerator] = []
        self._facts: Dict[str, JsonValue] = {"driver": "", "cuda": "", "users": []}
        self._looked = threading.Event()
        if devices is None:
            threading.Thread(target=self._look, daemon=True).start()

    def latest(self, wait: float = 0.0) -> List[Accelerator]:
        """Result of the newest poll; waits up to ``wait`` seconds for the first."""
        if self._virtual is not None:
            return [{"index": index, "kind": "cpu"} for index in range(self._virtual)]
        self._looked.wait(wait)
        return self._accelerators

    def facts(self) -> RecordFields:
        """Return the driver, the newest CUDA it supports, and the accelerators' processes."""
        return self._facts

    def _look(self) -> None:
        while True:
            try:
                self._look_once()
            except Exception as error:  # noqa: BLE001  without this thread old values would count as live for ever
                sys.excepthook(type(error), error, error.__traceback__)
            else:
                if not self._accelerators and not self._nvidia.present:
                    return  # accelerators do not appear while a machine runs
            time.sleep(self._every)

    def _look_once(self) -> None:
        gpus, apps = self._nvidia.look(), self._nvidia.apps
        if not gpus and not self._nvidia.missing:
            gpus = tpus()
            apps = tpu_apps(gpus)
        users = inventory.processes(
            {int_of(pid) for device in gpus for pid in optional_list(device["pids"])}, apps, self._root
        )
        self._facts = {"driver": self._nvidia.driver, "cuda": self._nvidia.cuda, "users": users}
        self._accelerators = gpus
        self._looked.set()


def tpus(bus: str = "/sys/bus/pci/devices", proc: str = "/proc") -> List[Accelerator]:
    """One entry per JAX device. Metrics exist only while a process uses the chips."""
    ids = tpu.chips(bus)
    if not ids:
        return []
    pids = tpu.users(proc)
    metrics = tpu_metrics.read([tpu.HBM_TOTAL, tpu.HBM_USED, tpu.DUTY]) if pids else None
    return tpu.devices(ids, pids, metrics)


def tpu_apps(accelerators: List[Accelerator]) -> nvidia.Apps:
    """Return the memory of the process that uses the chips, if there is one.

    The runtime reports memory by device.
    """
    pids = {int_of(pid) for device in accelerators for pid in optional_list(device["pids"])}
    used = [int_of(device["memory_used"]) for device in accelerators if device.get("memory_used") is not None]
    return nvidia.Apps({}, {}, {pid: sum(used) for pid in pids} if len(pids) == 1 and used else {})
