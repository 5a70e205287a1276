"""Difference between a given config and the resolved one of a run.

An engine replaces a run's config by the resolved one: with every default, and its values in other forms.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from midstream_core.json_types import JsonValue

_NUMBER = re.compile(r"[+-]?(\d[\d_]*)?\.?\d+([eE][+-]?\d+)?|[+-]?\d[\d_]*\.?")  # YAML reads 1e-3 as a text


def first_difference(
    given: Mapping[str, JsonValue], own: Mapping[str, JsonValue], without: Collection[str] = (), prefix: str = ""
) -> str:
    """Return the first value that certainly differs; empty without one.

    A name that ``own`` lacks may be another spelling of one that it has, and a text may be a number with a unit: they
    prove no difference.

    Args:
        given: The config that is given.
        own: The run's config.
        without: Dotted names that are not compared, with what is below them.
        prefix: Dotted name of both, with a dot at its end.
    """
    for key, value in given.items():
        name = f"{prefix}{key}"
        if key not in own or any(name == dotted or name.startswith(f"{dotted}.") for dotted in without):
            continue
        before = own[key]
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if difference := first_difference(value, before, without, f"{name}."):
                return difference
        elif _differ(value, before):
            return f"{name} is {before}, not {value}"
    return ""


def _differ(value: JsonValue, before: JsonValue) -> bool:
    """Return whether two values are certainly different."""
    if isinstance(value, list) or isinstance(before, list):
        given, other = (side if isinstance(side, list) else [side] for side in (value, before))
        if len(given) != len(other):
            return None not in (value, before)
        return any(
            bool(first_difference(a, b)) if isinstance(a, Mapping) and isinstance(b, Mapping) else _differ(a, b)
            for a, b in zip(given, other, strict=True)
        )
    if isinstance(value, Mapping) or isinstance(before, Mapping) or None in (value, before):
        return False  # one is a short form of the other, or a default
    first, second = _number(value), _number(before)
    if first is not None and second is not None:
        return first != second
    if isinstance(value, bool) or isinstance(before, bool):
        return isinstance(value, bool) and isinstance(before, bool) and value != before
    return first is None and second is None and str(value).casefold() != str(before).casefold()


def _number(value: JsonValue) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    return float(value.replace("_", "")) if isinstance(value, str) and _NUMBER.fullmatch(value) else None
