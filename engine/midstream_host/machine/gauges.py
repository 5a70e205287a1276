"""Usage of processor, memory and disk. Runs on the host; standard library only."""

from __future__ import annotations

import os
import platform
import re
import shutil
import time
from typing import Dict, Optional, Tuple

from midstream_core.json_types import RecordFields

SAMPLE = 0.05  # seconds between two readings at least


def identity() -> RecordFields:
    """Names and versions of this machine, which do not change while it runs."""
    libc = "".join(platform.libc_ver()) or "unknown libc"
    kernel = ".".join(platform.release().split(".")[:2])
    return {
        "hostname": platform.node(),
        "platform": "{}-{} {} {}".format(platform.system(), kernel, platform.machine(), libc),
        "python": platform.python_version(),
        "cpus": os.cpu_count() or 1,
    }


class Processor:
    """Utilization of the processors between two readings."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._before = _ticks()

    def used(self) -> float:
        """Return the utilization (0..1) since the last reading.

        The first reading waits for a sample.
        """
        time.sleep(max(0.0, SAMPLE - (time.monotonic() - self._at)))
        before, self._before = self._before, _ticks()
        self._at = time.monotonic()
        return busy(before, self._before)


def _ticks() -> Tuple[int, int]:
    """Return the (busy, all) clock ticks of all processors since boot (/proc/stat)."""
    with open("/proc/stat", encoding="ascii") as file:
        return parse_ticks(file.readline()) or (0, 0)


def parse_ticks(text: str) -> Optional[Tuple[int, int]]:
    """Parse the line ``cpu ...`` of /proc/stat; None for another line."""
    # user nice system idle iowait irq softirq steal; guest time is counted in user already.
    words = text.split()[:9]
    if len(words) < 5 or words[0] != "cpu" or not all(re.fullmatch(r"\d{1,19}", word, re.ASCII) for word in words[1:]):
        return None
    fields = [int(word) for word in words[1:]]
    idle = sum(fields[3:5])
    return sum(fields) - idle, sum(fields)


def busy(before: Tuple[int, int], now: Tuple[int, int]) -> float:
    """Utilization (0..1) between two readings of ticks."""
    used, total = now[0] - before[0], now[1] - before[1]
    return round(min(1.0, max(0.0, used / total)), 3) if total > 0 else 0.0


def memory() -> Dict[str, int]:
    """Total and used bytes of memory; available memory is not used."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return parse_memory(file.read())


def parse_memory(text: str) -> Dict[str, int]:
    """Parse /proc/meminfo; kernels before 3.14 have no MemAvailable."""
    lines = re.findall(r"^(\w+):\s*(\d{1,15}) kB", text, re.MULTILINE | re.ASCII)
    sizes = {name: int(count) * 1024 for name, count in lines}
    total = sizes.get("MemTotal", 0)
    free = sizes.get("MemAvailable", sizes.get("MemFree", total))
    return {"memory_total": total, "memory_used": max(0, total - free)}


def disk(root: str) -> Dict[str, int]:
    """Bytes of the file system of ``root`` or of its nearest existing parent."""
    while not os.path.isdir(root) and root != os.path.dirname(root):
        root = os.path.dirname(root)
    usage = shutil.disk_usage(root)
    return {"disk_total": usage.total, "disk_free": usage.free}
