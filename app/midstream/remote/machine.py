"""The machine itself: processor, memory, disk, names. Runs on the host; standard library only."""

from __future__ import annotations

import os
import platform
import shutil
import time
from typing import Any, Dict, Tuple

SAMPLE = 0.1  # seconds of processor time that a reading covers at least


def identity() -> Dict[str, Any]:
    """What does not change while the host runs."""
    libc = "".join(platform.libc_ver()) or "unknown libc"
    kernel = ".".join(platform.release().split(".")[:2])
    return {
        "hostname": platform.node(),
        "platform": "{}-{} {} {}".format(platform.system(), kernel, platform.machine(), libc),
        "python": platform.python_version(),
        "cpus": os.cpu_count() or 1,
    }


class Processor:
    """How busy the processors were between two readings."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._before = _ticks()

    def used(self) -> float:
        """0..1 since the last reading; the first one waits for a sample."""
        time.sleep(max(0.0, SAMPLE - (time.monotonic() - self._at)))
        now = _ticks()
        busy, total = now[0] - self._before[0], now[1] - self._before[1]
        self._before, self._at = now, time.monotonic()
        return min(1.0, max(0.0, busy / total)) if total > 0 else 0.0


def _ticks() -> Tuple[int, int]:
    """(busy, all) clock ticks of all processors since boot, from the first line of /proc/stat."""
    with open("/proc/stat", encoding="ascii") as file:
        # user nice system idle iowait irq softirq steal; guest time is counted in user already.
        fields = [int(field) for field in file.readline().split()[1:9]]
    idle = sum(fields[3:5])
    return sum(fields) - idle, sum(fields)


def memory() -> Dict[str, int]:
    """Bytes; used is what could not be had."""
    found = {}
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, rest = line.partition(":")
            found[name] = int(rest.split()[0]) * 1024
    total = found["MemTotal"]
    return {"memory_total": total, "memory_used": total - found.get("MemAvailable", found["MemFree"])}


def disk(root: str) -> Dict[str, int]:
    """Bytes of the file system that holds ``root``, or would."""
    while not os.path.isdir(root) and root != os.path.dirname(root):
        root = os.path.dirname(root)
    usage = shutil.disk_usage(root)
    return {"disk_total": usage.total, "disk_free": usage.free}
