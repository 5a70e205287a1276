"""On a CPU the devices' memory is the process's own: what a step frees, the next one is to find still there.

XLA allocates a program's temporary buffers for each call. glibc hands blocks of that size back to the system at once,
and every step then faults all of its pages in again: a quarter of the processor's time, where it was measured.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping

# Of malloc.h. A second arena cannot grow beyond 64 MiB and maps larger blocks whatever M_MMAP_MAX says: one is enough.
_OPTIONS = {"M_ARENA_MAX": (-8, 1), "M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, 2**31 - 1)}


def keep_host_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Keep freed memory where jax is told to run on the CPU; returns whether. To be called before any thread starts.

    The process stays as large as it was at its largest.
    """
    if environment.get("JAX_PLATFORMS") != "cpu" or not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return all(mallopt(option, value) == 1 for option, value in _OPTIONS.values())
