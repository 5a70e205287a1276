"""The ``.metadata`` of a torch checkpoint: names, tensors' parts, bytes of files."""

from __future__ import annotations

import math
from typing import BinaryIO, Dict, Iterator, List, NamedTuple, Optional, Tuple, Union, cast

from midstream_core import records, restricted_pickle
from midstream_core.format_error import FormatError
from midstream_core.json_types import JsonValue
from midstream_core.restricted_pickle import Global, Record, items_of
from midstream_core.torch_archive import PlainValues, TorchArchive

METADATA_LIMIT = 32 << 20  # bytes
MIN_STORED = 1 << 16  # bytes of a stored number, with the archive around it, or less
_METADATA = ("torch.distributed.checkpoint.metadata", "Metadata")
_STORAGE = ("torch.distributed.checkpoint.filesystem", "_StorageInfo")
_INDEX = ("torch.distributed.checkpoint.metadata", "MetadataIndex")
_TENSOR = ("torch.distributed.checkpoint.metadata", "TensorStorageMetadata")
_PROPERTIES = ("torch.distributed.checkpoint.metadata", "TensorProperties")
_CHUNK = ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata")
_MAX_DIMENSIONS = 16


class Place(NamedTuple):
    """Bytes of a part of the state: file, first byte, number."""

    file: str
    offset: int
    length: int


class DcpMetadata(NamedTuple):
    """Contents of a checkpoint.

    ``ends``: by file, the bytes that it has at least; ``names``: those of the state; ``small``: by name, where a part
    of the state is that is small enough to be a number.
    """

    ends: Dict[str, int]
    names: List[str]
    small: Dict[str, Place]


class StoredPart(NamedTuple):
    """A part of a tensor: its first index along each axis, its shape, and where it is."""

    begins: Tuple[int, ...]
    shape: Tuple[int, ...]
    place: Place


class StoredTensor(NamedTuple):
    """A tensor of the state. ``dtype``: torch's name, such as ``float32``."""

    dtype: str
    shape: Tuple[int, ...]
    parts: List[StoredPart]


class DcpState(NamedTuple):
    """The state by name: tensors, and where its other values are.

    ``ends``: by file, the bytes that it has at least.
    """

    tensors: Dict[str, StoredTensor]
    values: Dict[str, Place]
    ends: Dict[str, int]


def read(path: str) -> DcpMetadata:
    """Read a ``.metadata`` file.

    Raises:
        FormatError: The file is partial, or no ``.metadata``.
        OSError: The file cannot be read.
    """
    names, stored = _contents(records.read_bytes(path, METADATA_LIMIT))
    ends: Dict[str, int] = {}
    small: Dict[str, Place] = {}
    for name, _, place, changed in stored:
        ends[place.file] = max(ends.get(place.file, 0), place.offset + place.length)
        if place.length <= MIN_STORED and not changed:
            small[name] = place
    return DcpMetadata(ends, list(names), small)


def state_of(data: bytes) -> DcpState:
    """Return what a ``.metadata`` file has, with all parts of each tensor.

    Raises:
        FormatError: The file is partial, no ``.metadata``, or a part of the state has no place or more than one.
    """
    names, stored = _contents(data)
    places: Dict[Tuple[str, Optional[Tuple[int, ...]]], Place] = {}
    ends: Dict[str, int] = {}
    for name, begins, place, changed in stored:
        if changed:
            raise FormatError("has {} transformed, such as compressed, which is not read".format(name[:200]))
        if places.setdefault((name, begins), place) != place:
            raise FormatError("has two places of {}".format(name[:200]))
        ends[place.file] = max(ends.get(place.file, 0), place.offset + place.length)
    tensors: Dict[str, StoredTensor] = {}
    values: Dict[str, Place] = {}
    for name, record in names.items():
        if type(record) is Record and tuple(record.kind) == _TENSOR:
            tensors[name] = _tensor(name, _fields(record, _TENSOR), places)
        elif (name, None) in places:
            values[name] = places[name, None]
        else:
            raise FormatError("has no place of {}".format(name[:200]))
    return DcpState(tensors, values, ends)


