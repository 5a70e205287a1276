"""Load, memory and disks of simulated machines: constants, in place of this machine's ``/proc``."""

from __future__ import annotations

from midstream_host.machine import gauges, tpu
from midstream_host.machine.rates import CounterRates
from simulation.operating_system import replace_everywhere

MEMORY = {"memory_total": 64 << 30, "memory_used": 8 << 30}  # bytes
DISK = {"disk_total": 1 << 40, "disk_free": 1 << 39}  # bytes


def install() -> None:
    """Replace what probes read of the hardware. Call it once."""
    replace_everywhere(gauges._ticks, lambda: (0, 0))
    replace_everywhere(gauges.memory, lambda: MEMORY)
    replace_everywhere(gauges.disk, lambda root: DISK)
    replace_everywhere(tpu.users, lambda: [])
    CounterRates._counters = lambda self: {}  # type: ignore[method-assign]
