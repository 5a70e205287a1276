"""The filter line: ``gpu !lost state:failed loss<2.5 step>1000``. All of its words have to hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

_WORD = re.compile(r"(?P<no>!?)(?:(?P<field>[\w/]+)(?P<sign>[:<>=]))?(?P<value>.*)")
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9}


@dataclass(frozen=True)
class Word:
    """One condition. Without a field it is looked for in all fields that are words."""

    value: str
    field: str = ""
    sign: str = ":"
    inverse: bool = False

    def holds(self, names: Iterable[str], get: Callable[[str], Any]) -> bool:
        """``get`` gives a field of the line that is looked at, by its name."""
        if not self.value:
            return True
        fields = [name for name in names if name.startswith(self.field)] if self.field else list(names)
        if self.sign in "<>":
            found = any(_compare(get(name), self.sign, self.value) for name in fields[:1])
        elif self.sign == "=":
            found = any(str(get(name)).lower() == self.value for name in fields[:1])
        elif self.field:
            found = any(self.value in str(get(name)).lower() for name in fields[:1])
        else:
            words = (get(name) for name in fields)
            found = self.value in " ".join(word for word in words if isinstance(word, str)).lower()
        return found is not self.inverse


def parse(text: str, names: Iterable[str] = ()) -> tuple[Word, ...]:
    """The conditions of a line. What stands before ``:``, ``<``, ``>`` or ``=`` is a field where it is the beginning
    of one of ``names``; otherwise it is a part of the word."""
    known = tuple(names)
    found = []
    for part in text.lower().split():
        match = _WORD.fullmatch(part)
        assert match is not None  # it matches anything
        field = match["field"] or ""
        if field and not any(name.startswith(field) for name in known):
            found.append(Word(part[len(match["no"]) :], inverse=bool(match["no"])))
        else:
            found.append(Word(match["value"], field, match["sign"] or ":", bool(match["no"])))
    return tuple(found)


def _compare(value: Any, sign: str, than: str) -> bool:
    number = _number(than)
    if number is None or not isinstance(value, int | float):
        return False
    return value < number if sign == "<" else value > number


def _number(text: str) -> float | None:
    """``2.5``, ``10k``."""
    unit = _UNITS.get(text[-1:])
    try:
        return float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        return None
