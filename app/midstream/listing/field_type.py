"""A field of the items in a list: what columns, filters, sort and grouping read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from midstream import format
from midstream.listing.column import Column
from midstream.listing.filter_values import Kind
from midstream.listing.fleet_moment import FleetMoment


@dataclass(frozen=True)
class Field:
    """A named value of an item.

    ``get`` returns the value at a moment: a text, a tuple of texts, a number in the unit of ``kind`` (seconds, bytes,
    0..1, UTC seconds), or None where it is unknown. The value of a field that is ``timed`` changes with time alone.

    ``column`` shows it in lists, with the ``text`` of an item in a cell; None: by its kind. ``about`` is its line in
    the documentation, and the help of its gauge of Prometheus where ``gauge`` names one.
    """

    name: str
    kind: Kind
    get: Callable[[Any, FleetMoment], Any] = field(repr=False)
    timed: bool = False
    column: Column | None = None
    text: Callable[[Any, FleetMoment], str] | None = field(default=None, repr=False)
    about: str = ""
    gauge: str = ""
    beyond_reports: bool = False  # its values are read once a list names them: see `FleetFacts`

    def shown(self, item: object, moment: FleetMoment) -> str:
        """Return the text of an item's cell."""
        if self.text is not None:
            return self.text(item, moment)
        value = self.get(item, moment)
        return "" if value is None and self.kind in (Kind.TEXT, Kind.LIST, Kind.TIME) else _FORMS[self.kind](value)


def _any(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


_FORMS: Mapping[Kind, Callable[[Any], str]] = {
    Kind.TEXT: str,
    Kind.LIST: ", ".join,
    Kind.NUMBER: format.short,
    Kind.DURATION: format.seconds,
    Kind.SIZE: format.size,
    Kind.SHARE: format.percent,
    Kind.TIME: str,
    Kind.ANY: _any,
}


def group_name(value: Any) -> str:
    """Return the name of the group of items with this value; empty without a value."""
    return value if isinstance(value, str) else ", ".join(sorted(value))


class Fields(dict[str, Field]):
    """Fields by name, in order.

    ``families`` have fields that are made when they are named: beginning of the name -> field of a name.
    """

    def __init__(self, fields: Iterable[Field], families: Mapping[str, Callable[[str], Field]] | None = None) -> None:
        super().__init__()
        for entry in fields:
            column = entry.column
            self[entry.name] = entry if column is None else replace(entry, column=replace(column, field=entry.name))
        self._families = dict(families or {})

    def named(self, name: str) -> Field | None:
        """Return the field with this name, None if there is none."""
        if name in self:
            return self[name]
        make = next((make for begin, make in self._families.items() if name.startswith(begin) and name != begin), None)
        return make(name) if make is not None else None
