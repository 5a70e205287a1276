"""Shapes of the tensors in a file of torch, from its pickle.

No class of the pickle is imported or called.
"""

from __future__ import annotations

import collections
import io
import pickle
import zipfile
from typing import Any, BinaryIO, Dict, NamedTuple, Tuple, cast

from midstream_core.json_types import JsonValue

PICKLE_LIMIT = 64 << 20  # bytes of the pickle in an archive
OLD_FORMAT_PICKLES = 3  # in a file of torch before 1.6: magic number, protocol, system


class TensorShape(NamedTuple):
    """Takes the place of a tensor."""

    shape: Tuple[int, ...]


class _Inert:
    """Substitute for any object in a pickle: accepts every operation, does nothing."""

    def __init__(self, *_: JsonValue, **__: JsonValue) -> None:
        pass

    def __call__(self, *_: JsonValue, **__: JsonValue) -> "_Inert":
        return self

    def __setstate__(self, _: JsonValue) -> None:
        pass

    def __setitem__(self, _: JsonValue, __: JsonValue) -> None:
        pass

    def __hash__(self) -> int:
        return id(self)

    def append(self, _: JsonValue) -> None:
        pass

    def extend(self, _: JsonValue) -> None:
        pass


def _tensor(_storage: JsonValue, _offset: JsonValue, size: Any, *_: JsonValue) -> TensorShape:
    return TensorShape(tuple(int(length) for length in size))


def _parameter(data: JsonValue, *_: JsonValue) -> JsonValue:
    return data


_KNOWN = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        return _KNOWN.get((module, name), _Inert)

    def persistent_load(self, _: JsonValue) -> object:
        return _Inert()


TorchState = Dict[str, Any]  # what torch saved: plain values, and shapes in the place of tensors


def read(file: BinaryIO, name: str) -> TorchState:
    """The mapping in a file of torch, each tensor as `TensorShape`.

    Args:
        file: Open for reading, seekable.
        name: Its name in messages.

    Raises:
        ValueError: It is no such file.
        OSError: It cannot be read.
    """
    try:
        archive = zipfile.is_zipfile(file)
        file.seek(0)
        value = _from_archive(file, name) if archive else _from_pickles(file)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001  a damaged pickle may raise anything
        raise ValueError("{}: not a file of torch, or damaged ({})".format(name, type(error).__name__)) from None
    if not isinstance(value, dict):
        raise ValueError("{}: has no training state".format(name))
    return cast(TorchState, value)


def _from_archive(file: BinaryIO, name: str) -> JsonValue:
    with zipfile.ZipFile(file) as archive:
        entry = next(each for each in archive.infolist() if each.filename.rpartition("/")[2] == "data.pkl")
        if entry.file_size > PICKLE_LIMIT:
            raise ValueError("{}: its pickle has {} bytes".format(name, entry.file_size))
        with archive.open(entry) as pickled:
            return _Unpickler(io.BytesIO(pickled.read(PICKLE_LIMIT))).load()


def _from_pickles(file: BinaryIO) -> JsonValue:
    for _ in range(OLD_FORMAT_PICKLES):
        _Unpickler(file).load()
    return _Unpickler(file).load()
