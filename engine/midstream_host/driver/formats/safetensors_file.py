"""Files of safetensors: whether one has all the bytes that its header names."""

from __future__ import annotations

import os
from typing import Dict, List, Tuple

from midstream_core import records
from midstream_core.json_types import JsonValue, object_or_empty
from midstream_core.safetensors_header import load_header
from midstream_host.driver.formats.errors import FormatError


def check(path: str) -> None:
    """Compare a file's size with its header.

    Raises:
        FormatError: The file is partial, or not of safetensors.
        OSError: The file cannot be read.
    """
    with records.open_regular(path) as file:
        total = os.fstat(file.fileno()).st_size
        try:
            entries, start = load_header(file)
        except ValueError as error:
            raise FormatError(str(error)) from None
    end = start + _end(entries)
    if total != end:
        raise FormatError("has {} bytes, and its header names {}".format(total, end))


def _end(entries: Dict[str, JsonValue]) -> int:
    """Bytes of the tensors, which follow each other without a gap."""
    spans: List[Tuple[int, int]] = []
    for name, entry in entries.items():
        span: JsonValue = object_or_empty(entry).get("data_offsets")
        if not isinstance(span, list) or len(span) != 2:
            raise FormatError("its header has no offsets of {!r}".format(name[:80]))
        begin, end = span
        if type(begin) is not int or type(end) is not int or not 0 <= begin <= end:
            raise FormatError("its header has impossible offsets of {!r}".format(name[:80]))
        spans.append((begin, end))
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            raise FormatError("its header leaves bytes {} to {} without a tensor".format(position, begin))
        position = end
    return position
