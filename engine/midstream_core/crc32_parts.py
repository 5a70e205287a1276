"""CRC-32 of a member that is read in parts, in any order, and nothing twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator

_POLYNOMIAL = 0xEDB88320  # reflected, as zip has it: the highest bit is x^0


def _times(a: int, b: int) -> int:
    """Return the product of two polynomials, modulo CRC-32's."""
    product = 0
    while a:
        if a & 1 << 31:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _powers() -> list[int]:
    """Return x^(8 * 2^n), by which 2^n following bytes multiply a CRC."""
    powers = [1 << 23]
    while len(powers) < 64:
        powers.append(_times(powers[-1], powers[-1]))
    return powers


_POWERS = _powers()


def combined(first: int, second: int, size: int) -> int:
    """Return the CRC-32 of two consecutive parts from that of each.

    ``size``: bytes of the second.
    """
    exponent = 0
    while size:
        if size & 1:
            first = _times(_POWERS[exponent], first)
        size >>= 1
        exponent += 1
    return first ^ second


class MemberParts:
    """The parts of a member that were read, and their CRCs."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._read: dict[int, tuple[int, int]] = {}  # by start: end, CRC
        self._lock = threading.Lock()

    def add(self, start: int, end: int, crc: int) -> bool | None:
        """Record a part; return whether its CRC is that of the last read.

        None: the part overlaps with another one.
        """
        with self._lock:
            before = self._read.get(start)
            if before is not None and before[0] == end:
                return before[1] == crc
            if any(begin < end and start < other for begin, (other, _) in self._read.items()):
                return None
            self._read[start] = end, crc
            return True

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Yield the parts that were not read, as (start, end)."""
        position = 0
        for start, (end, _) in sorted(self._read.items()):
            if position < start:
                yield position, start
            position = end
        if position < self._size:
            yield position, self._size

    def combined(self) -> int:
        """Return the CRC of the member; there must be no gaps."""
        crc = 0
        for start, (end, part_crc) in sorted(self._read.items()):
            crc = combined(crc, part_crc, end - start)
        return crc
