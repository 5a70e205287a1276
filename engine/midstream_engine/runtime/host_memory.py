"""Allocator settings for training on a CPU, whose memory is the process's own.

XLA allocates a program's temporary buffers for each call. By default glibc returns blocks of that size to the system
immediately, and every step faults all of its pages in again, which took a quarter of the processor's time.

The heap that keeps them never shrinks by itself, and cannot use what is free between live blocks: after each save the
free pages are returned. The next step faults in those that it needs.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
import sys
import threading
from collections.abc import Mapping

# Of malloc.h. A second arena cannot grow beyond 64 MiB and maps larger blocks whatever M_MMAP_MAX says: one is enough.
_OPTIONS = {"M_ARENA_MAX": (-8, 1), "M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, 2**31 - 1)}


# Files of devices that jax may train on, and the packages through which it does.
_NVIDIA_FILES = ("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/dxg")
_OTHER_FILES = ("/dev/kfd", "/dev/accel*", "/dev/vfio/[0-9]*")
_PACKAGES = ("jax_plugins", "libtpu")

_keeps = threading.Event()  # this process keeps freed memory


def keep_host_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Keep freed memory in the process if jax trains on the CPU; return whether.

    Call it before any thread starts.

    The process keeps its largest size until `release_free_memory`.
    """
    if not sys.platform.startswith("linux") or not devices_are_cpus(environment):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    if not all(mallopt(option, value) == 1 for option, value in _OPTIONS.values()):
        return False
    _keeps.set()
    return True


def release_free_memory() -> None:
    """Return the heap's free pages to the system, where `keep_host_memory` keeps them."""
    if _keeps.is_set():
        ctypes.CDLL(None).malloc_trim(0)


def devices_are_cpus(environment: Mapping[str, str]) -> bool:
    """Return whether jax will train on the CPU.

    Does not import jax, which starts threads.

    ``JAX_PLATFORMS`` decides if it is set. Else jax takes an accelerator if this host has the device's file and a
    package for it.
    """
    chosen = environment.get("JAX_PLATFORMS", "").split(",")[0]
    if chosen:
        return chosen == "cpu"
    hidden = environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    patterns = _OTHER_FILES if hidden else (*_NVIDIA_FILES, *_OTHER_FILES)
    return not any(map(glob.glob, patterns)) or not any(map(importlib.util.find_spec, _PACKAGES))


def tunables() -> str:
    """Return the settings as ``GLIBC_TUNABLES``, for programs without their own."""
    return ":".join(f"glibc.malloc.{name.removeprefix('M_').lower()}={value}" for name, (_, value) in _OPTIONS.items())
