"""Memory and caches of this machine: what a measurement finds, and how much a process takes."""

from __future__ import annotations

import gc
import mmap
import os
from collections.abc import Callable
from pathlib import Path


def drop_caches(directory: Path) -> None:
    """Files of ``directory`` out of the page cache, so that reading reads the disk."""
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def touch(size: int) -> None:
    """Memory of ``size`` bytes that the host has given to this machine, and that is free."""
    import numpy as np

    gc.collect()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    np.frombuffer(memory, np.uint8).fill(1)


def memory_line(name: str) -> int:
    """Bytes that /proc/self/status reports for this process: ``VmRSS`` now, ``VmHWM`` the most since it was reset."""
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def peak_of(work: Callable[[], object]) -> int:
    """Bytes by which this process grew at most while ``work`` ran, by the kernel's own count."""
    gc.collect()
    before = memory_line("VmRSS")
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # resets VmHWM
    result = work()
    grown = memory_line("VmHWM") - before
    del result
    return grown
