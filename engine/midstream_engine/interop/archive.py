"""Reader of the zip archives of ``torch.save``.

Small members are read through a memory map, large storages in parts with direct I/O. Python's zipfile parses the
directory; compression, encryption, duplicate names or names that leave the archive, and members that overlap or exceed
the file are rejected before anything is used.
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

from midstream_core.restricted_pickle import Global
from midstream_engine.interop import machine
from midstream_engine.interop.calls import STORAGES, Storage
from midstream_engine.interop.crc import Parts
from midstream_engine.interop.direct_io import DirectFile
from midstream_engine.interop.errors import ConversionError, PickleRejectedError
from midstream_engine.interop.foreign_values import TorchValue

_LOCAL = struct.Struct("<4s5H3I2H")
_LARGEST_PICKLE = 1 << 30  # bytes: everything but tensors is small
_BLOCK = 16 << 20  # bytes checked at a time
SMALL = 1 << 20  # bytes of a storage that is always read completely


@dataclass
class _Member:
    start: int
    size: int
    crc: int


class TorchFile:
    """One file of ``torch.save``.

    ``value``: the saved object, with tensors as views of the mapped file.
    """

    def __init__(self, path: str) -> None:
        """Open the file.

        Raises:
            ConversionError: The file is no such archive, damaged or hostile.
        """
        self.path = path
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ConversionError(f"{path}: is empty")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._members, self._prefix = self._directory(file)
        self._storages: dict[str, _FileStorage] = {}
        order = self._text("byteorder", b"little")
        if order != b"little":
            raise ConversionError(f"{path}: its numbers are {order[:20]!r}-endian; only little-endian is supported")
        try:
            self.value: TorchValue = machine.load(self._text("data.pkl"), self._persistent)
        except PickleRejectedError as error:
            raise PickleRejectedError(f"{path}: {error}") from None

    def verify(self) -> None:
        """Check the storages that were read in parts; read the parts that were not.

        Raises:
            ConversionError: A storage is damaged.
        """
        for storage in self._storages.values():
            storage.verify()

    def stretch(self, member: _Member, parts: Parts, name: str, start: int, end: int) -> np.ndarray | None:
        """Return bytes [start, end) of a member in memory of their own (uint8).

        None if an overlapping part was read before: their CRCs cannot be combined to that of the member.

        Args:
            member: The member.
            parts: Its parts that were read; this one is added.
            name: Name of the member in messages.
            start: First byte, from the member's beginning.
            end: Byte after the last one.
        """
        crc = 0

        def each(block: np.ndarray) -> None:
            nonlocal crc
            crc = zlib.crc32(block.data, crc)

        try:
            data = self._direct.read(member.start + start, end - start, each)
        except EOFError:
            raise self._rejected(f"{name} exceeds the file, which was truncated during the import") from None
        noted = parts.add(start, end, crc)
        if noted is False:
            raise self._rejected(f"{name} changed between two reads: is it being written?")
        return data if noted else None

    @functools.cached_property
    def _direct(self) -> DirectFile:
        return DirectFile(self.path)

    def member(self, member: _Member, name: str) -> np.ndarray:
        """Return a member's bytes, mapped, after a check of its CRC. Uint8 [size]."""
        view = np.frombuffer(self._map, np.uint8, member.size, member.start)
        crc = 0
        for start in range(0, member.size, _BLOCK):
            self._expect(member.start + start + _BLOCK, min(_BLOCK, member.size - start - _BLOCK))
            crc = zlib.crc32(view[start : start + _BLOCK].data, crc)
        self.compare(member, name, crc)
        return view

    def compare(self, member: _Member, name: str, crc: int) -> None:
        """Compare a member's CRC-32.

        Raises:
            ConversionError: The CRC-32 differs.
        """
        if crc != member.crc:
            raise ConversionError(f"{self.path}: {name} is damaged: its CRC-32 is {crc:08x}, not {member.crc:08x}")

    def _expect(self, start: int, size: int) -> None:
        """Start reading these bytes while the previous ones are processed."""
        if size > 0:
            begin = start - start % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_WILLNEED, begin, start + size - begin)

    def _directory(self, file: Any) -> tuple[dict[str, _Member], str]:
        try:
            with zipfile.ZipFile(file) as archive:
                infos = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OverflowError, OSError):
            raise ConversionError(
                f"{self.path}: no sound zip archive of torch (hint: save files of torch before 1.6 again)"
            ) from None
        members: dict[str, _Member] = {}
        taken: list[tuple[int, int, str]] = []
        for info in infos:
            name = info.filename
            parts = name.split("/")
            if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
                raise self._rejected(f"{name} is compressed, which torch never does")
            if info.flag_bits & 0x1:
                raise self._rejected(f"{name} is encrypted")
            if name in members or name.startswith("/") or "\\" in name or "\0" in name or {"", ".", ".."} & set(parts):
                raise self._rejected(f"the member name {name!r} is duplicate or leaves the archive")
            start = self._data_start(info)
            if start + info.file_size > len(self._map):
                raise self._rejected(f"{name} exceeds the file, which is truncated")
            members[name] = _Member(start, info.file_size, info.CRC)
            taken.append((info.header_offset, start + info.file_size, name))
        taken.sort()
        for (_, end, _), (begin, _, name) in itertools.pairwise(taken):
            if begin < end:
                raise self._rejected(f"{name} overlaps with another member")
        prefixes = {name.split("/")[0] for name in members}
        if len(prefixes) != 1:
            raise self._rejected("it does not have exactly one folder, as torch's archives do")
        return members, prefixes.pop() + "/"

    def _data_start(self, info: zipfile.ZipInfo) -> int:
        header = self._map[info.header_offset : info.header_offset + _LOCAL.size]
        if len(header) != _LOCAL.size or header[:4] != b"PK\x03\x04":
            raise self._rejected(f"{info.filename} has no header of its own")
        fields = _LOCAL.unpack(header)
        begin = info.header_offset + _LOCAL.size
        name = self._map[begin : begin + fields[9]]
        if name.decode("utf-8", "replace") != info.filename:
            raise self._rejected(f"{info.filename} is called {name[:80]!r} in its own header")
        return begin + fields[9] + fields[10]

    def _rejected(self, why: str) -> ConversionError:
        return ConversionError(f"{self.path}: {why}"[:400])

    def _text(self, name: str, default: bytes | None = None) -> bytes:
        member = self._members.get(self._prefix + name)
        if member is None:
            if default is None:
                raise self._rejected(f"has no {name}")
            return default
        if member.size > _LARGEST_PICKLE:
            raise self._rejected(f"{name} has {member.size} bytes")
        return self.member(member, name).tobytes()

    def _persistent(self, key: object) -> Storage:
        """Return the storage of a persistent id; reject any other id.

        The id is ``("storage", class, key, location, number of elements)``.
        """
        if type(key) is not tuple or len(key) != 5 or key[0] != "storage" or type(key[1]) is not Global:
            raise PickleRejectedError("a persistent id that is no storage")
        _, kind, name, _, count = key
        if kind.module != "torch" or kind.name not in STORAGES or type(name) is not str or type(count) is not int:
            raise PickleRejectedError(f"a storage of kind {kind.module}.{kind.name}"[:200])
        dtype = STORAGES[kind.name]
        found = self._storages.get(name)
        if found is None:
            member = self._members.get(f"{self._prefix}data/{name}")
            if member is None:
                raise PickleRejectedError(f"the storage {name!r} is missing"[:200])
            if count < 0 or member.size != count * dtype.itemsize:
                raise PickleRejectedError(f"the storage {name!r} has {member.size} bytes, not {count} elements"[:200])
            found = self._storages[name] = _FileStorage(self, member, f"data/{name}", dtype, count)
        if found.dtype != dtype or found.size != count:
            raise PickleRejectedError(f"the storage {name!r} is described in two ways"[:200])
        return found


