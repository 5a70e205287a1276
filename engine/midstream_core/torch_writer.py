"""Writes archives that ``torch.load`` reads: the same content is the same bytes.

A zip of stored members, each aligned as torch aligns it. Standard library only; Python 3.8.
"""

from __future__ import annotations

import struct
import zlib
from typing import BinaryIO, Callable, Iterable, List, NamedTuple

ALIGNMENT = 64  # bytes
_LOCAL = struct.Struct("<4s2H3H3I2H")
_CENTRAL = struct.Struct("<4s4H2H3I5H2I")
_CRC_OFFSET = 14  # of the CRC in a member's own header
_LIMIT = 0xFFFFFFFF
_DATE = 1 << 5 | 1  # 1980-01-01


class NewMember(NamedTuple):
    """A member to write. ``copy`` writes its ``size`` bytes and returns their CRC-32."""

    name: str
    size: int
    copy: Callable[[Callable[[memoryview], object]], int]


def text_member(name: str, data: bytes) -> NewMember:
    """Return a member with these bytes."""

    def copy(write: Callable[[memoryview], object]) -> int:
        write(memoryview(data))
        return zlib.crc32(data)

    return NewMember(name, len(data), copy)


def write_archive(file: BinaryIO, folder: str, members: Iterable[NewMember]) -> None:
    """Write an archive into an empty file that can seek.

    Args:
        file: Where to.
        folder: Name of the one folder that all members are in.
        members: In the order of the archive.
    """
    entries: List[bytes] = []
    for member in members:
        name = "{}/{}".format(folder, member.name).encode()
        start = file.seek(0, 2)
        sizes = struct.pack("<2Q", member.size, member.size) if member.size >= _LIMIT else b""
        extra = struct.pack("<2H", 1, len(sizes)) + sizes if sizes else b""
        extra += _padding(start + _LOCAL.size + len(name) + len(extra))
        short = _LIMIT if sizes else member.size
        version = 45 if sizes else 20
        header = (0x800, 0, 0, _DATE)
        file.write(_LOCAL.pack(b"PK\x03\x04", version, *header, 0, short, short, len(name), len(extra)) + name + extra)
        crc = member.copy(file.write)
        if file.tell() - (start + _LOCAL.size + len(name) + len(extra)) != member.size:  # codespell:ignore tell
            raise ValueError("{}: not as long as announced".format(member.name))
        file.seek(start + _CRC_OFFSET)
        file.write(struct.pack("<I", crc))
        offset = struct.pack("<Q", start) if start >= _LIMIT else b""
        wide = sizes + offset
        extra = struct.pack("<2H", 1, len(wide)) + wide if wide else b""
        entries.append(_CENTRAL.pack(
            b"PK\x01\x02", 45 if wide else 20, version, *header, crc, short, short, len(name), len(extra), 0, 0, 0, 0,
            _LIMIT if offset else start,
        ) + name + extra)  # fmt: skip
    _write_end(file, entries)


def _write_end(file: BinaryIO, entries: List[bytes]) -> None:
    start = file.seek(0, 2)
    for entry in entries:
        file.write(entry)
    end, count = file.seek(0, 2), len(entries)
    if start >= _LIMIT or count >= 0xFFFF:
        file.write(struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, end - start, start))
        file.write(struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1))
    counts, place = min(count, 0xFFFF), min(start, _LIMIT)
    file.write(struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, counts, counts, end - start, place, 0))


def _padding(position: int) -> bytes:
    """Return an extra field after which a member's bytes are aligned."""
    missing = -(position + 4) % ALIGNMENT
    return b"FB" + struct.pack("<H", missing) + b"Z" * missing
