"""CRC32C of joined pieces, as Cloud Storage reports it of composed objects."""

from __future__ import annotations

import base64
import importlib
from collections.abc import Sequence

_ZEROS = bytes(1 << 20)


def crc_text(crc: int) -> str:
    """Encode a checksum as the service does."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def crc_number(text: str) -> int:
    """Decode a checksum that the service has encoded."""
    return int.from_bytes(base64.b64decode(text), "big")


def combined(pieces: Sequence[tuple[int, int]]) -> int:
    """CRC32C of concatenated pieces, from (crc32c, bytes) of each.

    CRC is affine: appending zero bytes changes the CRC of a piece and the CRC of no bytes by the same linear map.
    """
    google_crc32c = importlib.import_module("google_crc32c")

    def after_zeros(crc: int, count: int) -> int:
        while count:
            step = min(count, len(_ZEROS))
            crc = google_crc32c.extend(crc, _ZEROS[:step])
            count -= step
        return crc

    total = 0
    for crc, size in pieces:
        total = crc ^ after_zeros(total, size) ^ after_zeros(0, size)
    return total
