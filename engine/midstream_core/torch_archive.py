"""Archives of ``torch.save``: whether one is complete, and its plain values.

Nothing in an archive is executed.
"""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from typing import Any, BinaryIO, Dict, NamedTuple, Optional, Tuple, Union, cast

from midstream_core import records, restricted_pickle
from midstream_core.format_error import FormatError
from midstream_core.restricted_pickle import SCALARS, Global, Record, Vocabulary, items_of
from midstream_core.torch_members import members_of

DIRECTORY_LIMIT = 64 << 20  # bytes of an archive's directory: about half a million members
PICKLE_LIMIT = 64 << 20  # bytes of the pickle, which has no tensor's numbers
_NUMBERS = {
    "FloatStorage": "<f", "DoubleStorage": "<d", "LongStorage": "<q", "IntStorage": "<i", "ShortStorage": "<h",
    "ByteStorage": "<B", "BoolStorage": "<?", "HalfStorage": "<e",
}  # fmt: skip
_MAPPINGS = {("collections", "OrderedDict"), ("collections", "defaultdict"), ("collections", "Counter")}


class StorageName(NamedTuple):
    """The name of a tensor's numbers in the archive."""

    kind: str
    key: str


class TensorInArchive(NamedTuple):
    """Takes the place of a tensor. Offset in elements."""

    storage: Optional[StorageName]
    offset: int
    shape: Tuple[int, ...]


class PlainValues(Vocabulary):
    """object class may be named, and is a record: the plain values around it can be read."""

    inert = True

    def allows(self, module: str, name: str) -> bool:  # noqa: ARG002
        """Allow every name: none is looked up."""
        return True

    def call(self, function: Global, arguments: Tuple[object, ...]) -> object:
        """Return dicts, sets, bytes, shapes and tensors as such, all else as records."""
        pair = (function.module, function.name)
        if pair in _MAPPINGS:
            return self._mapping(arguments)
        if function.name == "set" and function.module in ("builtins", "__builtin__"):
            return {self.key(item) for item in (items_of(arguments[0]) if arguments else None) or ()}
        if pair == ("_codecs", "encode") and arguments and type(arguments[0]) is str:
            return arguments[0].encode("latin-1", "replace")
        if pair == ("torch", "Size") and arguments and type(arguments[0]) is tuple:
            return cast("object", arguments[0])
        if pair in (("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_tensor")):
            return _tensor(arguments)
        if pair == ("torch._utils", "_rebuild_parameter") and arguments:
            return arguments[0]
        return Record(function, arguments)

    def persistent(self, key: object) -> object:
        """Return the name of a storage; None for an id of another kind."""
        parts = items_of(key, tuple) or ()
        if len(parts) < 3 or type(parts[1]) is not Global or type(parts[2]) is not str:
            return None
        return StorageName(parts[1].name, parts[2])

    def key(self, value: object) -> object:
        """Allow records too (by identity), and tuples of scalars."""
        if type(value) is Record or type(value) is Global:
            return value
        items = items_of(value, tuple)
        if items is not None and all(isinstance(item, SCALARS) for item in items):
            return items
        return super().key(value)

    def _mapping(self, arguments: Tuple[object, ...]) -> Dict[object, object]:
        """Return the pairs of an ordered dict of protocol 1.

        A defaultdict's argument is its factory.
        """
        mapping: Dict[object, object] = {}
        for entry in (items_of(arguments[0], list) if arguments else None) or ():
            pair = items_of(entry)
            if pair is None or len(pair) != 2:
                raise restricted_pickle.PickleError("broken pickle: a dict of what are no pairs")
            mapping[self.key(pair[0])] = pair[1]
        return mapping


def _tensor(arguments: Tuple[object, ...]) -> TensorInArchive:
    storage, offset, shape = arguments[:3]
    lengths = items_of(shape, tuple) or ()
    sizes = tuple(length for length in lengths if type(length) is int)
    if type(offset) is not int or len(sizes) < len(lengths):
        raise restricted_pickle.PickleError("broken pickle: a tensor that makes no sense")
    return TensorInArchive(storage if type(storage) is StorageName else None, offset, sizes)


