"""The header of safetensors files, for the app's programs on hosts and the engine.

Format: https://huggingface.co/docs/safetensors: the header's length (8 bytes, little-endian), the header (JSON, padded
with spaces to a multiple of 8), the data. The source of this module is sent to hosts: it runs on Python 3.8 and needs
the standard library alone.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping
from typing import BinaryIO, NamedTuple

from midstream_core.json_types import JsonValue, optional_list, optional_object
from midstream_core.records import RecordError, canonical_json, parse_json

HEADER_LIMIT = 64 << 20  # bytes

# numpy's (and zarr's) name -> safetensors' name, and bytes of an element.
NAMES = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8", "uint16": "U16",
    "uint32": "U32", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip
SIZES = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
_DTYPES = {short: name for name, short in NAMES.items()}


class TensorEntry(NamedTuple):
    """A tensor of a file. Its bytes are [start, stop) of the file."""

    dtype: str  # numpy's name
    shape: list[int]
    start: int
    stop: int


def load_header(file: BinaryIO) -> tuple[dict[str, JsonValue], int]:
    """Read the header of an open file, from its first byte on.

    Returns the JSON value of each tensor by name, and the offset of the data.

    Raises:
        ValueError: The header is partial, too large, or no JSON object.
    """
    prefix = file.read(8)
    if len(prefix) < 8:
        raise ValueError(f"has {len(prefix)} bytes, fewer than a header of safetensors")
    length = int.from_bytes(prefix, "little")
    if length > HEADER_LIMIT:
        raise ValueError(f"is no file of safetensors: its header would have {length} bytes")
    text = file.read(length)
    if len(text) < length:
        raise ValueError("ends in its header")
    try:
        header = parse_json(text, "header")
    except RecordError:
        raise ValueError("its header is not JSON") from None
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    return {name: value for name, value in header.items() if name != "__metadata__"}, 8 + length


def read_header(raw: memoryview) -> dict[str, TensorEntry]:
    """Return the tensors of a complete file by name.

    Raises:
        ValueError: The file is malformed: tensors overlap, or bytes belong to none; or an element type is not known.
    """
    entries, start = load_header(io.BytesIO(raw[: 8 + int.from_bytes(raw[:8], "little")]))
    tensors = {name: _entry(name, value, start, len(raw)) for name, value in entries.items()}
    position = start
    for name, entry in sorted(tensors.items(), key=lambda pair: (pair[1].start, pair[1].stop)):
        if entry.start != position:
            raise ValueError(f"{name} does not begin where the tensor before it ends")
        position = entry.stop
    if position != len(raw):
        raise ValueError(f"{len(raw) - position} bytes after the last tensor belong to none")
    return tensors


def check_size(file: BinaryIO, size: int) -> None:
    """Check that an open file has all the bytes that its header names.

    The file is read from its first byte on. ``size``: of the file. Element types need not be known.

    Raises:
        ValueError: The file is partial, or not of safetensors.
    """
    entries, position = load_header(file)
    start = position
    for name, (begin, end) in sorted(map(_span, entries.items()), key=lambda pair: pair[1]):
        if start + begin != position:
            raise ValueError(f"its header leaves bytes {position - start} to {begin} without a tensor, before {name!r}")
        position = start + end
    if size != position:
        raise ValueError(f"has {size} bytes, and its header names {position}")


def _span(item: tuple[str, JsonValue]) -> tuple[str, tuple[int, int]]:
    """Return a tensor's name and its place in the data."""
    name, entry = item[0][:80], item[1]
    span = entry.get("data_offsets") if isinstance(entry, Mapping) else None
    if not isinstance(span, (list, tuple)) or len(span) != 2:
        raise ValueError(f"its header has no offsets of {name!r}")
    begin, end = span
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end:
        raise ValueError(f"its header has impossible offsets of {name!r}")
    return name, (begin, end)


def _entry(name: str, value: JsonValue, start: int, size: int) -> TensorEntry:
    try:
        fields = optional_object(value)
        dtype, lengths = _DTYPES[str(fields["dtype"])], optional_list(fields["shape"])
        first, last = optional_list(fields["data_offsets"])
        numbers = [number for number in (*lengths, first, last) if type(number) is int and number >= 0]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"element type or field {error} of {name} is not understood") from None
    *shape, begin, end = numbers if len(numbers) == len(lengths) + 2 else (-1, -1)
    if not 0 <= begin <= end <= size - start or end - begin != math.prod(shape) * SIZES[dtype]:
        raise ValueError(f"the offsets of {name} do not fit its shape or the file")
    return TensorEntry(dtype, shape, start + begin, start + end)


def make_header(tensors: Iterable[tuple[str, str, Iterable[int]]], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return everything before the data of a safetensors file.

    Its tensors follow each other without gaps.

    ``tensors``: name, numpy's name of the dtype, and shape of each, in the order of their data.
    """
    header: dict[str, JsonValue] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name, dtype, shape in tensors:
        lengths = list(shape)
        start, end = end, end + math.prod(lengths) * SIZES[dtype]
        header[name] = {"dtype": NAMES[dtype], "shape": lengths, "data_offsets": [start, end]}
    text = canonical_json(header)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
