"""Create the slice of a target."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from midstream.errors import MidstreamError
from midstream.providers import fleet_slices

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet


def create_slice(
    fleet: Fleet, name: str, say: Callable[[str], None], created: Callable[[], None] = lambda: None
) -> Fleet:
    """Create a target's slice and wait until its workers can be reached.

    Args:
        fleet: The fleet.
        name: The target.
        say: Gets lines of progress.
        created: Called as soon as the slice exists, and costs money.

    Returns:
        The fleet with the slice's workers.

    Raises:
        MidstreamError: It cannot be created, or not be reached; then the message says that it costs money.
    """
    target = fleet.slices[name]
    fleet_slices.provider_of(target).create(name, target, say)
    created()
    try:
        found = fleet_slices.with_slices(fleet, say, only=(name,))
        fleet_slices.wait_for_login(found, name, say)
    except MidstreamError as error:
        place = fleet_slices.slice_path(name, target)
        raise MidstreamError(f"{error.message}; {place} costs money: midstream --delete {name}", error.hint) from error
    return found