def _tensor(
    name: str, fields: Dict[str, JsonValue], places: Dict[Tuple[str, Optional[Tuple[int, ...]]], Place]
) -> StoredTensor:
    properties = cast(object, fields.get("properties"))
    described = (
        items_of(properties.state) if type(properties) is Record and tuple(properties.kind) == _PROPERTIES else None
    )
    dtype = described[0] if described else None
    shape = _sizes(fields.get("size"))
    if type(dtype) is not Global or shape is None:
        raise FormatError("describes {} in a way that makes no sense".format(name[:200]))
    parts: List[StoredPart] = []
    for chunk in items_of(fields.get("chunks")) or ():
        stated = _fields(chunk, _CHUNK)
        begins, sizes = _sizes(stated.get("offsets")), _sizes(stated.get("sizes"))
        if begins is None or sizes is None or not len(begins) == len(sizes) == len(shape):
            raise FormatError("has a part of {} that makes no sense".format(name[:200]))
        if math.prod(sizes):
            place = places.get((name, begins))
            if place is None:
                raise FormatError("has no place of a part of {}".format(name[:200]))
            parts.append(StoredPart(begins, sizes, place))
    if not _is_grid(shape, parts):
        raise FormatError("has parts of {} that are not all of it".format(name[:200]))
    return StoredTensor(dtype.name, shape, sorted(parts))


def _is_grid(shape: Tuple[int, ...], parts: List[StoredPart]) -> bool:
    """Return whether the parts are the cells of one grid, each number once."""
    if not math.prod(shape):
        return not parts
    axes = [sorted({cell.begins[axis] for cell in parts}) for axis in range(len(shape))]
    cells = {cell.begins: cell.shape for cell in parts}
    if len(cells) != len(parts) or len(parts) != math.prod(len(begins) for begins in axes):
        return False
    lengths = [
        {begin: end - begin for begin, end in zip(begins, [*begins[1:], size])} for begins, size in zip(axes, shape)
    ]
    return all(begins[:1] == [0] for begins in axes) and all(
        sizes == tuple(length[begin] for length, begin in zip(lengths, begins)) for begins, sizes in cells.items()
    )


def _contents(
    data: bytes,
) -> Tuple[Dict[str, object], Iterator[Tuple[str, Optional[Tuple[int, ...]], Place, bool]]]:
    """Return the names of the state with their records, and each place.

    A place has the name, the first index of a tensor's part, and whether the bytes are transformed.
    """
    try:
        value = restricted_pickle.load(data, PlainValues())
    except restricted_pickle.PickleError as error:
        raise FormatError("cannot be read: {}".format(error)) from None
    fields = _fields(value, _METADATA)
    places, names = fields.get("storage_data"), fields.get("state_dict_metadata")
    if not isinstance(places, dict) or not isinstance(names, dict):
        raise FormatError("names no files")
    described = cast("Dict[object, object]", names)
    return (
        {name: record for name, record in described.items() if isinstance(name, str)},
        _places(cast("Dict[object, object]", places)),
    )


def _places(places: Dict[object, object]) -> Iterator[Tuple[str, Optional[Tuple[int, ...]], Place, bool]]:
    for index, place in places.items():
        stored, named = _fields(place, _STORAGE), _fields(index, _INDEX)
        file, offset, length = stored.get("relative_path"), stored.get("offset"), stored.get("length")
        if type(file) is not str or type(offset) is not int or type(length) is not int or min(offset, length) < 0:
            raise FormatError("describes a place that makes no sense")
        if not records.safe_relative(file):
            raise FormatError("names the file {!r}, which is outside of the checkpoint".format(file[:80]))
        name = named.get("fqn")
        if not isinstance(name, str):
            raise FormatError("describes a place that makes no sense")
        yield name, _sizes(named.get("offset")), Place(file, offset, length), bool(stored.get("transform_descriptors"))


def _sizes(value: object) -> Optional[Tuple[int, ...]]:
    """Return the sizes of a shape; None for any other value."""
    items = items_of(value, tuple)
    if items is None or len(items) > _MAX_DIMENSIONS:
        return None
    sizes = tuple(item for item in items if type(item) is int and item >= 0)
    return sizes if len(sizes) == len(items) else None


def number(source: Union[str, BinaryIO], place: Place) -> Optional[float]:
    """Return the number that a part of the state is.

    None where it is another value, or has another format. ``source``: the file, by path or open. Raises OSError.
    """
    try:
        with TorchArchive(source, place.offset, place.length) as archive:
            return archive.number(archive.load())
    except (FormatError, records.RecordError):  # the state may be stored as safetensors
        return None


def _fields(value: object, kind: object) -> Dict[str, JsonValue]:
    """Fields of an instance of a dataclass, which is pickled with its ``__dict__``."""
    state: object = value.state if type(value) is Record and tuple(value.kind) == kind else None
    if not isinstance(state, dict):
        raise FormatError("is no metadata of a distributed checkpoint")
    return cast("Dict[str, JsonValue]", state)
