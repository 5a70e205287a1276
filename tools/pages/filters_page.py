"""The tables of fields in docs/reference/filters.md, from the fields of lists."""

from __future__ import annotations

from midstream.listing import fleet_fields
from midstream.listing.field_type import Field, Fields
from pages import markdown

LISTS = {"runs": fleet_fields.RUNS, "hosts": fleet_fields.HOSTS, "migrations": fleet_fields.MIGRATIONS}


def sections() -> dict[str, str]:
    """Return the table of each list by the name of its section."""
    return {name: _table(fields) for name, fields in LISTS.items()}


def _table(fields: Fields) -> str:
    return markdown.table(("field", "column", "is", ""), [_row(field) for field in fields.values()])


def _row(field: Field) -> tuple[str, ...]:
    column = field.column
    title = "" if column is None else f"{column.title}, once chosen" if column.extra else column.title
    return f"`{field.name}`", title, field.kind.value, field.about
