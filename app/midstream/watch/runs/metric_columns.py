"""Rows of metrics, stored by column.

A value takes nine bytes, where a dict with floats takes about a hundred.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

_ABSENT, _FLOAT, _INT, _NONE, _DIGEST, _OTHER = range(6)
_DIGEST_BYTES = 32  # of a SHA-256, which a row has in hexadecimal
MAX_COLUMNS = 1000  # of an attempt: a host could otherwise exhaust memory with a new name in each row
_EXACT = 1 << 53  # an integer below it is the same as a double


class _Column:
    """The values of one name. Any JSON value is read back unchanged."""

    __slots__ = ("digests", "kinds", "numeric", "others", "values")

    def __init__(self) -> None:
        self.numeric = False
        self.kinds: bytearray | bytes = bytearray()  # bytes until it grows: those of other runs too
        self.values = array("d")
        self.digests: bytearray | None = None  # made with the first one: most columns have numbers alone
        self.others: dict[int, Any] | None = None

    def put(self, index: int, value: Any) -> None:
        """Store the value of row ``index``, which is not below the current length.

        Skipped rows have no value.
        """
        kind, number = _kind(value)
        if isinstance(self.kinds, bytes):
            self.kinds = bytearray(self.kinds)
        missing = index - len(self.kinds)
        self.kinds += bytes(missing)
        self.kinds.append(kind)
        if missing:
            self.values.extend([math.nan] * missing)
        self.values.append(number)
        if kind in (_FLOAT, _INT):
            self.numeric = True
        elif kind == _DIGEST:
            if self.digests is None:
                self.digests = bytearray()
            self.digests += bytes(_DIGEST_BYTES * (index + 1) - len(self.digests))
            self.digests[-_DIGEST_BYTES:] = bytes.fromhex(value)
        elif kind == _OTHER:
            if self.others is None:
                self.others = {}
            self.others[index] = value

    def fill(self, values: Sequence[float]) -> None:
        """Set the first values, which are numbers."""
        self.numeric = True
        self.kinds = _same(bytes(_FLOAT if type(value) is float else _INT for value in values))
        self.values = array("d", values)

    def get(self, index: int) -> tuple[bool, Any]:
        """Return (True if row ``index`` has a value, the value)."""
        kind = self.kinds[index] if index < len(self.kinds) else _ABSENT
        if kind == _FLOAT:
            return True, self.values[index]
        if kind == _INT:
            return True, int(self.values[index])
        if kind == _NONE:
            return True, None
        if kind == _DIGEST and self.digests is not None:
            return True, self.digests[_DIGEST_BYTES * index : _DIGEST_BYTES * (index + 1)].hex()
        return (True, self.others[index]) if kind == _OTHER and self.others is not None else (False, None)


@functools.lru_cache(maxsize=256)
def _same(kinds: bytes) -> bytes:
    """Return equal bytes of an earlier call."""
    return kinds


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


class MetricColumns:
    """The rows of one attempt, in the order of its file. It only grows."""

    __slots__ = ("_columns", "_length")

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def extend(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows."""
        if self._length or not self._fill(rows):
            for row in rows:
                self.append(row)

    def _fill(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Set the first rows by column, if each has the same names and they are numbers.

        Return False if not. It takes a third of the time of `append`, and no memory for rows that may follow.
        """
        names = rows[0].keys() if rows else ()
        if len(names) > MAX_COLUMNS or any(row.keys() != names for row in rows):
            return False
        columns: dict[str, _Column] = {}
        for name in names:
            values = [row[name] for row in rows]
            if not all(type(value) is float or (type(value) is int and -_EXACT < value < _EXACT) for value in values):
                return False
            columns[name] = _Column()
            columns[name].fill(values)
        self._columns, self._length = columns, len(rows)
        return True

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row."""
        for name, value in row.items():
            column = self._columns.get(name)
            if column is None:
                if len(self._columns) >= MAX_COLUMNS:
                    continue
                column = self._columns[name] = _Column()
            column.put(self._length, value)
        self._length += 1

    def row(self, index: int) -> dict[str, Any]:
        """Return row ``index``."""
        found = {}
        for name, column in tuple(self._columns.items()):
            exists, value = column.get(index)
            if exists:
                found[name] = value
        return found

    def has(self, index: int, name: str) -> bool:
        """Return True if row ``index`` has the name."""
        column = self._columns.get(name)
        return column is not None and column.get(index)[0]

    def value(self, index: int, name: str) -> Any:
        """Return a value of row ``index``, None if the row does not have the name."""
        column = self._columns.get(name)
        return column.get(index)[1] if column is not None else None

    def numeric(self) -> list[str]:
        """Return the names of the columns with numbers."""
        return [name for name, column in tuple(self._columns.items()) if column.numeric]

    def numbers(self, name: str, start: int, stop: int) -> tuple[array[float], bytes]:
        """Return the values of rows ``start <= i < stop``, and which rows have the name.

        The latter is one byte for each row: not 0 if the row has the name.

        Values that are no numbers are NaN.
        """
        column = self._columns.get(name)
        if column is None:
            return array("d", [math.nan]) * (stop - start), bytes(stop - start)
        values, kinds = column.values[start:stop], bytes(column.kinds[start:stop])
        missing = stop - start - len(values)
        if missing:
            values.extend([math.nan] * missing)
        return values, kinds + bytes(missing)
