"""Files as ``torch.save`` writes them: plain values and tensors.

Memory has one tensor.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

import numpy as np

from midstream_core.pickle_tree import Items, Made, Pairs, Persistent, Value
from midstream_core.pickle_writer import dump
from midstream_core.restricted_pickle import Global
from midstream_core.torch_writer import ALIGNMENT, NewMember, text_member, write_archive
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.host_buffers import bytes_of
from midstream_engine.interop.calls import STORAGES
from midstream_engine.interop.tensor_files import Outgoing

_STORAGE_OF = {dtype: name for name, dtype in STORAGES.items()}
_REBUILD = Global("torch._utils", "_rebuild_tensor_v2")


@dataclass(frozen=True)
class OutgoingBlocks(Outgoing):
    """A flat tensor that is written block by block, so that memory has one of them."""

    make: Callable[[], Iterator[np.ndarray]]  # pyright: ignore[reportIncompatibleMethodOverride]


def save(path: str, value: object) -> None:
    """Write ``value`` so that ``torch.load`` returns it.

    Its default of ``weights_only`` reads it too.

    Args:
        path: The file. Its stem is the name of the folder in the archive, as with torch.
        value: Made of dicts, lists, tuples, numbers, texts, None, and ``Outgoing`` as tensors. An object that is in it
            several times is one object in the file.
    """
    with open(path, "wb") as file:
        save_to(file, os.path.splitext(os.path.basename(path))[0], value)
        file.flush()
        os.fsync(file.fileno())


def save_to(file: BinaryIO, folder: str, value: object) -> None:
    """Write ``value`` into an empty file that can seek; see `save`."""
    tensors: list[Outgoing] = []
    nodes: dict[int, Value] = {}
    tree = _node(value, tensors, nodes)
    members = [
        text_member("data.pkl", dump(tree)),
        text_member(".format_version", b"1"),
        text_member(".storage_alignment", str(ALIGNMENT).encode()),
        text_member("byteorder", b"little"),
        *(NewMember(f"data/{key}", tensor.size, partial(_copy, tensor)) for key, tensor in enumerate(tensors)),
        text_member("version", b"3\n"),
    ]
    write_archive(file, folder, members)


def _node(value: object, tensors: list[Outgoing], nodes: dict[int, Value]) -> Value:
    """Return the node of a value.

    ``tensors`` gets its tensors, in the order of their storages.
    """
    if not isinstance(value, (Mapping, list, tuple, Outgoing)):
        return value
    if id(value) not in nodes:
        if isinstance(value, Outgoing):
            nodes[id(value)] = _tensor(value, str(len(tensors)))
            tensors.append(value)
        elif isinstance(value, Mapping):
            nodes[id(value)] = Pairs([[key, _node(item, tensors, nodes)] for key, item in value.items()])
        else:
            kind = "list" if isinstance(value, list) else "tuple"
            nodes[id(value)] = Items(kind, [_node(item, tensors, nodes) for item in value])
    return nodes[id(value)]


def _tensor(tensor: Outgoing, key: str) -> Made:
    storage = Global("torch", _STORAGE_OF[numpy_dtype(tensor.dtype)])
    shape = tensor.shape
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    place = Persistent(Items("tuple", ["storage", storage, key, "cpu", math.prod(shape)]))
    hooks = Made("REDUCE", Global("collections", "OrderedDict"), Items("tuple", []))
    arguments = [place, 0, Items("tuple", list(shape)), Items("tuple", strides), False, hooks]
    return Made("REDUCE", _REBUILD, Items("tuple", arguments))


def _copy(tensor: Outgoing, write: Callable[[memoryview], object]) -> int:
    crc = 0
    for block in tensor.make() if isinstance(tensor, OutgoingBlocks) else [tensor.make()]:
        raw = bytes_of(np.ascontiguousarray(block, numpy_dtype(tensor.dtype)))
        write(raw)
        crc = zlib.crc32(raw, crc)
    return crc
