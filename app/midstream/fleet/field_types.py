"""Types of the fleet file's fields, in words for an error.

draccus' own messages name its classes and Python's types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

_FORMS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "list[str]": "a list: [TEXT, ...]",
    "list[int]": "a list of numbers: [FIRST, LAST]",
    "dict[str, str]": "names and values: {NAME: VALUE}",
    "dict[str, Any]": "names and values: {NAME: VALUE}",
    "ContainerConfig": "{image: IMAGE, runtime: docker}",
}


def wrong_field(section: str, entries: Mapping[str, Mapping[str, Any]], base: Any) -> tuple[str, str] | None:
    """Return the first field of another type, and the form that it has to have.

    Args:
        section: ``hosts`` or ``targets``, for the message.
        entries: Each entry's fields by its name; the type of each is known.
        base: The class whose choices are the types of entries.
    """
    for name, entry in entries.items():
        kind = base.get_known_choices()[entry["type"]]
        types = {field.name: str(field.type).removesuffix(" | None") for field in dataclasses.fields(kind)}
        for key, value in entry.items():
            if key in types and value is not None and not _fits(value, types[key]):
                return f"{section}.{name}.{key} is {_shown(value)}", _FORMS[types[key]]
    return None


def _fits(value: Any, kind: str) -> bool:
    if kind.startswith("list"):
        item = kind.removeprefix("list[").removesuffix("]")
        return isinstance(value, list) and all(_fits(element, item) for element in value)
    if kind.startswith("dict") or kind == "ContainerConfig":
        return isinstance(value, dict)
    if kind == "str":
        return not isinstance(value, list | dict)
    try:
        return kind == "bool" or {"int": int, "float": float}[kind](value) is not None
    except (TypeError, ValueError):
        return False


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else "a list" if isinstance(value, list) else str(value)
