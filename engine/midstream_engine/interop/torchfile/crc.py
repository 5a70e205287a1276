"""CRC-32 of what is read in parts, in any order: zip has a checksum of the whole, and nothing is read twice for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

_POLYNOMIAL = 0xEDB88320  # reflected, as zip has it: the highest bit is x^0


def _times(a: int, b: int) -> int:
    """The product of two polynomials, modulo CRC-32's."""
    product = 0
    while a:
        if a & 1 << 31:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _powers() -> list[int]:
    """x^(8 * 2^n): what a CRC is multiplied with for 2^n bytes behind it."""
    found = [1 << 23]
    while len(found) < 64:
        found.append(_times(found[-1], found[-1]))
    return found


_POWERS = _powers()


def combined(first: int, second: int, size: int) -> int:
    """The CRC-32 of two stretches of bytes in a row from that of each; ``size``: bytes of the second."""
    place = 0
    while size:
        if size & 1:
            first = _times(_POWERS[place], first)
        size >>= 1
        place += 1
    return first ^ second


class Parts:
    """The parts of a row of bytes that were read, and their CRCs."""

    def __init__(self, size: int):
        self._size, self._known = size, dict[int, tuple[int, int]]()  # by start: end, CRC
        self._lock = threading.Lock()

    def add(self, start: int, end: int, crc: int) -> bool | None:
        """Note a part. Whether it is as it was the last time; None where it overlaps with others, and is not noted."""
        with self._lock:
            known = self._known.get(start)
            if known is not None and known[0] == end:
                return known[1] == crc
            if any(begin < end and start < other for begin, (other, _) in self._known.items()):
                return None
            self._known[start] = end, crc
            return True

    def gaps(self) -> Iterator[tuple[int, int]]:
        """What was not read, as (start, end)."""
        place = 0
        for start, (end, _) in sorted(self._known.items()):
            if place < start:
                yield place, start
            place = end
        if place < self._size:
            yield place, self._size

    def whole(self) -> int:
        """The CRC of all, once there are no gaps."""
        crc = 0
        for start, (end, part) in sorted(self._known.items()):
            crc = combined(crc, part, end - start)
        return crc
