"""Machine types of Compute Engine with TPUs.

Examples: ``tpu7x-standard-4t``, ``ct6e-standard-8t``, ``ct5p-hightpu-4t``.

https://cloud.google.com/compute/docs/tpus
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

# By what a machine type begins with: the generation's name in `midstream_engine.accelerator_types`.
GENERATIONS = {"ct5lp": "v5e", "ct5p": "v5p", "ct6e": "v6e", "tpu7x": "tpu7x"}
EXAMPLES = "tpu7x-standard-4t, ct6e-standard-4t, ct5p-hightpu-4t"
_MACHINE_TYPE = re.compile(r"(ct5lp|ct5p|ct6e|tpu7x)-[a-z]{2,20}-(\d{1,2})t(-tpu)?")
_TOPOLOGY = re.compile(r"\d{1,4}(x\d{1,4}){1,2}")


@dataclass(frozen=True)
class TpuMachine:
    """A machine type: its generation, and the chips of one machine."""

    generation: str
    chips: int

    def machines(self, topology: str | None) -> int | None:
        """Return the machines of a slice with this topology in chips; None if uneven."""
        if topology is None:
            return 1
        count = chips_of(topology)
        return None if count is None or count % self.chips else count // self.chips


def machine_of(machine_type: str) -> TpuMachine | None:
    """Return what a machine type has; None if it is not one with TPUs."""
    match = _MACHINE_TYPE.fullmatch(machine_type)
    return None if match is None or not int(match[2]) else TpuMachine(GENERATIONS[match[1]], int(match[2]))


def chips_of(topology: str) -> int | None:
    """Return the number of chips of ``2x2x4``; None if it is malformed."""
    if not _TOPOLOGY.fullmatch(topology):
        return None
    return math.prod(int(side) for side in topology.split("x")) or None
