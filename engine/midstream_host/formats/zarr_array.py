"""Arrays of zarr 2 and 3 in a directory: how many chunks one has."""

from __future__ import annotations

import re
from typing import Any, Dict, List, cast

from midstream_core.format_error import FormatError
from midstream_core.json_types import JsonValue, object_or_empty

_CHUNK = re.compile(r"\d+(?:[./]\d+)*")
_CHUNK_3 = re.compile(r"c(?:[./]\d+)*")


def check(described: Dict[str, object], files: Dict[str, int]) -> None:
    """Check that each chunk of an array has a file with bytes.

    Args:
        described: The array's ``.zarray``.
        files: Sizes of the files of its directory, by their paths in it.

    Raises:
        FormatError: A chunk is missing or empty.
    """
    shape, chunks = _sizes(described.get("shape")), _sizes(described.get("chunks"))
    if len(shape) != len(chunks):
        raise FormatError("has a shape and chunks of different dimensions")
    present = [name for name in files if _CHUNK.fullmatch(name)]
    _refuse_empty(present, files)
    expected = _number(shape, chunks)
    if len(present) != expected:
        raise FormatError("has {} chunks of {}".format(len(present), expected))


def check_3(described: Dict[str, Any], files: Dict[str, int], *, every_chunk: bool) -> None:
    """Check the chunks of an array of zarr 3.

    Args:
        described: The array's ``zarr.json``.
        files: Sizes of the files of its directory, by their paths in it.
        every_chunk: No chunk is left out, also where all its elements have the fill value.

    Raises:
        FormatError: A chunk is empty or missing, or there are more than the array has.
    """
    if described.get("node_type") != "array":
        return
    grid: Any = described.get("chunk_grid")
    settings: object = object_or_empty(grid).get("configuration")
    if not isinstance(settings, dict):
        raise FormatError("has no grid of chunks")
    shape = _sizes(described.get("shape"))
    chunks = _sizes(settings.get("chunk_shape"))
    if len(shape) != len(chunks):
        raise FormatError("has a shape and chunks of different dimensions")
    present = [name for name in files if _CHUNK_3.fullmatch(name)]
    _refuse_empty(present, files)
    expected = _number(shape, chunks)
    if len(present) > expected or (every_chunk and len(present) < expected):
        raise FormatError("has {} chunks of {}".format(len(present), expected))


def _number(shape: List[int], chunks: List[int]) -> int:
    expected = 1
    for size, chunk in zip(shape, chunks):
        if chunk < 1:
            raise FormatError("has chunks without elements")
        expected *= -(-size // chunk)
    return expected


def _refuse_empty(present: List[str], files: Dict[str, int]) -> None:
    empty = [name for name in present if not files[name]]
    if empty:
        raise FormatError("has an empty chunk, {}".format(min(empty)))


def _sizes(value: object) -> List[int]:
    if not isinstance(value, list) or any(type(size) is not int or size < 0 for size in cast("List[JsonValue]", value)):
        raise FormatError("has no shape")
    return cast("List[int]", value)
