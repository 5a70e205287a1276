"""Rows of metrics, kept by column: nine bytes a value instead of the hundred that a dict and its floats take."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

_ABSENT, _FLOAT, _INT, _NONE, _DIGEST, _OTHER = range(6)
_DIGEST_BYTES = 32  # of a SHA-256, which is told in hexadecimal
MOST_NAMES = 1000  # of an attempt's metrics: a column of its own for each row would take memory without end
_EXACT = 1 << 53  # an integer below it is the same as a double


class _Column:
    """The values of one name. Any JSON value reads back as it was."""

    __slots__ = ("digests", "kinds", "numeric", "others", "values")

    def __init__(self) -> None:
        self.numeric = False
        self.kinds = bytearray()
        self.values = array("d")
        self.digests = bytearray()
        self.others: dict[int, Any] = {}

    def put(self, index: int, value: Any) -> None:
        """``index`` is not below the number of values so far; those between are absent."""
        kind, number = _kind(value)
        missing = index - len(self.kinds)
        self.kinds += bytes(missing)
        self.kinds.append(kind)
        if missing:
            self.values.extend([math.nan] * missing)
        self.values.append(number)
        if kind in (_FLOAT, _INT):
            self.numeric = True
        elif kind == _DIGEST:
            self.digests += bytes(_DIGEST_BYTES * (index + 1) - len(self.digests))
            self.digests[-_DIGEST_BYTES:] = bytes.fromhex(value)
        elif kind == _OTHER:
            self.others[index] = value

    def get(self, index: int) -> tuple[bool, Any]:
        """(whether there is a value, the value)."""
        kind = self.kinds[index] if index < len(self.kinds) else _ABSENT
        if kind == _FLOAT:
            return True, self.values[index]
        if kind == _INT:
            return True, int(self.values[index])
        if kind == _NONE:
            return True, None
        if kind == _DIGEST:
            return True, self.digests[_DIGEST_BYTES * index : _DIGEST_BYTES * (index + 1)].hex()
        return (True, self.others[index]) if kind == _OTHER else (False, None)


def _kind(value: Any) -> tuple[int, float]:
    if type(value) is float:
        return _FLOAT, value
    if type(value) is int and -_EXACT < value < _EXACT:
        return _INT, value
    if value is None:
        return _NONE, math.nan
    if type(value) is str and len(value) == 2 * _DIGEST_BYTES and not value.strip("0123456789abcdef"):
        return _DIGEST, math.nan
    return _OTHER, math.nan


class Columns:
    """The rows of one attempt, in the order of its file. Only ever grows."""

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            column = self._columns.get(name)
            if column is None:
                if len(self._columns) >= MOST_NAMES:
                    continue
                column = self._columns[name] = _Column()
            column.put(self._length, value)
        self._length += 1

    def row(self, index: int) -> dict[str, Any]:
        found = {}
        for name, column in tuple(self._columns.items()):
            there, value = column.get(index)
            if there:
                found[name] = value
        return found

    def has(self, index: int, name: str) -> bool:
        column = self._columns.get(name)
        return column is not None and column.get(index)[0]

    def value(self, index: int, name: str) -> Any:
        """None where the row does not have it."""
        column = self._columns.get(name)
        return column.get(index)[1] if column is not None else None

    def numeric(self) -> list[str]:
        """The names of the columns that hold numbers."""
        return [name for name, column in tuple(self._columns.items()) if column.numeric]

    def numbers(self, name: str, start: int, stop: int) -> tuple[array[float], bytes]:
        """The values of rows ``start <= i < stop`` and, for each, whether the row has the name (a byte that is not 0).
        What is no number is not a number."""
        column = self._columns.get(name)
        if column is None:
            return array("d", [math.nan]) * (stop - start), bytes(stop - start)
        values, kinds = column.values[start:stop], bytes(column.kinds[start:stop])
        missing = stop - start - len(values)
        if missing:
            values.extend([math.nan] * missing)
        return values, kinds + bytes(missing)
