"""Fields of the few protobuf messages that are read, without schema or code."""

from __future__ import annotations

import struct
from typing import Iterator, Tuple, Union

from midstream_core.format_error import FormatError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Value = Union[int, bytes]


def fields(data: bytes) -> Iterator[Tuple[int, int, Value]]:
    """Yield (number, wire type, value) of each field.

    The value is an int for a varint, the bytes for any other type.

    Raises:
        FormatError: The message is malformed.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == BYTES:
            size, at = _varint(data, at)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise FormatError("has a field of an unknown kind")
        if size > len(data) - at:
            raise FormatError("has a field that exceeds its message")
        yield number, wire, data[at : at + size]
        at += size


def double(value: Value) -> float:
    """The number in eight bytes. Raises FormatError."""
    return _unpacked("<d", value)


def single(value: Value) -> float:
    """The number in four bytes, exactly. Raises FormatError."""
    return _unpacked("<f", value)


def signed(value: Value) -> int:
    """An int64, which is a varint of 64 bits. Raises FormatError."""
    if not isinstance(value, int):
        raise FormatError("has bytes where it should have a number")
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def zigzag(value: Value) -> int:
    """A sint64. Raises FormatError."""
    if not isinstance(value, int):
        raise FormatError("has bytes where it should have a number")
    return value >> 1 ^ -(value & 1)


def text(value: Value) -> str:
    """A string. Raises FormatError."""
    return message(value).decode("utf-8", "replace")


def message(value: Value) -> bytes:
    """Bytes: a nested message. Raises FormatError."""
    if not isinstance(value, bytes):
        raise FormatError("has a number where it should have a message")
    return value


def _unpacked(code: str, value: Value) -> float:
    if not isinstance(value, bytes) or len(value) != struct.calcsize(code):
        raise FormatError("has a number of another size")
    return float(struct.unpack(code, value)[0])


def _varint(data: bytes, at: int) -> Tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise FormatError("has a broken varint")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
