"""Writer of distributed checkpoints of torch: archives, and ``.metadata`` last."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import BinaryIO, cast

from midstream_core.pickle_tree import Items, Made, Pairs, Step, Value
from midstream_core.pickle_writer import dump
from midstream_core.restricted_pickle import Global
from midstream_engine.interop.tensor_files import Outgoing
from midstream_engine.interop.torch_dcp.reader import METADATA
from midstream_engine.interop.torch_saving import save_to

_MODULE = "torch.distributed.checkpoint.metadata"
_FOLDER = "archive"  # torch's name of the folder in an archive without a file name


@dataclass(frozen=True)
class Entry:
    """A path in the nested state, and a tensor or a plain value."""

    path: tuple[str, ...]
    value: object

    @property
    def name(self) -> str:
        """Its name, as torch makes it of the path."""
        return ".".join(self.path)


def write(directory: str, entries: Iterable[Entry], largest: int) -> list[str]:
    """Write ``entries`` in files of about ``largest`` bytes; return their names."""
    described: list[list[Value]] = []
    places: list[list[Value]] = []
    paths: list[list[Value]] = []
    names: list[str] = []
    file: BinaryIO | None = None
    with ExitStack() as opened:
        for entry in entries:
            if file is None or file.seek(0, os.SEEK_END) > largest:
                names.append(f"__0_{len(names)}.distcp")
                file = opened.enter_context(_synced(os.path.join(directory, names[-1])))
            begin = file.seek(0, os.SEEK_END)
            save_to(cast(BinaryIO, _Section(file, begin)), _FOLDER, entry.value)
            tensor = entry.value if isinstance(entry.value, Outgoing) else None
            index = _index(entry.name, None if tensor is None else (0,) * len(tensor.shape))
            place = {"relative_path": names[-1], "offset": begin, "length": file.seek(0, os.SEEK_END) - begin}
            described.append([entry.name, _described(tensor)])
            places.append([index, _record("torch.distributed.checkpoint.filesystem", "_StorageInfo", place)])
            paths.append([entry.name, Items("tuple", list(entry.path))])
    stored = _record(_MODULE, "StorageMeta", {"checkpoint_id": None, "save_id": None, "load_id": None,
                                              "modules": Items("list", [])})  # fmt: skip
    metadata = _record(_MODULE, "Metadata", {
        "state_dict_metadata": Pairs(described), "planner_data": Pairs(paths), "storage_data": Pairs(places),
        "storage_meta": stored, "version": "1.0.0",
    })  # fmt: skip
    with _synced(os.path.join(directory, METADATA)) as written:
        written.write(dump(metadata))
    return [METADATA, *names]


@contextmanager
def _synced(path: str) -> Iterator[BinaryIO]:
    """Context manager: a new file, which is on the disk at the end."""
    with open(path, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


class _Section:
    """The rest of a file from ``begin`` on, as a file of its own."""

    def __init__(self, file: BinaryIO, begin: int) -> None:
        self._file, self._begin = file, begin

    def seek(self, offset: int, origin: int = os.SEEK_SET) -> int:
        moved = offset + self._begin if origin == os.SEEK_SET else offset
        return self._file.seek(moved, origin) - self._begin

    def tell(self) -> int:  # codespell:ignore tell
        return self._file.tell() - self._begin  # codespell:ignore tell

    def write(self, data: bytes) -> int:
        return self._file.write(data)


def _described(tensor: Outgoing | None) -> Value:
    if tensor is None:
        return _record(_MODULE, "BytesStorageMetadata", {})
    layout = _call("torch.serialization", "_get_layout", ["torch.strided"])
    order = _call(_MODULE, "_MEM_FORMAT_ENCODING", [0])
    properties = Made("NEWOBJ", Global(_MODULE, "TensorProperties"), Items("tuple", []))
    properties.steps.append(
        Step("BUILD", [Items("tuple", [Global("torch", tensor.dtype), layout, False, order, False])])
    )
    chunk = _record(
        _MODULE, "ChunkStorageMetadata", {"offsets": _size((0,) * len(tensor.shape)), "sizes": _size(tensor.shape)}
    )
    return _record(_MODULE, "TensorStorageMetadata", {
        "properties": properties, "size": _size(tensor.shape), "chunks": Items("list", [chunk]),
    })  # fmt: skip


def _index(name: str, begins: Sequence[int] | None) -> Value:
    tensor = begins is not None
    return _record(_MODULE, "MetadataIndex", {
        "fqn": name, "offset": _size(begins) if tensor else None, "index": 0 if tensor else None,
    })  # fmt: skip


def _size(lengths: Sequence[int]) -> Value:
    return _call("torch", "Size", [Items("tuple", list(lengths))])


def _call(module: str, name: str, arguments: list[Value]) -> Made:
    return Made("REDUCE", Global(module, name), Items("tuple", arguments))


def _record(module: str, name: str, fields: dict[str, Value]) -> Made:
    """Return an object of a dataclass, which is pickled with its fields."""
    made = Made("NEWOBJ", Global(module, name), Items("tuple", []))
    if fields:
        made.steps.append(Step("BUILD", [Pairs([[field, value] for field, value in fields.items()])]))
    return made
