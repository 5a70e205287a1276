"""A field of the items in a list: what filters, sort and grouping read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from midstream.listing.filter_values import Kind
from midstream.listing.fleet_moment import FleetMoment


@dataclass(frozen=True)
class Field:
    """A named value of an item.

    ``get`` returns the value at a moment: a text, a tuple of texts, a number in the unit of ``kind`` (seconds, bytes,
    0..1, UTC seconds), or None where it is unknown. The value of a field that is ``timed`` changes with time alone.
    """

    name: str
    kind: Kind
    get: Callable[[Any, FleetMoment], Any] = field(repr=False)
    timed: bool = False


Fields = Mapping[str, Field]


def by_name(fields: Iterable[Field]) -> dict[str, Field]:
    """Return the fields by their names, in order."""
    return {field.name: field for field in fields}
