"""Rows of metrics, stored by column.

A value takes nine bytes, where a dict with floats takes about a hundred.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Sequence
from typing import Any, TypeVar

from midstream_core.json_types import JsonObject, JsonValue, LoggedRow

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
        self.others: dict[int, JsonValue] | None = None

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

    def fill(self, kinds: bytes, values: array[float]) -> None:
        """Set the first values, which are numbers."""
        self.numeric = True
        self.kinds, self.values = kinds, values

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


Shared = TypeVar("Shared", bytes, tuple[str, ...])


@functools.lru_cache(maxsize=256)
def _same(value: Shared) -> Shared:
    """Return an equal value of an earlier call: runs have the same metrics."""
    return value


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


class _PackedColumns:
    """Columns of rows that all have the same names, with numbers alone, in one array.

    Most runs have ended: five objects for each of their columns would take half of the memory of a run.
    """

    __slots__ = ("_kinds", "_values", "names")

    def __init__(self, names: tuple[str, ...], kinds: bytes, values: array[float]) -> None:
        self.names = names
        self._kinds = kinds  # of column after column, as ``_values``
        self._values = values

    @classmethod
    def of(cls, rows: Sequence[LoggedRow]) -> _PackedColumns | None:
        """Return the columns of these rows.

        The result is None where rows differ or have other values than numbers.
        """
        names = tuple(rows[0]) if rows else ()
        if not names or len(names) > MAX_COLUMNS or any(row.keys() != rows[0].keys() for row in rows):
            return None
        values = [row[name] for name in names for row in rows]
        if not all(type(value) is float or (type(value) is int and -_EXACT < value < _EXACT) for value in values):
            return None
        return cls(
            _same(names), _same(bytes(_FLOAT if type(value) is float else _INT for value in values)), array("d", values)
        )

    def get(self, index: int, name: str) -> tuple[bool, Any]:
        """Return (True if row ``index`` has the name, its value)."""
        length = len(self._values) // len(self.names)
        if name not in self.names or index >= length:
            return False, None
        place = length * self.names.index(name) + index
        value = self._values[place]
        return True, value if self._kinds[place] == _FLOAT else int(value)

    def column(self, name: str) -> _Column | None:
        """Return a copy of a column, None if there is none of this name."""
        if name not in self.names:
            return None
        length = len(self._values) // len(self.names)
        begin = length * self.names.index(name)
        added = _Column()
        added.fill(self._kinds[begin : begin + length], self._values[begin : begin + length])
        return added


class MetricColumns:
    """The rows of one attempt, in the order of its file; rows are only added."""

    __slots__ = ("_columns", "_length")

    def __init__(self) -> None:
        self._columns: dict[str, _Column] | _PackedColumns = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def extend(self, rows: Sequence[JsonObject]) -> None:
        """Append rows."""
        packed = None if self._length else _PackedColumns.of(rows)
        if packed is not None:
            self._columns, self._length = packed, len(rows)
            return
        for row in rows:
            self.append(row)

    def append(self, row: LoggedRow) -> None:
        """Append a row."""
        columns = self._columns
        if isinstance(columns, _PackedColumns):
            unpacked = {name: columns.column(name) for name in columns.names}
            columns = self._columns = {name: column for name, column in unpacked.items() if column is not None}
        for name, value in row.items():
            column = columns.get(name)
            if column is None:
                if len(columns) >= MAX_COLUMNS:
                    continue
                column = columns[name] = _Column()
            column.put(self._length, value)
        self._length += 1

    def _get(self, index: int, name: str) -> tuple[bool, Any]:
        columns = self._columns
        if isinstance(columns, _PackedColumns):
            return columns.get(index, name)
        column = columns.get(name)
        return column.get(index) if column is not None else (False, None)

    def row(self, index: int) -> dict[str, Any]:
        """Return row ``index``."""
        columns = self._columns
        names = columns.names if isinstance(columns, _PackedColumns) else tuple(columns)
        cells = {name: self._get(index, name) for name in names}
        return {name: value for name, (exists, value) in cells.items() if exists}

    def has_column(self, name: str) -> bool:
        """Return True if any row has the name."""
        columns = self._columns
        return name in (columns.names if isinstance(columns, _PackedColumns) else columns)

    def has(self, index: int, name: str) -> bool:
        """Return True if row ``index`` has the name."""
        return self._get(index, name)[0]

    def value(self, index: int, name: str) -> Any:
        """Return a value of row ``index``, None if the row does not have the name."""
        return self._get(index, name)[1]

    def numeric(self) -> list[str]:
        """Return the names of the columns with numbers."""
        columns = self._columns
        if isinstance(columns, _PackedColumns):
            return list(columns.names)
        return [name for name, column in tuple(columns.items()) if column.numeric]

    def numbers(self, name: str, start: int, stop: int) -> tuple[array[float], bytes]:
        """Return the values of rows ``start <= i < stop``, and which rows have the name.

        The latter is one byte for each row: not 0 if the row has the name.

        Values that are no numbers are NaN.
        """
        columns = self._columns
        column = columns.column(name) if isinstance(columns, _PackedColumns) else columns.get(name)
        if column is None:
            return array("d", [math.nan]) * (stop - start), bytes(stop - start)
        length = stop - start
        # Each is as long as it is now: the thread of the host's feed may be adding a later value.
        values, kinds = column.values[start:stop], bytes(column.kinds[start:stop])
        values.extend([math.nan] * (length - len(values)))
        return values, kinds.ljust(length, bytes(1))
