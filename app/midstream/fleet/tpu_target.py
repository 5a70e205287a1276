"""Target of the Cloud TPU API."""

from __future__ import annotations

from dataclasses import dataclass

from midstream.errors import UsageError
from midstream.fleet.machine_type import chips_of
from midstream.fleet.slice_target import SliceTarget, TargetConfig
from midstream_core import accelerator_types
from midstream_core.accelerator_types import AcceleratorType
from midstream_core.accelerators import TPU_GENERATIONS


@TargetConfig.register_subclass("tpu")
@dataclass(frozen=True)
class TpuTarget(SliceTarget):
    """A slice of the Cloud TPU API, v2 to v6e.

    docs/reference/fleet-file.md describes each field.
    """

    accelerator_type: str = ""
    topology: str | None = None  # with accelerator_type as a bare generation: v5p and 2x2x4
    runtime_version: str = ""
    queued: bool = False  # requested in a queue
    slices: int = 1  # more than one is Multislice, which is refused

    @property
    def kind(self) -> str:
        return " ".join(filter(None, (self.accelerator_type, self.topology)))

    @property
    def waits(self) -> bool:
        return self.queued or self.flex_start

    @property
    def has_metadata(self) -> bool:
        return True

    @property
    def device_count(self) -> int | None:
        if self.is_virtual:
            return None
        kind, _, count = self.accelerator_type.partition("-")
        generation = TPU_GENERATIONS.get(kind)
        if self.topology:
            chips = chips_of(self.topology)
            return None if chips is None else chips * (generation.devices_per_chip if generation else 1)
        return int(count) // generation.units_per_device if generation and count.isdecimal() else None

    @property
    def accelerators(self) -> AcceleratorType | None:
        kind = self.accelerator_type
        generation = "v5e" if kind.startswith("v5litepod") else kind.partition("-")[0]
        return accelerator_types.lookup(f"{generation}:{self.topology}" if self.topology else kind)

    def check(self, where: str) -> None:
        if self.create and not (self.accelerator_type and self.runtime_version):
            hint = "accelerator_type: v3-32 and runtime_version: tpu-ubuntu2204-base: docs/reference/fleet-file.md"
            raise UsageError(f"{where} has create: true and lacks accelerator_type or runtime_version", hint)
        if self.accelerator_type.startswith(("tpu7x", "7x", "v7")):
            raise UsageError(
                f"{where}: the Cloud TPU API has no {self.accelerator_type}",
                "type: gce, and machine_type: tpu7x-standard-4t: TPU7x and later come through Compute Engine",
            )
        if (self.reservation or self.calendar) and not self.queued:
            hint = "queued: true, the only way to name one; or reserved: true alone, for any reservation of the project"
            raise UsageError(f"{where} names a reservation, and is not queued", hint)
        if self.flex_start and not self.queued:
            raise UsageError(f"{where} is flex_start, and is not queued", "queued: true, the only way to request it")
        if self.slices != 1:
            raise UsageError(f"{where}.slices is {self.slices}: Multislice is not supported", "slices: 1")
