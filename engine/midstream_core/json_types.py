"""Types of JSON values, and functions that narrow them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence, Union

if TYPE_CHECKING:
    JsonValue = Union[None, bool, int, float, str, Sequence["JsonValue"], Mapping[str, "JsonValue"]]
else:
    JsonValue = object  # json_shapes accepts any value for it

JsonObject = Mapping[str, JsonValue]

# Objects whose fields are checked before they are read, or that have a field's own type.
RecordFields = Dict[str, Any]  # a JSON object whose fields are checked before they are read
LoggedRow = Mapping[str, Any]  # a row of metrics: columns by name
RunConfig = Mapping[str, Any]  # a resolved configuration of a run, or a section of it
ReportLine = Mapping[str, Any]  # a line of a program on a host


def object_or_empty(value: JsonValue) -> Dict[str, JsonValue]:
    """Return a JSON object, or an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def list_or_empty(value: JsonValue) -> List[JsonValue]:
    """Return a JSON list, or an empty one for any other value."""
    return value if isinstance(value, list) else []


def optional_object(value: JsonValue) -> Mapping[str, JsonValue]:
    """Return a JSON object; an empty one for null and other empty values.

    Raises TypeError for any other value.
    """
    if value and not isinstance(value, Mapping):
        raise TypeError(f"expected an object, found {type(value).__name__}")
    return value if isinstance(value, Mapping) else {}


def optional_list(value: JsonValue) -> Sequence[JsonValue]:
    """Return a JSON list; an empty one for null and other empty values.

    Raises TypeError for any other value.
    """
    if value and not isinstance(value, (list, tuple)):
        raise TypeError(f"expected a list, found {type(value).__name__}")
    return value if isinstance(value, (list, tuple)) else []


def float_of(value: JsonValue) -> float:
    """Return a number, or the number in a text.

    Raises TypeError or ValueError for any other value.
    """
    if isinstance(value, (int, float, str)):
        return float(value)
    raise TypeError(f"expected a number, found {type(value).__name__}")


def int_of(value: JsonValue) -> int:
    """Return an integer, a number cut to one, or the integer in a text.

    Raises TypeError or ValueError for any other value.
    """
    if isinstance(value, (int, float, str)):
        return int(value)
    raise TypeError(f"expected an integer, found {type(value).__name__}")


def str_of(value: JsonValue) -> str:
    """Return a text. Raises TypeError for any other value."""
    if isinstance(value, str):
        return value
    raise TypeError(f"expected a text, found {type(value).__name__}")
