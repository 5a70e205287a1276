"""Target of Compute Engine."""

from __future__ import annotations

from dataclasses import dataclass

from midstream.counts import count
from midstream.errors import UsageError
from midstream.fleet.machine_type import EXAMPLES, machine_of
from midstream.fleet.quantities import parse_duration
from midstream.fleet.slice_target import SliceTarget, TargetConfig
from midstream_core import accelerator_types
from midstream_core.accelerator_types import AcceleratorType
from midstream_core.accelerators import TPU_GENERATIONS

MAX_MACHINE_WAIT = 7200.0  # seconds that Compute Engine keeps the request for one machine


@TargetConfig.register_subclass("gce")
@dataclass(frozen=True)
class ComputeTarget(SliceTarget):
    """TPU slice on Compute Engine, v5p and later: one machine, or a group of them.

    A group has a topology.
    """

    machine_type: str = ""  # tpu7x-standard-4t, ct6e-standard-4t, ct5p-hightpu-4t
    topology: str | None = None  # of several machines: 2x2x2; None: one machine
    image: str = ""  # projects/PROJECT/global/images/family/FAMILY; empty: Google's of that generation
    boot_disk_size: int = 200  # GB
    slices: int = 1  # more than one is Multislice, which is refused

    @property
    def kind(self) -> str:
        return " ".join(filter(None, (self.machine_type, self.topology)))

    @property
    def device_count(self) -> int | None:
        machine = machine_of(self.machine_type)
        machines = machine.machines(self.topology) if machine is not None else None
        if self.is_virtual or machine is None or machines is None:
            return None
        return machines * machine.chips * TPU_GENERATIONS[machine.generation].devices_per_chip

    @property
    def accelerators(self) -> AcceleratorType | None:
        machine = machine_of(self.machine_type)
        if machine is None:
            return None
        generation = machine.generation
        kind = f"{generation}-{machine.chips * (2 if generation in ('v5p', 'tpu7x') else 1)}"  # they count cores
        return accelerator_types.lookup(f"{generation}:{self.topology}" if self.topology else kind)

    def check(self, where: str) -> None:
        machine = machine_of(self.machine_type)
        if machine is None and (self.create or self.machine_type):
            raise UsageError(f"{where}.machine_type is {self.machine_type!r}", f"one with TPUs: {EXAMPLES}")
        if machine is not None and machine.machines(self.topology) is None:
            raise UsageError(
                f"{where}: {self.machine_type} has {count(machine.chips, 'chip')}, which do not make a topology of "
                f"{self.topology}",
                "topology: as 2x2x2, a multiple of the chips of one machine; without it one machine is created",
            )
        if self.create and machine is not None and machine.generation == "v5e":
            raise UsageError(f"{where}: Compute Engine creates no v5e", "type: tpu, and accelerator_type: v5litepod-4")
        if self.reserved and not self.reservation:
            raise UsageError(
                f"{where} is reserved and names no reservation",
                "reservation: NAME; without a name Compute Engine falls back to the full price of on demand",
            )
        if self.flex_start and self.topology is None and parse_duration(self.valid_until) > MAX_MACHINE_WAIT:
            raise UsageError(
                f"{where}: a single machine waits for flex-start capacity for 2h at most, and valid_until is "
                f"{self.valid_until}",
                "valid_until: 2h; a group (topology:) waits longer",
            )
        if not 10 <= self.boot_disk_size <= 65536:
            raise UsageError(f"{where}.boot_disk_size is {self.boot_disk_size}", "10 to 65536 GB")
        if self.slices != 1:
            raise UsageError(f"{where}.slices is {self.slices}: Multislice is not supported", "slices: 1")
