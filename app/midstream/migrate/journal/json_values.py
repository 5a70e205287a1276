"""Read dataclasses from JSON values, checked against their annotations."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

from midstream_core import json_shapes, records
from midstream_core.json_types import RunConfig


def fields_of(cls: type[Any], value: Any, where: str = "") -> dict[str, Any]:
    """Return the fields of dataclass ``cls`` that a JSON value has.

    Fields that a newer version added are left out; lists become tuples.

    Raises:
        RecordError: a field is missing or has another type; the message names ``where`` and the field.
    """
    try:
        json_shapes.check(cls, value)
    except json_shapes.ShapeError as error:
        raise records.RecordError(f"{where or cls.__name__}: {error}") from None
    fields = {field.name: value[field.name] for field in dataclasses.fields(cls) if field.name in value}
    return {name: tuple(cast("list[Any]", item)) if isinstance(item, list) else item for name, item in fields.items()}


def section(config: RunConfig, name: str) -> RunConfig:
    """Return the section ``name`` of a checked config; empty if absent or null."""
    return config.get(name) or dict[str, Any]()
