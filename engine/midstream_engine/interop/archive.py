"""Reader of the zip archives of ``torch.save``.

Small members are read through a memory map, large storages in parts with direct I/O. Its members are checked before
anything is used.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import threading
import zlib
from collections.abc import Callable
from typing import BinaryIO, cast

import numpy as np

from midstream_core.crc32_parts import MemberParts
from midstream_core.restricted_pickle import Global
from midstream_core.torch_archive import FilePart
from midstream_core.torch_members import Member, members_of
from midstream_engine.interop import machine
from midstream_engine.interop.calls import STORAGES, Storage
from midstream_engine.interop.direct_io import DirectFile
from midstream_engine.interop.errors import ConversionError, PickleRejectedError
from midstream_engine.interop.foreign_values import TorchValue

_MAX_PICKLE = 1 << 30  # bytes: everything but tensors is small
_BLOCK = 16 << 20  # bytes checked at a time
Persistent = Callable[[object], object]  # objects of persistent ids
SMALL = 1 << 20  # bytes of a storage that is always read completely


class TorchFile:
    """One file of ``torch.save``.

    ``value``: the saved object, with tensors as views of the mapped file.
    """

    def __init__(
        self,
        path: str,
        load: Callable[[bytes, Persistent], TorchValue] = machine.load,
        begin: int = 0,
        size: int | None = None,
    ) -> None:
        """Open the file, or the part of it with ``size`` bytes from ``begin`` on.

        ``load``: returns the object of its pickle.

        Raises:
            ConversionError: The file is no such archive, damaged or hostile.
        """
        self.path = path
        with open(path, "rb") as file, contextlib.closing(FilePart(path, begin, size)) as part:
            try:
                members = members_of(cast(BinaryIO, part), part.size)
            except ValueError as error:
                raise self._rejected(str(error)) from None
            self._members = {name: member._replace(start=begin + member.start) for name, member in members.items()}
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._prefix = next(iter(self._members)).split("/")[0] + "/"
        self._storages: dict[str, _FileStorage] = {}
        order = self._text("byteorder", b"little")
        if order != b"little":
            raise ConversionError(f"{path}: its numbers are {order[:20]!r}-endian; only little-endian is supported")
        try:
            self.value: TorchValue = load(self._text("data.pkl"), self._persistent)
        except PickleRejectedError as error:
            raise PickleRejectedError(f"{path}: {error}") from None

    def verify(self) -> None:
        """Check the storages that were read in parts; read the parts that were not.

        Raises:
            ConversionError: A storage is damaged.
        """
        for storage in self._storages.values():
            storage.verify()

    def stretch(self, member: Member, parts: MemberParts, name: str, start: int, end: int) -> np.ndarray | None:
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

        def add_to_crc(block: np.ndarray) -> None:
            nonlocal crc
            crc = zlib.crc32(block.data, crc)

        try:
            data = self._direct.read(member.start + start, end - start, add_to_crc)
        except EOFError:
            raise self._rejected(f"{name} exceeds the file, which was truncated during the import") from None
        noted = parts.add(start, end, crc)
        if noted is False:
            raise self._rejected(f"{name} changed between two reads: is it being written?")
        return data if noted else None

    @functools.cached_property
    def _direct(self) -> DirectFile:
        return DirectFile(self.path)

    def member(self, member: Member, name: str) -> np.ndarray:
        """Return a member's bytes, mapped, after a check of its CRC. Uint8 [size]."""
        view = np.frombuffer(self._map, np.uint8, member.size, member.start)
        crc = 0
        for start in range(0, member.size, _BLOCK):
            self._expect(member.start + start + _BLOCK, min(_BLOCK, member.size - start - _BLOCK))
            crc = zlib.crc32(view[start : start + _BLOCK].data, crc)
        self.compare(member, name, crc)
        return view

    def compare(self, member: Member, name: str, crc: int) -> None:
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

    def _rejected(self, why: str) -> ConversionError:
        return ConversionError(f"{self.path}: {why}"[:400])

    def _text(self, name: str, default: bytes | None = None) -> bytes:
        member = self._members.get(self._prefix + name)
        if member is None:
            if default is None:
                raise self._rejected(f"has no {name}")
            return default
        if member.size > _MAX_PICKLE:
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
        storage = self._storages.get(name)
        if storage is None:
            member = self._members.get(f"{self._prefix}data/{name}")
            if member is None:
                raise PickleRejectedError(f"the storage {name!r} is missing"[:200])
            if count < 0 or member.size != count * dtype.itemsize:
                raise PickleRejectedError(f"the storage {name!r} has {member.size} bytes, not {count} elements"[:200])
            storage = self._storages[name] = _FileStorage(self, member, f"data/{name}", dtype, count)
        if storage.dtype != dtype or storage.size != count:
            raise PickleRejectedError(f"the storage {name!r} is described in two ways"[:200])
        return storage


class _FileStorage(Storage):
    def __init__(self, file: TorchFile, member: Member, name: str, dtype: np.dtype, size: int) -> None:
        self.dtype, self.size = dtype, size
        self._file, self._member, self._name = file, member, name
        self._lock, self._row, self._parts = threading.Lock(), None, MemberParts(member.size)

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
