"""TPU slices that midstream created and that nothing in the fleet file needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from midstream.check.fleet_leftovers import AnyLeftover, SliceLeftover, SliceProblem, kept_unless_agreed
from midstream.providers import fleet_slices
from midstream.providers.provider import SliceStatus

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet


def find_slice_leftovers(
    fleet: Fleet,
    report: Callable[[str], None],
    *,
    remove: bool = False,
    agreed: Collection[AnyLeftover] | None = None,
) -> Iterator[SliceLeftover | SliceProblem]:
    """Yield midstream's slices that no target names, or that are preempted or failed.

    Targets are those of the fleet file; midstream created the slices. A slice that its owner has stopped can be
    started.

    Args:
        fleet: The fleet.
        report: Gets lines of progress of a deletion.
        remove: Delete those that are preempted or failed; the others may be in use.
        agreed: The leftovers that were listed and agreed to; None: all that are found.

    Raises:
        ProviderError: A slice could not be deleted.
    """
    if not (fleet.has_slices or fleet.google.projects):
        return
    slices = fleet_slices.list_slices(fleet)
    named = {fleet_slices.slice_path(name, target) for name, target in fleet.slices.items()}
    for slice_ in slices.slices:
        ended = slice_.status in (SliceStatus.PREEMPTED, SliceStatus.FAILED) and not slice_.stopped
        if not slice_.ours or (slice_.path in named and not ended):
            continue
        kept = "" if ended else f"it is {slice_.state}, and may be in use: midstream --delete {slice_.path}"
        leftover = SliceLeftover(slice_, kept)
        if remove:
            leftover = replace(leftover, kept=kept_unless_agreed(leftover, agreed))
        if remove and not leftover.kept:
            fleet_slices.delete(fleet, slice_.path, report)
            leftover = replace(leftover, removed=True)
        yield leftover
    yield from map(SliceProblem, slices.problems)
