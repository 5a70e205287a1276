"""The zip archive that ``torch.save`` writes: stored members. What is small is read through a map of the file, large
rows of numbers in stretches, past the page cache.

Python's zipfile parses the directory; what makes an archive doubtful (compression, encryption, names twice or that lead
elsewhere, members that overlap or reach beyond the file) is refused before anything of it is used.
"""

from __future__ import annotations

import functools
import itertools
import mmap
import os
import struct
import threading
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from midstream_engine.interop.direct_io import DirectFile
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.torchfile import machine
from midstream_engine.interop.torchfile.calls import STORAGES, Global, Storage
from midstream_engine.interop.torchfile.crc import Parts

_LOCAL = struct.Struct("<4s5H3I2H")
_LARGEST_PICKLE = 1 << 30  # bytes: what is no tensor is small
_BLOCK = 16 << 20  # bytes checked at a time
SMALL = 1 << 20  # bytes of a storage that is read as a whole, whatever is asked of it


@dataclass
class _Member:
    start: int
    size: int
    crc: int


class TorchFile:
    """One file that ``torch.save`` wrote. ``value``: what was saved, its tensors as views of the mapped file."""

    def __init__(self, path: str):
        """Raises ConversionError where it is no such file, or a broken or hostile one."""
        self.path = path
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ConversionError(f"{path}: is empty")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._members, self._prefix = self._directory(file)
        self._storages: dict[str, _FileStorage] = {}
        order = self._text("byteorder", b"little")
        if order != b"little":
            raise ConversionError(f"{path}: its numbers are {order[:20]!r}-endian; only little-endian ones are read")
        try:
            self.value: Any = machine.load(self._text("data.pkl"), self._persistent)
        except machine.PickleRefused as error:
            raise machine.PickleRefused(f"{path}: {error}") from None

    def verify(self) -> None:
        """Raises ConversionError where a storage that was read in stretches is damaged. What no stretch had is read."""
        for storage in self._storages.values():
            storage.verify()

    def stretch(self, member: _Member, parts: Parts, name: str, start: int, end: int) -> np.ndarray | None:
        """Bytes [start, end) of a member in memory of their own (uint8). None where a part of them, or more than them,
        was read before: the CRCs of such do not make up that of the whole."""
        crc = 0

        def each(block: np.ndarray) -> None:
            nonlocal crc
            crc = zlib.crc32(block.data, crc)

        try:
            data = self._direct.read(member.start + start, end - start, each)
        except EOFError:
            raise self._refused(f"{name} reaches beyond the end of the file: it was cut off meanwhile") from None
        noted = parts.add(start, end, crc)
        if noted is False:
            raise self._refused(f"{name} was read twice, and the two differ: is it being written?")
        return data if noted else None

    @functools.cached_property
    def _direct(self) -> DirectFile:
        return DirectFile(self.path)

    def member(self, member: _Member, name: str) -> np.ndarray:
        """A member's bytes, mapped, after its CRC was found right. Uint8 [size]."""
        view = np.frombuffer(self._map, np.uint8, member.size, member.start)
        crc = 0
        for start in range(0, member.size, _BLOCK):
            self._expect(member.start + start + _BLOCK, min(_BLOCK, member.size - start - _BLOCK))
            crc = zlib.crc32(view[start : start + _BLOCK].data, crc)
        self.compare(member, name, crc)
        return view

    def compare(self, member: _Member, name: str, crc: int) -> None:
        """ConversionError where that is not a member's CRC-32."""
        if crc != member.crc:
            raise ConversionError(f"{self.path}: {name} is damaged: its CRC-32 is {crc:08x}, not {member.crc:08x}")

    def _expect(self, start: int, size: int) -> None:
        """Have the system read these bytes while the ones before are looked at."""
        if size > 0:
            begin = start - start % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, begin, start + size - begin)

    def _directory(self, file: Any) -> tuple[dict[str, _Member], str]:
        try:
            with zipfile.ZipFile(file) as archive:
                infos = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OverflowError, OSError):
            raise ConversionError(
                f"{self.path}: no sound zip archive of torch's; what torch before 1.6 wrote has to be saved again"
            ) from None
        members: dict[str, _Member] = {}
        taken: list[tuple[int, int, str]] = []
        for info in infos:
            name = info.filename
            parts = name.split("/")
            if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
                raise self._refused(f"{name} is compressed, which torch never does")
            if info.flag_bits & 0x1:
                raise self._refused(f"{name} is encrypted")
            if name in members or name.startswith("/") or "\\" in name or "\0" in name or {"", ".", ".."} & set(parts):
                raise self._refused(f"the member name {name!r} is there twice or leads elsewhere")
            start = self._data_start(info)
            if start + info.file_size > len(self._map):
                raise self._refused(f"{name} reaches beyond the end of the file: it is cut off")
            members[name] = _Member(start, info.file_size, info.CRC)
            taken.append((info.header_offset, start + info.file_size, name))
        taken.sort()
        for (_, end, _), (begin, _, name) in itertools.pairwise(taken):
            if begin < end:
                raise self._refused(f"{name} overlaps with another member")
        prefixes = {name.split("/")[0] for name in members}
        if len(prefixes) != 1:
            raise self._refused("it has not one folder in it, as torch's archives have")
        return members, prefixes.pop() + "/"

    def _data_start(self, info: zipfile.ZipInfo) -> int:
        header = self._map[info.header_offset : info.header_offset + _LOCAL.size]
        if len(header) != _LOCAL.size or header[:4] != b"PK\x03\x04":
            raise self._refused(f"{info.filename} has no header of its own")
        fields = _LOCAL.unpack(header)
        begin = info.header_offset + _LOCAL.size
        name = self._map[begin : begin + fields[9]]
        if name.decode("utf-8", "replace") != info.filename:
            raise self._refused(f"{info.filename} is called {name[:80]!r} in its own header")
        return begin + fields[9] + fields[10]

    def _refused(self, why: str) -> ConversionError:
        return ConversionError(f"{self.path}: {why}"[:400])

    def _text(self, name: str, default: bytes | None = None) -> bytes:
        member = self._members.get(self._prefix + name)
        if member is None:
            if default is None:
                raise self._refused(f"has no {name}")
            return default
        if member.size > _LARGEST_PICKLE:
            raise self._refused(f"{name} has {member.size} bytes")
        return self.member(member, name).tobytes()

    def _persistent(self, key: Any) -> Storage:
        """``("storage", class, key, location, number of elements)``; any other is refused."""
        if type(key) is not tuple or len(key) != 5 or key[0] != "storage" or type(key[1]) is not Global:
            raise machine.PickleRefused("a persistent id that is no storage")
        _, kind, name, _, count = key
        if kind.module != "torch" or kind.name not in STORAGES or type(name) is not str or type(count) is not int:
            raise machine.PickleRefused(f"a storage of kind {kind.module}.{kind.name}"[:200])
        dtype = STORAGES[kind.name]
        found = self._storages.get(name)
        if found is None:
            member = self._members.get(f"{self._prefix}data/{name}")
            if member is None:
                raise machine.PickleRefused(f"the storage {name!r} is missing"[:200])
            if count < 0 or member.size != count * dtype.itemsize:
                raise machine.PickleRefused(f"the storage {name!r} has {member.size} bytes, not {count} elements"[:200])
            found = self._storages[name] = _FileStorage(self, member, f"data/{name}", dtype, count)
        if found.dtype != dtype or found.size != count:
            raise machine.PickleRefused(f"the storage {name!r} is described in two ways"[:200])
        return found


