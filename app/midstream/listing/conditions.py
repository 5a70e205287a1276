"""Conditions that a parsed filter consists of."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from typing_extensions import override

from midstream.listing.field_type import Field
from midstream.listing.filter_values import Kind, Span
from midstream.listing.fleet_moment import FleetMoment
from midstream.listing.linear_pattern import LinearPattern

KEYWORDS = ("AND", "OR", "NOT")
_SEPARATOR = "\n"  # of the texts of an item
_PLAIN = re.compile(r"[\w.,/+-]+")


class Condition(ABC):
    """A condition on an item of a list.

    ``str`` gives a filter that parses to the same condition.
    """

    @abstractmethod
    def holds(self, item: object, moment: FleetMoment, text: str | None = None) -> bool:
        """Return True if the item passes.

        ``text`` is the item's `search_text`, for a caller that has it: then words are searched in it.
        """

    @abstractmethod
    def fields(self) -> Iterator[Field]:
        """Yield the fields that the condition reads."""

    def narrows(self, other: Condition) -> bool:
        """Return True if each item that passes is known to pass ``other`` too."""
        if isinstance(other, AllOf):
            return all(map(self.narrows, other.parts))
        return self == other

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class AllOf(Condition):
    """Holds where every part holds; without parts always."""

    parts: tuple[Condition, ...]

    @override
    def holds(self, item: object, moment: FleetMoment, text: str | None = None) -> bool:
        return all(condition.holds(item, moment, text) for condition in self.parts)

    @override
    def fields(self) -> Iterator[Field]:
        return chain.from_iterable(condition.fields() for condition in self.parts)

    @override
    def narrows(self, other: Condition) -> bool:
        if super().narrows(other) or isinstance(other, AllOf):
            return super().narrows(other)
        return any(condition.narrows(other) for condition in self.parts)

    @override
    def __str__(self) -> str:
        return " ".join(
            f"({condition})" if isinstance(condition, AnyOf | AllOf) else str(condition) for condition in self.parts
        )


@dataclass(frozen=True)
class AnyOf(Condition):
    """Holds where one part holds."""

    parts: tuple[Condition, ...]

    @override
    def holds(self, item: object, moment: FleetMoment, text: str | None = None) -> bool:
        return any(condition.holds(item, moment, text) for condition in self.parts)

    @override
    def fields(self) -> Iterator[Field]:
        return chain.from_iterable(condition.fields() for condition in self.parts)

    @override
    def __str__(self) -> str:
        return " OR ".join(
            f"({condition})" if isinstance(condition, AnyOf) else str(condition) for condition in self.parts
        )


@dataclass(frozen=True)
class Not(Condition):
    """Holds where its condition does not."""

    condition: Condition

    @override
    def holds(self, item: object, moment: FleetMoment, text: str | None = None) -> bool:
        return not self.condition.holds(item, moment, text)

    @override
    def fields(self) -> Iterator[Field]:
        return self.condition.fields()

    @override
    def __str__(self) -> str:
        return f"NOT ({self.condition})"


@dataclass(frozen=True)
class Search(Condition):
    """Holds where one of the text fields contains ``word``, or matches ``pattern``."""

    searched: tuple[Field, ...]
    word: str
    pattern: LinearPattern | None = None

    @cached_property
    def folded(self) -> str:
        """The word as `search_text` has it."""
        return self.word.lower()

    @property
    def is_word(self) -> bool:
        """Whether it is enough to search ``folded`` in an item's `search_text`."""
        return self.pattern is None and _SEPARATOR not in self.folded

    @override
    def holds(self, item: object, moment: FleetMoment, text: str | None = None) -> bool:
        folded, pattern = self.folded, self.pattern
        if text is not None and pattern is None and _SEPARATOR not in folded:
            return folded in text
        texts = _texts(self.searched, item, moment)
        return any(folded in text_.lower() for text_ in texts) if pattern is None else any(map(pattern.search, texts))

    @override
    def fields(self) -> Iterator[Field]:
        return iter(self.searched)

    @override
    def narrows(self, other: Condition) -> bool:
        if super().narrows(other):
            return True
        if not isinstance(other, Search) or self.pattern is not None or other.pattern is not None:
            return False
        return self.searched == other.searched and other.folded in self.folded

    @override
    def __str__(self) -> str:
        return f"{'' if self.pattern is None else '~'}{quoted(self.word)}"


@dataclass(frozen=True)
class Comparison(Condition):
    """A field compared with a value.

    An unknown value of the item passes no comparison, and equals ``""``.
    """

    field: Field
    operator: str  # : = < <= > >= ~
    value: str
    span: Span = (math.nan, math.nan)  # the numbers that ``value`` stands for
    pattern: LinearPattern | None = None

    @override
    def fields(self) -> Iterator[Field]:
        yield self.field

    @override
    def holds(self, item: object, moment: FleetMoment, text: str | None = None) -> bool:
        value = self.field.get(item, moment)
        if self.field.kind in (Kind.TEXT, Kind.LIST):
            return self._holds_text(value)
        if self.field.kind is Kind.ANY:
            return self._holds_any(value)
        return isinstance(value, int | float) and self._holds_number(value)

    def _holds_any(self, value: object) -> bool:
        """Compare numbers where both sides are numbers, else texts."""
        of_numbers = self.pattern is None and not math.isnan(self.span[0])
        if of_numbers and isinstance(value, int | float) and not isinstance(value, bool):
            return self._holds_number(value)
        if self.operator in ("<", "<=", ">", ">="):
            return False
        return self._holds_text("" if value is None else str(value))

    def _holds_text(self, value: Any) -> bool:
        texts = (value or "",) if isinstance(value, str) or not value else value
        if self.pattern is not None:
            return any(map(self.pattern.search, texts))
        folded = self.value.lower()
        if self.operator == "=":
            return any(text.lower() == folded for text in texts)
        return any(folded in text.lower() for text in texts)

    def _holds_number(self, value: float) -> bool:
        first, last = self.span
        if self.operator in ("=", ":"):
            return first <= value <= last or (math.isnan(first) and math.isnan(value))
        if self.operator == "<":
            return value < first
        if self.operator == "<=":
            return value <= last
        if self.operator == ">":
            return value > last
        return value >= first

    @override
    def __str__(self) -> str:
        return f"{self.field.name}{self.operator}{quoted(self.value)}"


def searched_fields(fields: Iterable[Field]) -> tuple[Field, ...]:
    """Return the fields in which words are searched."""
    return tuple(field for field in fields if field.kind in (Kind.TEXT, Kind.LIST))


def search_text(fields: Iterable[Field], item: object, moment: FleetMoment) -> str:
    """Return the texts of an item in its `searched_fields` as one."""
    texts: list[str] = []
    for field in fields:
        value = field.get(item, moment)
        if value:
            texts += (value,) if isinstance(value, str) else value
    return _SEPARATOR.join(texts).lower()


def _texts(fields: Iterable[Field], item: object, moment: FleetMoment) -> Iterator[str]:
    for field in fields:
        value = field.get(item, moment)
        if isinstance(value, str):
            yield value
        else:
            yield from value or ()


def quoted(text: str) -> str:
    """Return ``text`` as one value of a filter, in quotes where it needs them."""
    if _PLAIN.fullmatch(text) and text not in KEYWORDS:
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
