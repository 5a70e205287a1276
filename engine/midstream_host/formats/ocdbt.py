"""Completeness of TensorStore's OCDBT key-value store, by its manifest.

The manifest is written last.
"""

from __future__ import annotations

import struct

from midstream_core import records
from midstream_core.crc32c import crc32c
from midstream_core.format_error import FormatError

MANIFEST = "manifest.ocdbt"
MANIFEST_LIMIT = 4 << 20  # bytes; it has some hundred, and it grows with the logarithm of the number of versions
_MAGIC = b"\x0c\xdb\x3a\x2a"
_HEADER = 12  # bytes: magic, length


def check(path: str) -> None:
    """Check magic, length and CRC of a manifest.

    Raises:
        FormatError: The file is partial, or no manifest.
        OSError: The file cannot be read.
    """
    data = records.read_bytes(path, MANIFEST_LIMIT)
    if len(data) < _HEADER + 4 or data[:4] != _MAGIC:
        raise FormatError("is no manifest of OCDBT")
    (length,) = struct.unpack_from("<Q", data, 4)
    if length != len(data):
        raise FormatError("has {} bytes, and its header names {}".format(len(data), length))
    (stored,) = struct.unpack_from("<I", data, len(data) - 4)
    if crc32c(data[:-4]) != stored:
        raise FormatError("is damaged: its CRC differs")