class _FileStorage(Storage):
    def __init__(self, file: TorchFile, member: _Member, name: str, dtype: np.dtype, size: int):
        self.dtype, self.size = dtype, size
        self._file, self._member, self._name = file, member, name
        self._lock, self._row, self._parts = threading.Lock(), None, Parts(member.size)

    def read(self) -> np.ndarray:
        with self._lock:
            if self._row is None:
                row = self._file.member(self._member, self._name).view(self.dtype)
                row.flags.writeable = False
                self._row = row
            return self._row

    def stretch(self, start: int, stop: int) -> np.ndarray:
        if self._row is None and self._member.size > SMALL:
            first, last = start * self.dtype.itemsize, stop * self.dtype.itemsize
            data = self._file.stretch(self._member, self._parts, self._name, first, last)
            if data is not None:
                row = data.view(self.dtype)
                row.flags.writeable = False
                return row
        return self.read()[start:stop]

    def verify(self) -> None:
        """Raises ConversionError where what was read of it in stretches is damaged."""
        gaps = list(self._parts.gaps())
        if self._row is not None or gaps == [(0, self._member.size)]:
            return
        for begin, end in gaps:
            for start in range(begin, end, _BLOCK):
                self._file.stretch(self._member, self._parts, self._name, start, min(start + _BLOCK, end))
        self._file.compare(self._member, self._name, self._parts.whole())
