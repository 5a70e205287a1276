"""List the slices of the fleet file's projects and zones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from midstream.operations.create_target import CreatableTarget, creatable_slice
from midstream.providers import fleet_slices
from midstream.providers.provider import Slice, SliceStatus

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet


@dataclass(frozen=True)
class SliceListing:
    """The provider's slices, each with the name of its target (or an empty string).

    ``problems`` are projects and zones that could not be listed. ``configured`` is False where the fleet file names no
    project. ``creatable`` are targets whose slice can be created.
    """

    slices: tuple[tuple[Slice, str], ...] = ()
    problems: tuple[str, ...] = ()
    configured: bool = True
    creatable: tuple[CreatableTarget, ...] = ()


def list_slices(fleet: Fleet) -> SliceListing:
    """Return the slices, and the targets whose slice is missing."""
    names = {fleet_slices.slice_path(name, target): name for name, target in fleet.slices.items()}
    if not names and not fleet.google.projects:
        return SliceListing(configured=False)
    inventory = fleet_slices.list_slices(fleet)
    ended = (SliceStatus.PREEMPTED, SliceStatus.FAILED)
    existing = {slice_.path for slice_ in inventory.slices if slice_.status not in ended or slice_.stopped}
    missing = [creatable_slice(fleet, name) for place, name in names.items() if place not in existing]
    slices = tuple((slice_, names.get(slice_.path, "")) for slice_ in inventory.slices)
    return SliceListing(slices, tuple(inventory.problems), creatable=tuple(filter(None, missing)))


def remarks(slice_: Slice) -> tuple[str, ...]:
    """Return remarks about a slice: its health, its queue and the reason."""
    health = "" if slice_.health in ("", "HEALTHY") else slice_.health.lower().replace("_", " ")
    queued = f"queue: {slice_.queued}" if slice_.queued not in ("", "ACTIVE", slice_.state) else ""
    return tuple(filter(None, (health, queued, slice_.why)))
