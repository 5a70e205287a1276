"""Stretches of archives' members, copied with a check of every byte.

Standard library only; Python 3.8.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import threading
import zlib
from typing import BinaryIO, Callable, Dict, Generator, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple, cast

from midstream_core import records
from midstream_core.crc32_parts import MemberParts, combined
from midstream_core.format_error import FormatError
from midstream_core.torch_archive import PICKLE_LIMIT
from midstream_core.torch_members import Member, members_of

_MEMCMP = ctypes.CDLL(None).memcmp
BLOCK = 1 << 20  # bytes in memory of each thread that copies: what the processor's caches hold
_FREE: List[memoryview] = []  # buffers to use again: the kernel clears fresh pages, which takes longer than a CRC-32


class Segment(NamedTuple):
    """Bytes [start, stop) of a member of an archive; zeros where ``archive`` is None."""

    archive: Optional[Archive]
    member: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.stop - self.start


class Archive:
    """An archive of ``torch.save``, opened for each read.

    A checkpoint has hundreds of them.
    """

    def __init__(self, path: str) -> None:
        """Read its directory.

        Raises:
            FormatError: It is partial or no such archive; the message has its name.
            OSError: It cannot be read.
        """
        self.path, self.name = path, os.path.basename(path)
        with records.open_regular(path) as file:
            status = os.fstat(file.fileno())
            self.identity = (status.st_size, status.st_mtime_ns)
            try:
                self._members = members_of(file, status.st_size)
            except ValueError as error:
                raise FormatError("{}: {}".format(self.name, error)) from None
        self.folder = next(iter(self._members)).split("/")[0]
        self._read: Dict[str, MemberParts] = {}
        self._hashed: Set[str] = set()
        self._lock = threading.Lock()

    def size(self, member: str) -> Optional[int]:
        """Bytes of a member; None where there is none."""
        place = self._members.get("{}/{}".format(self.folder, member))
        return None if place is None else place.size

    def names(self) -> List[str]:
        """Return the names of all members but the optional number of the content."""
        names = [name[len(self.folder) + 1 :] for name in self._members]
        return [name for name in names if name != ".data/serialization_id"]

    def complete(self, member: str) -> Segment:
        """Return all of a member. Raises FormatError."""
        return Segment(self, member, 0, self._place(member).size)

    def text(self, member: str) -> bytes:
        """Return a small member after a check of its CRC. Raises FormatError and OSError."""
        place = self._place(member)
        if place.size > PICKLE_LIMIT:
            raise FormatError("{}: {} has {} bytes, and at most {} are read".format(
                self.name, member, place.size, PICKLE_LIMIT))  # fmt: skip
        data = b"".join(bytes(block) for block, _ in self.blocks(member, 0, place.size))
        self._compare(member, zlib.crc32(data))
        return data

    def blocks(self, member: str, start: int, stop: int, *, checked: bool = True) -> Iterator[Tuple[memoryview, int]]:
        """Yield part of a member in blocks with the CRC of each.

        All are in one buffer: use each before the next. ``checked``: False for bytes that are compared by a hash; their
        CRC is 0.

        Raises FormatError and OSError.
        """
        place = self._place(member)
        total = 0
        with records.open_regular(self.path) as file, _buffer() as buffer:
            status = os.fstat(file.fileno())
            if (status.st_size, status.st_mtime_ns) != self.identity:
                raise FormatError("{}: it was written again while it was read".format(self.name))
            file.seek(place.start + start)
            for begin in range(start, stop, BLOCK):
                block = buffer[: min(BLOCK, stop - begin)]
                if _readinto(file, block) != len(block):
                    raise FormatError("{}: the end of the file is missing".format(self.name))
                crc = zlib.crc32(block) if checked else 0
                total = combined(total, crc, len(block)) if checked else 0
                yield block, crc
        if checked:
            self._note(member, start, stop, total)
        else:
            self._hashed.add(member)

    def check_member(self, member: str) -> None:
        """Read a member and compare its CRC. Raises FormatError: it is damaged."""
        for _ in self.blocks(member, 0, self._place(member).size):
            pass
        self._compare(member, self._read[member].combined())

    def check_rest(self) -> None:
        """Compare the CRC of every member of which nothing was hashed.

        Raises FormatError: one is damaged.
        """
        for name in self.names():
            if name not in self._hashed:
                self.check_member(name)

    def check(self) -> None:
        """Compare the CRC of every member of which something was read; read what was not.

        Raises FormatError: bytes of it are damaged.
        """
        for member in sorted(self._read):
            parts = self._read[member]
            for start, stop in list(parts.gaps()):
                for _ in self.blocks(member, start, stop):
                    pass
            self._compare(member, parts.combined())

    def _note(self, member: str, start: int, stop: int, crc: int) -> None:
        with self._lock:
            parts = self._read.setdefault(member, MemberParts(self._place(member).size))
        if start < stop and parts.add(start, stop, crc) is False:
            raise FormatError("{}: {} was written again while it was read".format(self.name, member))

    def _place(self, member: str) -> Member:
        place = self._members.get("{}/{}".format(self.folder, member))
        if place is None:
            raise FormatError("{}: its {} is missing".format(self.name, member))
        return place

    def _compare(self, member: str, crc: int) -> None:
        expected = self._place(member).crc
        if crc != expected:
            raise FormatError("{}: {} is damaged: its CRC-32 is {:08x}, not {:08x}".format(
                self.name, member, crc, expected))  # fmt: skip


@contextlib.contextmanager
def _buffer() -> Generator[memoryview, None, None]:
    """Lend a buffer of a block to one reader."""
    try:
        buffer = _FREE.pop()
    except IndexError:
        buffer = memoryview(bytearray(BLOCK))
    try:
        yield buffer
    finally:
        _FREE.append(buffer)


def _readinto(file: BinaryIO, block: memoryview) -> int:
    return cast("io.BufferedReader", file).readinto(block)


def copy_segments(segments: Iterable[Segment], write: Callable[[memoryview], object]) -> int:
    """Write segments one after the other; return the CRC-32 of all.

    Raises FormatError and OSError.
    """
    crc = 0
    for block, block_crc in _blocks_of(segments):
        write(block)
        crc = combined(crc, block_crc, len(block))
    return crc


def joined(segments: Iterable[Segment]) -> List[Segment]:
    """Return segments without empty ones, and neighbours as one."""
    result: List[Segment] = []
    for segment in segments:
        last = result[-1] if result else None
        if segment.size <= 0:
            continue
        if last is not None and last[:2] == segment[:2] and last.stop == segment.start:
            result[-1] = Segment(last.archive, last.member, last.start, segment.stop)
        else:
            result.append(segment)
    return result


def zeros(size: int) -> Segment:
    """Return a segment of so many zero bytes."""
    return Segment(None, "", 0, size)


def hashed_blocks(segments: Iterable[Segment]) -> Iterator[memoryview]:
    """Yield the bytes of segments, all with an archive, to be hashed.

    Raises FormatError and OSError.
    """
    for segment in segments:
        assert segment.archive is not None
        for block, _ in segment.archive.blocks(*segment[1:], checked=False):
            yield block


def compared_blocks(segments: Iterable[Segment], others: Iterable[Segment], message: str) -> Iterator[memoryview]:
    """Yield the bytes of segments, each block after it was compared with the others.

    Raises FormatError with ``message`` where a byte differs or one of both ends first; and as `hashed_blocks`.
    """
    rest, blocks = memoryview(b""), hashed_blocks(others)
    for block in hashed_blocks(segments):
        place = 0
        while place < len(block):
            rest = rest if len(rest) else next(blocks, rest)
            size = min(len(rest), len(block) - place)
            if not size or not _equal(block[place : place + size], rest[:size]):
                raise FormatError(message)
            place, rest = place + size, rest[size:]
        yield block
    if len(rest) or next(blocks, None) is not None:
        raise FormatError(message)


def _equal(first: memoryview, second: memoryview) -> bool:
    """Compare equally long parts of writable buffers, without the interpreter's lock."""
    parts = [(ctypes.c_char * len(first)).from_buffer(view) for view in (first, second)]
    return _MEMCMP(parts[0], parts[1], ctypes.c_size_t(len(first))) == 0


def _blocks_of(segments: Iterable[Segment]) -> Iterator[Tuple[memoryview, int]]:
    """Yield the bytes of segments in blocks with the CRC-32 of each.

    Raises FormatError and OSError.
    """
    for segment in segments:
        if segment.archive is not None:
            for block, crc in segment.archive.blocks(*segment[1:]):
                yield block, crc
            continue
        for begin in range(0, segment.size, BLOCK):
            block = memoryview(bytes(min(BLOCK, segment.size - begin)))
            yield block, zlib.crc32(block)
