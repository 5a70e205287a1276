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

    found: tuple[tuple[Slice, str], ...] = ()
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
    existing = {each.path for each in inventory.slices if each.status not in ended or each.stopped}
    missing = [creatable_slice(fleet, name) for place, name in names.items() if place not in existing]
    found = tuple((each, names.get(each.path, "")) for each in inventory.slices)
    return SliceListing(found, tuple(inventory.problems), creatable=tuple(filter(None, missing)))


def remarks(each: Slice) -> tuple[str, ...]:
    """Return remarks about a slice: its health, its queue and the reason."""
    health = "" if each.health in ("", "HEALTHY") else each.health.lower().replace("_", " ")
    queued = f"queue: {each.queued}" if each.queued not in ("", "ACTIVE", each.state) else ""
    return tuple(filter(None, (health, queued, each.why)))
