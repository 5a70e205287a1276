"""A provider is its target, a class and a line in the registry: a toy shows what reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

import pytest

from midstream.compare.candidates import accelerators_of_target, price_of_target
from midstream.errors import UsageError
from midstream.fleet.fleet_file import parse_fleet
from midstream.fleet.slice_target import SliceTarget, TargetConfig
from midstream.providers import fleet_slices
from midstream.providers.provider import Inventory, Progress, Slice, SliceStatus, Worker
from midstream_core import accelerator_types
from midstream_core.accelerator_types import AcceleratorType

TEXT = """
targets:
  toys:
    type: toy
    project: p
    zone: z
    size: 2
    price_per_hour: 3.5
"""


@dataclass(frozen=True)
class ToyTarget(SliceTarget):
    """Machines of a provider that exists in this test alone."""

    size: int = 1

    @property
    def kind(self) -> str:
        return f"toys of {self.size}"

    @property
    def device_count(self) -> int | None:
        return 8 * self.size

    @property
    def accelerators(self) -> AcceleratorType | None:
        return accelerator_types.lookup(f"h100x{8 * self.size}")

    def check(self, where: str) -> None:
        if self.size > 4:
            raise UsageError(f"{where}.size is {self.size}", "1 to 4")


class ToyProvider:
    """A `Provider` whose machines are always there."""

    def inventory(self, zones: Sequence[tuple[str, str]]) -> Inventory:
        return Inventory(tuple(self._slice(project, zone, "toys") for project, zone in zones))

    def find(self, name: str, target: SliceTarget) -> Slice | None:
        return self._slice(target.project, target.zone, target.name or name)

    def create(self, name: str, target: SliceTarget, progress: Progress, cancel: Event | None = None) -> Slice:
        return self._slice(target.project, target.zone, name)

    def delete(self, path: str, progress: Progress) -> None:
        progress(f"{path} is deleted")

    def grant_access(
        self, name: str, target: SliceTarget, slice_: Slice, progress: Progress, *, touch: bool
    ) -> dict[str, dict[str, Any]]:
        return {
            f"{name}-{index}": {"type": "ssh", "address": worker.external}
            for index, worker in enumerate(slice_.workers)
        }

    @staticmethod
    def _slice(project: str, zone: str, name: str) -> Slice:
        return Slice(
            project,
            zone,
            name,
            SliceStatus.READY,
            "READY",
            workers=(Worker("10.0.0.1", "192.0.2.1"), Worker("10.0.0.2", "192.0.2.2")),
        )


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the toy, as the decorator of its target and its line would."""
    monkeypatch.setitem(TargetConfig._choice_registry, "toy", ToyTarget)
    monkeypatch.setitem(fleet_slices.PROVIDERS, ToyTarget, ToyProvider)


def test_workers_of_the_provider_become_hosts() -> None:
    fleet = fleet_slices.with_slices(parse_fleet(TEXT, "fleet.yaml"), print)
    assert fleet.hosts_of("toys") == ("toys-0", "toys-1")
    assert fleet.target("toys").slice is not None
    assert not fleet.target("toys").describes_itself


def test_listing_and_deletion_reach_the_provider() -> None:
    fleet, said = parse_fleet(TEXT, "fleet.yaml"), list[str]()
    assert [each.path for each in fleet_slices.list_slices(fleet).slices] == ["p/z/toys"]
    fleet_slices.delete(fleet, "p/z/toys", said.append)
    assert said == ["p/z/toys is deleted"]


def test_comparison_and_price_read_the_target() -> None:
    fleet = parse_fleet(TEXT, "fleet.yaml")
    assert accelerators_of_target(fleet, "toys", None) == accelerator_types.parse("h100x16")
    assert price_of_target(fleet, "toys") == 3.5
    assert "toys of 2, on demand" in fleet_slices.price_text(fleet.slices["toys"])


def test_fields_of_the_target_are_checked() -> None:
    with pytest.raises(UsageError, match=r"targets\.toys\.size is 9"):
        parse_fleet(TEXT.replace("size: 2", "size: 9"), "fleet.yaml")
