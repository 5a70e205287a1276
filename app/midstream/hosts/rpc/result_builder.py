"""Construction of results: dataclasses of an annotation from a checked JSON value."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Any

Builder = Callable[[Any], Any]


def build(annotation: object, value: Any) -> Any:
    """Build a value of ``annotation``.

    Raises:
        RecordError: A record rejects its JSON.
    """
    builder = builder_of(annotation)
    return value if builder is None else builder(value)


@functools.cache
def builder_of(annotation: Any) -> Builder | None:
    """Return a function that builds ``annotation`` from JSON, or None.

    None: the JSON value is the result.
    """
    if getattr(annotation, "__metadata__", ()):
        return builder_of(annotation.__origin__)
    if dataclasses.is_dataclass(annotation):
        return _dataclass(typing.cast(Any, annotation))
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Union or isinstance(annotation, types.UnionType):
        builders = [builder_of(kind) for kind in arguments if kind is not type(None)]
        if not any(builders):
            return None
        if len(builders) > 1:
            raise TypeError(f"a result cannot be built of the alternatives {annotation!r}")
        return lambda value: None if value is None else typing.cast(Builder, builders[0])(value)
    if origin is list or (origin is tuple and arguments[1:] == (Ellipsis,)):
        return _sequence(origin, builder_of(arguments[0]))
    if origin is tuple:
        return _tuple([builder_of(argument) for argument in arguments])
    if origin is dict:
        item = builder_of(arguments[1])
        return None if item is None else lambda value: {key: item(element) for key, element in value.items()}
    return None


def _dataclass(kind: Any) -> Builder:
    if hasattr(kind, "from_json"):
        return lambda value: kind.from_json(value)
    hints = typing.get_type_hints(kind, include_extras=True)
    builders = {field.name: builder_of(hints[field.name]) for field in dataclasses.fields(kind)}

    def build_fields(value: dict[str, Any]) -> object:
        fields = {}
        for name, builder in builders.items():
            if name in value:
                fields[name] = value[name] if builder is None else builder(value[name])
        return kind(**fields)

    return build_fields


def _sequence(kind: Any, item: Builder | None) -> Builder | None:
    if item is None:
        return None if kind is list else tuple
    return lambda value: kind(item(element) for element in value)


def _tuple(items: list[Builder | None]) -> Builder:
    return lambda value: tuple(
        element if item is None else item(element) for item, element in zip(items, value, strict=True)
    )