class TorchArchive:
    """One file of ``torch.save``, open until `close`. A context manager."""

    def __init__(self, source: Union[str, BinaryIO], begin: int = 0, size: Optional[int] = None) -> None:
        """Open and check the archive in ``source``.

        ``source``: a path, or a file that can seek and is closed with the archive. ``begin`` and ``size``: the part
        of the file that has it, in bytes; by default all of it.

        Raises:
            FormatError: The file is partial, or no such archive.
            OSError: The file cannot be read.
        """
        self._file = FilePart(source, begin, size)
        try:
            self._members = members_of(cast("BinaryIO", self._file), self._file.size)
        except ValueError as error:
            self._file.close()
            raise FormatError(str(error)) from None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> TorchArchive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def load(self) -> object:
        """Return the saved object: plain values, `TensorInArchive` and records.

        Raises:
            FormatError: Its pickle is damaged or too large.
        """
        name = next((name for name in self._members if name.rpartition("/")[2] == "data.pkl"), None)
        if name is None:
            raise FormatError("has no data.pkl: it was not written by torch.save")
        start, size, _ = self._members[name]
        if size > PICKLE_LIMIT:
            raise FormatError("its pickle has {} bytes, and at most {} are read".format(size, PICKLE_LIMIT))
        self._file.seek(start)
        return _plain(self._file.read(size))

    def number(self, value: object) -> Optional[float]:
        """Return a plain number, or that of a one-element tensor; None for neither."""
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if type(value) is not TensorInArchive or value.storage is None or any(size != 1 for size in value.shape):
            return None
        code = _NUMBERS.get(value.storage.kind)
        name = next((name for name in self._members if name.endswith("/data/" + value.storage.key)), None)
        if code is None or name is None:
            return None
        (start, size, _), width = self._members[name], struct.calcsize(code)
        if value.offset < 0 or (value.offset + 1) * width > size:
            return None
        self._file.seek(start + value.offset * width)
        return float(struct.unpack(code, self._file.read(width))[0])


def saved_value(file: BinaryIO) -> Any:
    """Return what a file of ``torch.save`` has, as `TorchArchive.load`.

    The members are not checked: of a file in a bucket each look at one is a request.

    Raises:
        FormatError: The file is no such archive, or its pickle is damaged or too large.
        OSError: It cannot be read.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entry = next(
                (entry for entry in archive.infolist() if entry.filename.rpartition("/")[2] == "data.pkl"), None
            )
            if entry is None:
                raise FormatError("has no data.pkl: it was not written by torch.save")
            if entry.file_size > PICKLE_LIMIT:
                raise FormatError(
                    "its pickle has {} bytes, and at most {} are read".format(entry.file_size, PICKLE_LIMIT)
                )
            with archive.open(entry) as pickled:
                data = pickled.read(PICKLE_LIMIT)
    except FormatError:
        raise
    except (zipfile.BadZipFile, RuntimeError, ValueError, struct.error, OverflowError, EOFError, zlib.error):
        raise FormatError("is no zip archive of torch since 1.6, or damaged") from None
    return _plain(data)


def _plain(data: bytes) -> Any:
    """Return the plain values of a pickle. Raises FormatError."""
    try:
        return restricted_pickle.load(data, PlainValues())
    except restricted_pickle.PickleError as error:
        raise FormatError("its pickle cannot be read: {}".format(error)) from None


class FilePart(io.RawIOBase):
    """Part of a file; it refuses to read more at once than a directory has.

    The sizes of reads come from the file itself.
    """

    def __init__(self, source: Union[str, BinaryIO], begin: int = 0, size: Optional[int] = None) -> None:
        super().__init__()
        self._raw = records.open_regular(source) if isinstance(source, str) else source
        self._begin = begin
        rest = max(0, self._raw.seek(0, os.SEEK_END) - begin)
        self.size = rest if size is None else min(size, rest)
        self.seek(0)

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, origin: int = 0) -> int:
        start = (0, self.tell(), self.size)[origin]  # codespell:ignore tell
        if start + offset < 0:
            raise ValueError("a position before the beginning")
        return self._raw.seek(self._begin + start + offset) - self._begin

    def tell(self) -> int:  # codespell:ignore tell
        return self._raw.tell() - self._begin  # codespell:ignore tell

    def read(self, size: int = -1) -> bytes:
        if size > DIRECTORY_LIMIT:
            raise ValueError("a read of {} bytes".format(size))
        remaining = max(0, self.size - self.tell())  # codespell:ignore tell
        return self._raw.read(min(remaining, DIRECTORY_LIMIT if size < 0 else size))

    def close(self) -> None:
        self._raw.close()
        super().close()