class _FileStorage(Storage):
    def __init__(self, file: TorchFile, member: _Member, name: str, dtype: np.dtype, size: int) -> None:
        self.dtype, self.size = dtype, size
        self._file, self._member, self._name = file, member, name
        self._lock, self._row, self._parts = threading.Lock(), None, Parts(member.size)

    def read(self) -> np.ndarray:
        """Return the complete storage; see :class:`Storage`."""
        with self._lock:
            if self._row is None:
                row = self._file.member(self._member, self._name).view(self.dtype)
                row.flags.writeable = False
                self._row = row
            return self._row

    def stretch(self, start: int, stop: int) -> np.ndarray:
        """Return a part; see :class:`Storage`."""
        if self._row is None and self._member.size > SMALL:
            first, last = start * self.dtype.itemsize, stop * self.dtype.itemsize
            data = self._file.stretch(self._member, self._parts, self._name, first, last)
            if data is not None:
                row = data.view(self.dtype)
                row.flags.writeable = False
                return row
        return self.read()[start:stop]

    def verify(self) -> None:
        """Check what was read in parts.

        Raises:
            ConversionError: The file is damaged.
        """
        gaps = list(self._parts.gaps())
        if self._row is not None or gaps == [(0, self._member.size)]:
            return
        for begin, end in gaps:
            for start in range(begin, end, _BLOCK):
                self._file.stretch(self._member, self._parts, self._name, start, min(start + _BLOCK, end))
        self._file.compare(self._member, self._name, self._parts.combined())
