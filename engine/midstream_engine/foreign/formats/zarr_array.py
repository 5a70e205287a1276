"""Arrays of zarr 2 in a directory: how many chunks one has."""

from __future__ import annotations

import re
from typing import Any, Dict, List, cast

from midstream_engine.foreign.formats.errors import FormatError

_CHUNK = re.compile(r"\d+(?:[./]\d+)*")


def check(described: Dict[str, Any], files: Dict[str, int]) -> None:
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
    expected = 1
    for size, chunk in zip(shape, chunks):
        if chunk < 1:
            raise FormatError("has chunks without elements")
        expected *= -(-size // chunk)
    present = [name for name in files if _CHUNK.fullmatch(name)]
    empty = [name for name in present if not files[name]]
    if empty:
        raise FormatError("has an empty chunk, {}".format(min(empty)))
    if len(present) != expected:
        raise FormatError("has {} chunks of {}".format(len(present), expected))


def _sizes(value: Any) -> List[int]:
    if not isinstance(value, list) or any(type(one) is not int or one < 0 for one in cast("List[Any]", value)):
        raise FormatError("has no shape")
    return cast("List[int]", value)
